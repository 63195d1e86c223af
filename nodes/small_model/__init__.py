"""What a run on a small model does beside what every run does: its answers are held against what happened."""
