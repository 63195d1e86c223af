"""The duration of the hot pure functions on the largest inputs, and a test that it grows linearly."""
