"""The CUDA backend; its modules are the only importers of ``cuda.core`` and ``cuda.bindings``."""
