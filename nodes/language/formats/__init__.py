"""The formats in which models write tool calls as text: one class or one row of a class for each."""
