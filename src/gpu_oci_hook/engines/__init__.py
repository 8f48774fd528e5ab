"""Set up container engines: their configuration files, what was changed in them, and how to take it back."""
