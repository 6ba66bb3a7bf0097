"""Settings of all tests."""

import os

# The tests compile far more than they compute: without LLVM's optimiser they take two thirds of the time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
