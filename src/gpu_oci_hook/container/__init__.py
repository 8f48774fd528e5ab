"""A container's config.json and its root file system."""
