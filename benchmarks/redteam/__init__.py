"""What a harness is worth when its model turns against it: an obedient model, and what it gets done."""
