"""Copies of workspaces for many runs; only `graph/fleet` and `graph/cassettes` import it."""
