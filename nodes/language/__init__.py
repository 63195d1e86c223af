"""How agent and model talk: what a reply means, and how results go back."""
