"""Compiling programs for accelerators that need not be there, and counting what they consist of."""
