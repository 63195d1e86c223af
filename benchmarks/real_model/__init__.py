"""Whole tasks with a real, small model: ours and other harnesses, on the same endpoint and within the same limits."""
