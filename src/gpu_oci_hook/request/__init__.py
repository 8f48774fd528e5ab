"""Read what a container requests."""
