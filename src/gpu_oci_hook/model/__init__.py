"""Plain data that the rooms above share."""
