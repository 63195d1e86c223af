"""Programs in the sandbox, and what a program changed."""
