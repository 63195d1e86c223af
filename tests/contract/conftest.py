"""Files that pytest does not collect here."""

collect_ignore = ["stores"]
"""Tests in there are data: `test_stored_formats.py` runs them in a copy."""
