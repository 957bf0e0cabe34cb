"""Child processes: supervisor, environment, captured output, limits, artifacts."""
