"""What a person sees in a browser: pages of ours and of others, in headless Chromium."""
