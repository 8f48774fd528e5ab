"""File formats, pure: bytes in, data out; nothing here opens a file.

Cost rule: importing the package imports nothing; each format is one module that stands alone.
"""
