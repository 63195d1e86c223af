"""Reports runs to OpenTelemetry, as spans by its conventions for generative AI."""
