"""Concurrent runs: the throughput of a process and of a machine, and the resources for a number of runs per day."""
