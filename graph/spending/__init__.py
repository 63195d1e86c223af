"""Budgets over runs and processes: the spending book, one table in two dialects."""
