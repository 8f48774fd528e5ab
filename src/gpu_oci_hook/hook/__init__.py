"""OCI hooks referenced by CDI files."""
