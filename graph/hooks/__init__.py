"""The hooks of a workspace's `.claude/settings.json`: the file, and how they run around tool calls and turns."""
