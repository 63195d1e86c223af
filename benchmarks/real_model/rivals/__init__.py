"""Other harnesses on the same tasks, each in an environment of its own."""
