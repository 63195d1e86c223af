"""The workspace, reached by directory handles: paths, reads, atomic changes."""
