"""Settings from files: `.mendgraph.toml` of a workspace, which is not trusted, and the user's own configuration."""
