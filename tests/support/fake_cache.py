"""A cache in a dict, in place of the one below /run, that a test can look into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FakeCache:
    """A cache that counts its writes and locks.

    Arguments:
        lockable: False makes a lock an error, for what must never wait.
    """

    def __init__(self, *, lockable: bool = True) -> None:
        self.blobs: dict[str, bytes] = {}
        self.lockable = lockable
        self.puts = 0
        self.locks = 0

    def get(self, name: str) -> bytes | None:
        """Return what was put under this name."""
        return self.blobs.get(name)

    def put(self, name: str, data: bytes) -> None:
        """Keep a blob."""
        self.puts += 1
        self.blobs[name] = data

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Lock nothing, but count."""
        assert self.lockable, "nothing may wait for this cache"
        self.locks += 1
        yield
