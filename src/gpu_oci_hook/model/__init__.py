"""Plain data that the rooms share."""
