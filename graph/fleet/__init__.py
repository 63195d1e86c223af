"""Many runs: batches on threads, processes and Ray, and serving. The machine does not know it."""
