"""What was malformed is repaired, or asked for again, a bounded number of times."""
