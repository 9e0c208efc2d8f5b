"""Statistics that are gathered piece by piece and merge exactly."""
