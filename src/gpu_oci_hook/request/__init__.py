"""Read what a container asks for."""
