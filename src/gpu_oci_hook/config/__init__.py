"""The configuration file: its keys, loading and checking."""
