"""Decide what goes into a container and what is withheld, each with its reason. No I/O of its own."""
