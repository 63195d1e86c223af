"""The machine, and the ways to run it: start with `machine/state.py`, `machine/routes.py` and `machine/build.py`."""
