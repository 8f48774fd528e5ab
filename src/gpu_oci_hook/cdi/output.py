"""CDI files written: the same text for the same content, and a file in its place whole or not at all.

The YAML is our own writer's, forty lines for what a CDI file can hold: PyYAML's would take longer than everything else
for a machine with many MIG devices, and its text differs between releases and between its two writers. Every text
that is not plainly a word or a path is quoted, so that readers of YAML 1.1 do not take "0" for a number, "0:1" for
sixty-one, "no" for false. Cost rule: cold.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator

from gpu_oci_hook.cdi import origin
from gpu_oci_hook.cdi.content import Edits
from gpu_oci_hook.errors import Fault, printable, words

FORMS = ("yaml", "json")

_MODE = 0o644  # rootless engines read it too (field report A3-06)
_LIMIT = 64 << 20
_LITTER = ".gpu-oci-hook-"
_STALE = 60.0  # seconds after which a temporary file belongs to nobody any more

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./=+-]*", re.ASCII)
# YAML 1.1's other words for true, false and nothing.
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_WIDTH = 100
# What JSON lets stand as it is and YAML, by which engines read JSON too, does not, or takes for a line's end.
_FORBIDDEN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def dump(spec: Edits, form: str, comments: tuple[str, ...] = ()) -> bytes:
    """The file's bytes.

    Arguments:
        form: of FORMS. comments: lines for people, after our mark (`origin` knows some again); JSON has none.

    Raises:
        Fault: a path of the host's is no UTF-8, which no CDI file can say.
    """
    if form == "json":
        text = _FORBIDDEN.sub(lambda hit: _escape(hit[0]), json.dumps(spec, indent=2, ensure_ascii=False)) + "\n"
    else:
        head = [origin.MARK, *[f"# {printable(comment)}" for comment in comments]]
        text = "\n".join(["---", *head, *_lines(spec)]) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        odd = error.object[max(0, error.start - 80) : error.end].rpartition("\n")[2]
        raise Fault(f"a path has bytes that are no UTF-8, and no CDI file can name it: {odd}") from None


def _lines(value: Edits | list[object], indent: str = "") -> Iterator[str]:
    """The lines of an object or a list that is not empty."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", entry, indent + ("" if isinstance(entry, list) else "  "))
        return
    for entry in value:
        if isinstance(entry, dict | list) and entry:
            first, *rest = _lines(entry, indent + "  ")
            yield f"{indent}- {first[len(indent) + 2 :]}"
            yield from rest
        else:
            yield f"{indent}- {_scalar(entry)}"


def _entry(head: str, entry: object, indent: str) -> Iterator[str]:
    if not isinstance(entry, dict | list) or not entry:
        yield f"{head} {_scalar(entry)}"
        return
    if isinstance(entry, list) and all(isinstance(one, str | int) for one in entry):
        flow = f"{head} [{', '.join(_scalar(one) for one in entry)}]"
        if len(flow) <= _WIDTH:
            yield flow
            return
    yield head
    yield from _lines(entry, indent)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        if not quoted.isprintable():
            # JSON's escapes for what lies beyond 16 bits would be two characters in YAML.
            quoted = "".join(c if c.isprintable() or "\ud800" <= c <= "\udfff" else _escape(c) for c in quoted)
        return f'"{quoted}"'
    return json.dumps(value)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def form_of(path: str, wanted: str) -> tuple[str, str]:
    """The form for a path, and a warning or "".

    Arguments:
        wanted: of FORMS; "" lets the suffix decide, and yaml where that says nothing.
    """
    suffix = path.rpartition("/")[2].rpartition(".")[2]
    if suffix not in FORMS and path:
        return wanted or "yaml", f"{path}: engines read files that end in .yaml or .json, and no others"
    form = wanted or (suffix if path else "yaml")
    if path and form != suffix:
        return form, f"{path}: it gets {form.upper()} under a name for {suffix.upper()}"
    return form, ""


def whose(path: str) -> str:
    """Whose file lies there: "nobody's" (none, or an empty one), "ours", "cdi" (another CDI file), or "other".

    Raises:
        Fault: it is no file, or cannot be read.
    """
    data = _read(_real(path), path)
    if not data:
        return "nobody's"
    if origin.ours(data):
        return "ours"
    return "cdi" if b"cdiVersion" in data else "other"


def write(path: str, data: bytes) -> str:
    """Puts the bytes in the file's place, mode 0644; what was done: "wrote", "unchanged" or "made readable".

    A file that has them already stays what it is, with its inode and time. Killed at any moment, the old file or the
    new one is there. Links are followed, owners kept. The directory is made if it alone is missing (/etc/cdi): a path
    with more that is missing is rather a mistake than a wish.

    Raises:
        Fault: it cannot be written; what was there is as it was.
    """
    real = _real(path)
    old = _read(real, path)
    try:
        status = os.stat(real) if old is not None else None
        if status is not None and old == data:
            if stat.S_IMODE(status.st_mode) == _MODE:
                return "unchanged"
            os.chmod(real, _MODE)
            return "made readable"
        directory, name = os.path.split(real)
        _make(directory, path)
        _tidy(directory, name)
        _replace(directory, name, data, status)
    except OSError as error:
        raise Fault(f"it cannot be written: {words(error, writing=True)}", where=path) from None
    return "wrote"


def remove(path: str) -> bool:
    """Removes a file; whether there was one.

    Raises:
        Fault: it cannot be removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Fault(f"it cannot be removed: {words(error, writing=True)}", where=path) from None
    return True


def _make(directory: str, path: str) -> None:
    """A directory that every user can look into, whatever the umask says.

    Raises:
        Fault: the one above it is missing as well.
    """
    if os.path.isdir(directory):
        return
    above = os.path.dirname(directory)
    if not os.path.lexists(above):
        raise Fault(f"there is no directory {above}", where=path, cure=f"Make it first: mkdir -p {directory}")
    try:
        os.mkdir(directory)
        os.chmod(directory, 0o755)  # noqa: S103  every user may look
    except FileExistsError:
        pass  # somebody was faster, or it is a file: then the next step says so


def _tidy(directory: str, name: str) -> None:
    """Removes what was left by one of us that was killed."""
    for entry in os.scandir(directory):
        if entry.name.startswith(f".{name}{_LITTER}"):
            try:
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE:
                    os.unlink(entry.path)
            except OSError:
                pass


def _replace(directory: str, name: str, data: bytes, status: os.stat_result | None) -> None:
    fresh = f"{directory}/.{name}{_LITTER}{os.getpid()}-{os.urandom(4).hex()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if status is not None and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, status.st_uid, status.st_gid)
            os.fchmod(fd, _MODE)
            _sync(fd)
        finally:
            os.close(fd)
        os.rename(fresh, f"{directory}/{name}")
    except BaseException:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise
    above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(above)
    finally:
        os.close(above)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has nothing to wait for
            raise


def _real(path: str) -> str:
    """The path with its links followed.

    Raises:
        Fault: it is none.
    """
    if not path or "\0" in path:
        raise Fault("a file's name is empty or has a NUL character", where=path)
    return os.path.realpath(path)


def _read(real: str, path: str) -> bytes | None:
    """The bytes of a regular file, None when it is missing; never waits for a FIFO.

    Raises:
        Fault: it is no file, too large to be a CDI file, or cannot be read.
    """
    try:
        status = os.lstat(real)
        if stat.S_ISDIR(status.st_mode):
            raise Fault("it is a directory, and a CDI file is to be written there", where=path)
        if not stat.S_ISREG(status.st_mode):
            raise Fault("it is no regular file, and a CDI file is to be written there", where=path)
        if status.st_size > _LIMIT:
            raise Fault(f"the file that is there is larger than {_LIMIT >> 20} MiB: it is no CDI file", where=path)
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Fault(f"the file that is there cannot be read: {words(error)}", where=path) from None
