"""Many runs at once: how far one process and one machine carry, and what a number of runs a day needs."""
