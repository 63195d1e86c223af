"""The embedded model: its weights, its server, and how they are fetched."""
