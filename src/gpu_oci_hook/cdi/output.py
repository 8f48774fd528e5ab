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
from gpu_oci_hook.config import strange
from gpu_oci_hook.errors import Fault, printable, words

FORMS = ("yaml", "json")

_MODE = 0o644  # rootless engines read it too (field report A3-06)
_LIMIT = 64 << 20
_LITTER = ".gpu-oci-hook-"
_LINKS = 40  # as the kernel: path_resolution(7)
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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
    directory, name = _split(path)
    try:
        above = os.open(directory, _DIRECTORY | os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return "nobody's"
    except OSError as error:
        raise Fault(f"its directory cannot be read: {words(error)}", where=path) from None
    try:
        data = _read(above, name, path)[0]
    finally:
        os.close(above)
    if not data:
        return "nobody's"
    if origin.ours(data):
        return "ours"
    return "cdi" if b"cdiVersion" in data else "other"


def write(path: str, data: bytes) -> str:
    """Puts the bytes in the file's place, mode 0644; what was done: "wrote", "unchanged" or "made readable".

    A file that has them already stays what it is, with its inode and time. Killed at any moment, the old file or the
    new one is there. Links are followed, owners kept. The directory is made if it alone is missing (/etc/cdi): a path
    with more that is missing is rather a mistake than a wish. All is done in one directory that is held open: who may
    swap directories or names on the way can at most keep us from writing.

    Raises:
        Fault: it cannot be written; what was there is as it was.
    """
    directory, name = _split(path)
    try:
        _make(directory, path)
        above = os.open(directory, _DIRECTORY)
        try:
            old, status = _read(above, name, path)
            if old == data and status is not None:
                return "unchanged" if stat.S_IMODE(status.st_mode) == _MODE else _open_up(above, name)
            _tidy(above, name)
            _replace(above, name, data, status)
        finally:
            os.close(above)
    except OSError as error:
        raise Fault(f"it cannot be written: {words(error, writing=True)}", where=path) from None
    return "wrote"


def remove(path: str) -> bool:
    """Removes a file, or the link that has its name; whether there was one.

    Raises:
        Fault: it cannot be removed.
    """
    directory, _, name = path.rpartition("/")
    try:
        place = _real(directory or ("/" if path.startswith("/") else "."))
        above = os.open(place, _DIRECTORY | os.O_PATH)
        try:
            os.unlink(name, dir_fd=above)
        finally:
            os.close(above)
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
    before = os.umask(0o022)
    try:
        os.mkdir(directory, 0o755)
    except FileExistsError:
        pass  # somebody was faster, or it is a file: then the next step says so
    finally:
        os.umask(before)


def _open_up(above: int, name: str) -> str:
    fd = os.open(name, _READ, dir_fd=above)
    try:
        os.fchmod(fd, _MODE)
    finally:
        os.close(fd)
    return "made readable"


def _tidy(above: int, name: str) -> None:
    """Removes what was left by one of us that was killed."""
    for entry in os.listdir(above):
        if entry.startswith(f".{name}{_LITTER}"):
            try:
                if time.time() - os.stat(entry, dir_fd=above, follow_symlinks=False).st_mtime > _STALE:
                    os.unlink(entry, dir_fd=above)
            except OSError:
                pass


def _replace(above: int, name: str, data: bytes, status: os.stat_result | None) -> None:
    fresh = f".{name}{_LITTER}{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(fresh, flags, 0o600, dir_fd=above)
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
        os.rename(fresh, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        try:
            os.unlink(fresh, dir_fd=above)
        except OSError:
            pass
        raise
    _sync(above)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has nothing to wait for
            raise


def _split(path: str) -> tuple[str, str]:
    """The directory and the name of the file that a path means, links followed.

    Raises:
        Fault: it can be no file's.
    """
    if not path or "\0" in path:
        raise Fault("a file's name is empty or has a NUL character", where=path)
    if path.endswith("/"):
        raise Fault("it names a directory, and a CDI file is to be written there", where=path)
    directory, name = os.path.split(_real(path))
    return directory, name or "."


def _real(path: str) -> str:
    """The path with its links followed; what is missing at the end stays as it is.

    As root a link that belongs to another user is not followed: in a directory like /tmp anybody can lay one, and the
    kernel's own protection (sysctl fs.protected_symlinks) ends with who reads the links himself.

    Raises:
        Fault: there is such a link, or links go round in a circle.
    """
    done: list[str] = []
    try:
        pending = (path if path.startswith("/") else f"{os.getcwd()}/{path}").split("/")[::-1]
    except OSError as error:
        raise Fault(f"the current directory is lost: {words(error)}", where=path) from None
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        here = "/" + "/".join([*done, part])
        try:
            status = os.lstat(here)
            target = os.readlink(here) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            target = None  # missing, or not to be looked at: who opens it hears the reason
        if target is None:
            done.append(part)
            continue
        links += 1
        if links > _LINKS:
            raise Fault("its links go round in a circle, and a CDI file is to be written there", where=path)
        if strange(status.st_uid):
            what = f"{here} is a link that belongs to user {status.st_uid} and is not followed while running as root"
            raise Fault(what, where=path, cure="Name the file itself")
        if target.startswith("/"):
            done.clear()
        pending += target.split("/")[::-1]
    return "/" + "/".join(done)


def _read(above: int, name: str, path: str) -> tuple[bytes | None, os.stat_result | None]:
    """The bytes of a regular file and its status, None when it is missing; never waits for a FIFO.

    Raises:
        Fault: it is no file, too large to be a CDI file, or cannot be read.
    """
    try:
        # Looked at before it is opened, since opening a device can have effects; and what is opened is looked at again.
        _refuse(os.stat(name, dir_fd=above, follow_symlinks=False), path)
        fd = os.open(name, _READ, dir_fd=above)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            _refuse(status, path)
            return file.read(_LIMIT + 1), status
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise Fault(f"the file that is there cannot be read: {words(error)}", where=path) from None


def _refuse(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Fault("it is a directory, and a CDI file is to be written there", where=path)
    if not stat.S_ISREG(status.st_mode):
        raise Fault("it is no regular file, and a CDI file is to be written there", where=path)
    if status.st_size > _LIMIT:
        raise Fault(f"the file that is there is larger than {_LIMIT >> 20} MiB: it is no CDI file", where=path)
