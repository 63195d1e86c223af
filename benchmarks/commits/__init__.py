"""Real commits, made again by a scripted model that makes no mistake: `make commits ARGS="REPOSITORY ..."`."""
