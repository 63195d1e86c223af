"""What a step costs beside its model, measured against other ways to write an agent."""
