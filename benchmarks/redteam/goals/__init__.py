"""The injected goals as data, two families in a file."""
