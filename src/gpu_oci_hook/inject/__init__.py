"""From config.json to an applied plan."""
