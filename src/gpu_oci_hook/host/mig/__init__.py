"""MIG devices of the host."""
