"""Find the driver's files on the host and cache what was found."""
