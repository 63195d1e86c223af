"""Recorded conversations with a model: the file, the player, the recorder, and the pytest plugin."""
