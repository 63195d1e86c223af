"""Runs of the machine: `run_task`, sessions, resume, undo, fork, events and results."""
