"""What OpenTelemetry is told of a run: spans after its conventions for generative AI."""
