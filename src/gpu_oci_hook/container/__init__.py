"""A container: its configuration and its root file system. Kept empty: the shim pays for every import."""
