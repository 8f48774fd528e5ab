"""Run in place of the low-level OCI runtime."""
