"""Edits of texts: exact edits, patches, replacing definitions by name. Pure."""
