"""Compiled kernels, written in Python: vectors as LLVM IR, loops over them, threads to share the work."""
