"""The database (SQLite or PostgreSQL), locks, and folders of runs."""
