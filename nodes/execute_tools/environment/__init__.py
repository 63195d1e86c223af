"""Where effects live: the workspace by handle, atomic writes, processes, deadlines."""
