"""The only package that touches files and processes: files, journal, store, processes, sandboxes and copies."""
