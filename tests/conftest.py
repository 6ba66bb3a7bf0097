"""Settings of all tests."""

import os

# The tests compile far more than they compute: without LLVM's optimiser they take two thirds of the time. A level that is set
# already stays.
LEVEL = "--xla_backend_optimization_level="
if LEVEL not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {LEVEL}0".strip()
