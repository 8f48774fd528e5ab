"""What a CDI file of ours tells about itself: that it is ours, the command that writes it anew, and what it lacks.

A file is made once and the machine goes on, so a later `cdi refresh` has to know by which options it was made. YAML
says it in comments at its head, and the hook's arguments say it in either form: engines of every age read both. A file
in JSON without a hook can say nothing, and is not known as ours. Cost rule: cold, but `is_ours` is also asked on the
way of a container whose CDI file does not fit: nothing but `os` and `stat` before it is needed.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook import state
from gpu_oci_hook.errors import Fault, printable
from gpu_oci_hook.formats.oci import items, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "# Written by gpu-oci-hook"
"""How the second line of a YAML file of ours begins; a JSON file is known by our hook alone."""
ANEW = "This writes it anew: "
INCOMPLETE = "incomplete: "
"""How comments begin; after the first comes the command, after the second what the machine did not have."""
ANNOTATION = "gpu-oci-hook/incomplete"
"""The annotation of a file that lacks nodes which the machine did not have."""

PROGRAM = "gpu-oci-hook"
_LIMIT = 64 << 20


def ours(data: bytes) -> bool:
    """Whether these are a file's bytes that we have written."""
    return MARK.encode() in data[:200] or (b"gpu-oci-hook" in data and b"create-container" in data)


def is_ours(path: str) -> bool:
    """Whether we have written a file; False for what cannot be read."""
    return ours(_read(path)[0])


def command(words: Iterable[str]) -> str:
    """The line that people copy: `gpu-oci-hook cdi` and these words, quoted for a shell, on one line."""
    import shlex

    return printable(shlex.join((PROGRAM, "cdi", *words)))


def words(path: str) -> tuple[list[str], bool]:
    """With which options a file of ours was made, and whether this user may believe that.

    A file that others may write is not believed: what it names as the configuration decides what runs as root.

    Returns:
        The words of the command after `gpu-oci-hook cdi refresh`, none where the file says nothing.

    Raises:
        Fault: what the file says is no command of ours.
    """
    data, trusted = _read(path)
    if not ours(data):
        return [], trusted
    told = next(_comments(data, ANEW), "") or next(_hooks(_parsed(data, path), "--made-by"), "")
    if not told:
        return [], trusted
    import shlex

    try:
        found = shlex.split(told)
    except ValueError:
        found = []
    if found[:2] != [PROGRAM, "cdi"] or found[2:3] not in (["refresh"], ["generate"]):
        raise Fault("the command that it names as its own is none", where=path, cure=anew(path))
    return found[3:], trusted


def lacking(data: object, path: str) -> str:
    """What a file that was written with --allow-incomplete lacks, in a sentence; "" for nothing, and for others' files.

    Arguments:
        data: the file as parsed.
    """
    said = member(data, "annotations", ANNOTATION)
    if isinstance(said, str):
        return said
    return next(_hooks(data, "--incomplete"), "") or "; ".join(_comments(_read(path)[0], INCOMPLETE))


def anew(path: str) -> str:
    """The cure for a file of ours whose command cannot be used."""
    return f"Write it with its options: gpu-oci-hook cdi generate --output {path}"


def _comments(data: bytes, begin: str) -> Iterator[str]:
    """What follows the beginning in the comments at the head of a file of ours."""
    lines = iter(data[: 1 << 20].split(b"\n"))
    if next(lines, b"") != b"---" or not next(lines, b"").startswith(MARK.encode()):
        return
    for line in lines:
        text = line.decode("utf-8", "replace")
        if not text.startswith("#"):
            return
        if text.startswith(f"# {begin}"):
            yield text[len(f"# {begin}") :]


def _hooks(data: object, flag: str) -> Iterator[str]:
    """The value of a flag of our hook in a file."""
    for hook in items(data, "containerEdits", "hooks"):
        args = items(hook, "args")
        if "create-container" in args and flag in args[:-1]:
            value = args[args.index(flag) + 1]
            if isinstance(value, str):
                yield value


def _parsed(data: bytes, path: str) -> object:
    from gpu_oci_hook.cdi import reading

    return reading.parse(data, path).data


def _read(path: str) -> tuple[bytes, bool]:
    """The bytes of a regular file, and whether nobody but this user may write it; none when it cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b"", False
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(_LIMIT), state.trusted(fd)
    except (OSError, ValueError):
        return b"", False
