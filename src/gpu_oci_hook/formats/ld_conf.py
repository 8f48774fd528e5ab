"""Parse /etc/ld.so.conf as `ldconfig` does: directories in their order, with the files that `include` names.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DEPTH = 16  # of files that include each other; glibc has no limit
# An image can have any pattern: these keep it from taking hours.
_MAX_LINES = 10000
_MAX_PATHS = 1000  # that one pattern matches, at each component


def list_ld_conf_directories(
    path: str, read_file: Callable[[str], str], list_names: Callable[[str], list[str]]
) -> list[str]:
    """Return the directories that a configuration names, in the order in which `ldconfig` searches them.

    Arguments:
        path: the file, such as /etc/ld.so.conf.
        read_file: returns a file's content, "" without one.
        list_names: returns the names in a directory, sorted as glob() sorts them.
    """
    directories: list[str] = []
    lines_left = _MAX_LINES

    def add_file(path: str, depth: int) -> None:
        nonlocal lines_left
        for line in read_file(path).split("\n"):
            lines_left -= 1
            if lines_left < 0 or depth > _MAX_DEPTH:
                return
            words = line.partition("#")[0].strip()
            keyword = words.split(None, 1)[0] if words else ""
            if keyword == "include" and words != keyword:
                for pattern in words.split()[1:]:
                    if not pattern.startswith("/"):
                        pattern = f"{path.rpartition('/')[0]}/{pattern}"
                    for included in expand_glob(pattern, list_names):
                        add_file(included, depth + 1)
            elif keyword and keyword.lower() != "hwcap":
                # ldconfig of glibc 2.36 cuts "=" and a type after a directory; that of 2.41 takes the line as it is.
                directories.append(words.partition("=")[0].rstrip().rstrip("/") or "/")

    add_file(path, 0)
    return list(dict.fromkeys(directories))


def expand_glob(pattern: str, list_names: Callable[[str], list[str]]) -> list[str]:
    """Return the paths that match a pattern with wildcards; a pattern without one is returned as it is."""
    paths = [""]
    for component in pattern.strip("/").split("/"):
        if not any(c in component for c in "*?["):
            paths = [f"{path}/{component}" for path in paths]
            continue
        matches: list[str] = []
        for path in paths:
            names = [name for name in list_names(path or "/") if component[0] == "." or name[0] != "."]
            matches += [f"{path}/{name}" for name in names if _matches(name, component)]
            if len(matches) >= _MAX_PATHS:
                break
        paths = matches[:_MAX_PATHS]
    return paths


def _matches(name: str, pattern: str) -> bool:
    head, star, tail = pattern.partition("*")
    if star and not any(c in head + tail for c in "*?["):
        return len(name) >= len(head + tail) and name.startswith(head) and name.endswith(tail)
    from fnmatch import fnmatchcase  # few files have another pattern than *.conf, and the import is expensive

    return fnmatchcase(name, pattern)
