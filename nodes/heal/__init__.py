"""Healing: a malformed reply is repaired, or asked for again a bounded number of times."""
