"""What a person sees in a browser: our pages and pages of others, in headless Chromium."""
