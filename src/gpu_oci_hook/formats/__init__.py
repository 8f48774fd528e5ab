"""Parse and write file formats: bytes in, data out. No module here opens a file."""
