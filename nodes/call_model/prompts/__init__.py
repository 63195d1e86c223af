"""What a model is shown: prompts, protocols, and the messages of a conversation."""
