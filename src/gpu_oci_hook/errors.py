"""The one error type: what failed, where, and what to do next.

Cost rule: on every path, so no imports beyond `os` and `errno` (both built in).
"""

from __future__ import annotations

import errno
import os


class Fault(Exception):
    """A failure that a person can act on.

    Arguments:
        what: what failed, as a sentence without its full stop.
        where: file, key, line or environment entry; empty when the sentence already says it.
        hint: what to do next, as a sentence without its full stop; empty when nothing can be done.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """One short line, whatever the parts hold: an image chooses some of the words.

        Each part is cut by itself, so that the cure is still there at the end: conmon keeps 8 KiB.
        """
        where, what = clip_text(make_printable(self.where), 400), clip_text(make_printable(self.what), 3000)
        text = f"{where}: {what}" if where else what
        if self.hint:
            text = f"{text}. {clip_text(make_printable(self.hint), 2000)}"
        return text


# Engines grep our text: docker turns "no such file or directory" into exit status 127, podman turns
# "permission denied" into 126 (ecosystem facts: moby's and libpod's error classification).
_REASONS = {
    errno.ENOENT: "it is missing",
    errno.EACCES: "this user may not read it",
    errno.EPERM: "the kernel refuses it to this user",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EISDIR: "it is a directory",
    errno.ELOOP: "its symbolic links go round in a circle or may not be followed",
    errno.EXDEV: "it lies in another mount",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "too many files are open",
    errno.ENOEXEC: "it is not a program that this kernel can run",
}


_WRITE_REASONS = {errno.ENOENT: "nothing can be made there", errno.EACCES: "this user may not write there"}


def describe_os_error(error: OSError | ValueError, *, writing: bool = False) -> str:
    """Return the reason of a failed file operation in words that no engine takes for a condition of its own.

    Arguments:
        error: an OSError, or the `UnusableFileError` of a file that is not read.
        writing: whether something was to be made or changed.
    """
    if not isinstance(error, OSError):
        return str(error)
    number = error.errno or 0
    return (writing and _WRITE_REASONS.get(number)) or _REASONS.get(number) or os.strerror(number).lower()


def make_printable(text: str) -> str:
    """The text on one line, with control characters and lone surrogates escaped.

    Names come from images; a newline in one would break the engine's one-line log contract, an escape
    sequence would reach an operator's terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clip_text(text: str, limit: int = 200) -> str:
    """The text, or its first `limit` characters and how many more there are: images choose some of the words."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def find_close_match(word: str, choices: tuple[str, ...] | list[str], *, cutoff: float = 0.6) -> str:
    """The valid word that a mistyped one most likely meant, or "" when none is near.

    Arguments:
        cutoff: how alike the two have to be, 1 for equal.
    """
    import difflib  # only after a mistake

    near = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=cutoff)
    return near[0] if near else ""
