"""Real commits, reproduced by a scripted model without mistakes: `make commits ARGS="REPOSITORY ..."`."""
