"""Commands of a run: what they may start, see and change, and what they have changed."""
