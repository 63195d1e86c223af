"""One reply from the model: prompt, window, budget, client, and the embedded local model."""
