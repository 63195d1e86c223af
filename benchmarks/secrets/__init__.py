"""How many secrets the redactor finds."""
