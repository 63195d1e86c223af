"""What models read and write: messages, tool calls, results, and the text that people see."""
