"""The OCI runtime shim around the low-level runtime."""
