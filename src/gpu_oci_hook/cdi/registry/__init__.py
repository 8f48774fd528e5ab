"""Find and resolve the CDI files of a host, and explain failures."""
