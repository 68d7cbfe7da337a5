"""What ``softcarry bench`` runs: measurements of speed and memory beside what people use today.

A suite is a file, or a few: ``rows`` and ``row_memory``; ``attention``, ``prefill_memory`` and ``start_up``;
``decode`` and ``decode_growth``; ``merge``; ``emulated_sums``; ``emulated_kernel``. Each returns plain
results, which the command shows; the machinery that they share begins with an underscore.
"""
