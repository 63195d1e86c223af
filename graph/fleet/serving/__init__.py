"""The machine behind an Agent-Protocol server, for several users: who they are, and what each of them may do."""
