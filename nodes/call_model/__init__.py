"""One reply from the model: prompt, window, budget, retries, and the embedded local model."""
