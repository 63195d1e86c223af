"""Savers of checkpoints over LangGraph's own, for SQLite and PostgreSQL, and the store of runs."""
