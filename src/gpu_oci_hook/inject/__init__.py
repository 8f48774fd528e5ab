"""From a container's config.json to an applied plan."""
