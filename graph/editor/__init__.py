"""Sessions for an editor, over the Agent Client Protocol."""
