"""The write-ahead journal, recovery after a kill, and undo."""
