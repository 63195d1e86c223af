"""Every format in which a model writes a tool call as text: one class or one row for each, and one table of them."""
