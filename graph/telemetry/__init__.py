"""What OpenTelemetry is told of a run: spans and metrics after its conventions for generative AI."""
