"""Runs of the embedded model, recorded once and replayed in each test run: the first tests to read.

`table.py` lists them, `../../cassettes/` holds what the model said, `make record` asks it again.
"""
