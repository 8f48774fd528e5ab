"""The one safe-file layer: bounded reads, atomic replacement, trust, and paths below a container root."""
