"""CDI files: read them, resolve names from them, and recognise our own. Empty: a start pays for every import."""
