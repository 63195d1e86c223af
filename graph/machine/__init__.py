"""The machine: its state, its transitions, and what its nodes are bound to."""
