"""A turn begins: the request is checked, channels are reset, and named files are read."""
