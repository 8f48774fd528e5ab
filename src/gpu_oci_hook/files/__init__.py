"""Access files safely: bounded reads, atomic replacement, trust, and paths below a container root."""
