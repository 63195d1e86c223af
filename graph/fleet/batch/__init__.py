"""Many tasks, each on a copy of its own of its workspace: `mendgraph batch` and `run_batch`."""
