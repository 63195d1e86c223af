"""Programs as child processes, their limits, and git."""
