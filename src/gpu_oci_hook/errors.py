"""Define the one error type: what failed, where, and what to do next.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os

_MAX_WHERE, _MAX_WHAT, _MAX_HINT = 400, 3000, 2000


class Fault(Exception):
    """A failure that a person can act on.

    Arguments:
        what: what failed, as a sentence without its full stop.
        where: the file, key, line or environment entry; "" when the sentence names it.
        hint: what to do next, as a sentence without its full stop; "" when nothing can be done.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return one printable line, whatever the parts contain: some of the text comes from images.

        Each part is clipped separately, so that the hint is always included: conmon keeps 8 KiB.
        """
        where, what = clip_text(make_printable(self.where), _MAX_WHERE), clip_text(make_printable(self.what), _MAX_WHAT)
        text = f"{where}: {what}" if where else what
        if self.hint:
            text = f"{text}. {clip_text(make_printable(self.hint), _MAX_HINT)}"
        return text


# Not the errno's own text: docker and podman search a runtime's message for "no such file or directory" and
# "permission denied", and change the exit status for them (facts: engine-status-from-text).
_REASONS = {
    errno.ENOENT: "it is missing",
    errno.EACCES: "this user may not read it",
    errno.EPERM: "the kernel refuses it to this user",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EISDIR: "it is a directory",
    errno.ELOOP: "its symbolic links go round in a circle or may not be followed",
    errno.EXDEV: "it is in another mount",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "too many files are open",
    errno.EBADF: "it is closed",
    errno.ENOEXEC: "it is not a program that this kernel can run",
}
_WRITE_REASONS = {errno.ENOENT: "no file can be created there", errno.EACCES: "this user may not write there"}


def describe_os_error(error: OSError | ValueError, *, writing: bool = False) -> str:
    """Return the reason of a failed file operation, in words that no engine takes for a condition of its own.

    Arguments:
        error: an OSError, or the `UnusableFileError` of a file that is not read.
        writing: whether something was to be created or changed.
    """
    if not isinstance(error, OSError):
        return str(error)
    number = error.errno or 0
    return (writing and _WRITE_REASONS.get(number)) or _REASONS.get(number) or os.strerror(number).lower()


def make_printable(text: str) -> str:
    """Return the text on one line, with control characters and lone surrogates escaped.

    Names come from images. A newline in one would break the one-line contract of the engines' logs, and an escape
    sequence would reach an operator's terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clip_text(text: str, limit: int = 200) -> str:
    """Return the text, or its first `limit` characters and the number of those left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def find_close_match(value: str, choices: tuple[str, ...] | list[str], *, cutoff: float = 0.6) -> str:
    """Return the valid value that a mistyped one most likely means; "" when none is similar.

    Arguments:
        cutoff: the least similarity, 1 for equal.
    """
    import difflib  # only after a mistake

    matches = difflib.get_close_matches(value.lower(), choices, n=1, cutoff=cutoff)
    return matches[0] if matches else ""
