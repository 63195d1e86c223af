"""`mendgraph doctor`: what stands between this machine and a run that goes well, and what to do about it."""
