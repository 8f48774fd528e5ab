"""One CDI specification file: read it and check it."""
