"""File formats, pure: bytes in, data out."""
