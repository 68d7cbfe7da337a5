"""Settings that every test file shares."""

import os

import hypothesis

# One thread a library keeps two pytest workers from fighting over two cores; set before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")
# Triton decides when it is imported, which torch.compile does too, whether it can interpret kernels.
os.environ.setdefault("TRITON_INTERPRET", "1")

hypothesis.settings.register_profile(
    "softcarry", deadline=None, max_examples=60, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("softcarry")
