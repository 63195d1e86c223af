"""How long the hot pure functions take on the largest inputs, and that it grows no faster than the input."""
