"""Recognise driver version numbers, and order them.

Import budget: GPU container.
"""

from __future__ import annotations


def is_driver_version(text: str) -> bool:
    """Tell whether text is a driver version: NNN.NN or NNN.NN.NN. "1.1" (Tegra, WSL, stub libraries) is not."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not text.isascii():
        return False
    return all(part.isdigit() and len(part) <= 4 for part in parts) and len(parts[0]) == 3


def make_version_key(text: str) -> tuple[int, ...]:
    """Return the sort key of a version that `is_driver_version` accepts."""
    return tuple(int(part) for part in text.split("."))
