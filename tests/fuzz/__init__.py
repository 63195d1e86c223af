"""Random but plausible input for everything that reads what others wrote; `run.py` does it for a chosen time."""
