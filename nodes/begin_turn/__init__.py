"""A turn begins: the request is checked, counters are reset, named files are read ahead."""
