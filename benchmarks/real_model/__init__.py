"""Complete tasks with a real small model, in mendgraph and in other harnesses, with the same endpoint and limits."""
