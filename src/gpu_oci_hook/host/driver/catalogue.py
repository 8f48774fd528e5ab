"""Load the catalogue of driver files (`catalogue.toml`): which file belongs to which capability.

What invalidates the parsed copy in __pycache__: another version of gpu-oci-hook or of Python, or another size or mtime
of the TOML file.

Import budget: cold.
"""

from __future__ import annotations

import marshal
import os
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.replace import replace_file

CATALOGUE_PATH = os.path.join(os.path.dirname(__file__), "catalogue.toml")
CATALOGUE_CAPABILITIES = ("", "utility", "compute", "video", "graphics", "display", "ngx")

_TEXT_KEYS = {"capability", "required", "why", "variable", "container"}
_TABLE_KEYS = {
    "library": ({"capability", "names"}, {"links", "opens", "required"}),
    "withheld": ({"why", "names"}, set[str]()),
    "expected": ({"capability", "names"}, set[str]()),
    "binary": ({"capability", "names"}, set[str]()),
    "socket": ({"capability", "paths", "container"}, set[str]()),
    "directory": ({"capability", "paths", "container"}, {"variable"}),
    "firmware": ({"capability", "names", "container"}, set[str]()),
    "config": ({"capability", "paths", "container"}, set[str]()),
}
_SEARCH_PATHS_TABLE = "search-paths"
_SEARCH_PATH_KEYS = ("caches", "libraries", "subdirectories", "binaries", "firmware")


class CatalogueEntry:
    """One table of the catalogue. A key that its kind does not have is empty.

    Arguments:
        kind: the table's name: "library", "binary", "socket", "directory", "firmware", "config".
        texts: its keys with a string.
        lists: its keys with a list of strings.
    """

    __slots__ = ("capability", "container", "kind", "links", "names", "opens", "paths", "required", "variable")

    def __init__(self, kind: str, texts: dict[str, str], lists: dict[str, tuple[str, ...]]) -> None:
        self.kind = kind
        self.capability = texts.get("capability", "")
        self.container = texts.get("container", "")
        self.required = texts.get("required", "")
        self.variable = texts.get("variable", "")
        self.names = lists.get("names", ())
        self.links = lists.get("links", ())
        self.opens = lists.get("opens", ())
        self.paths = lists.get("paths", ())


class Catalogue:
    """The whole catalogue.

    Attributes:
        libraries: stem ("libcuda.so") to its entry.
        withheld: stem to the reason why the library is never mounted.
        entries: all other entries, in the file's order.
        search_paths: "caches", "libraries", "subdirectories", "binaries", "firmware" to paths, in search order.
        required_libraries: (capability, SONAME) of each library without which its capability cannot work.
        expected_files: (capability, SONAME or file name) of each file without which it is of little use.
    """

    __slots__ = ("entries", "expected_files", "libraries", "required_libraries", "search_paths", "withheld")

    def __init__(self) -> None:
        self.libraries: dict[str, CatalogueEntry] = {}
        self.withheld: dict[str, str] = {}
        self.entries: list[CatalogueEntry] = []
        self.search_paths: dict[str, tuple[str, ...]] = {}
        self.required_libraries: list[tuple[str, str]] = []
        self.expected_files: list[tuple[str, str]] = []

    def entries_of_kind(self, kind: str) -> list[CatalogueEntry]:
        """Return the entries of one kind, in the file's order."""
        return [entry for entry in self.entries if entry.kind == kind]


def library_stem(name: str) -> str:
    """Return a library's name without the version after ".so", if it has one."""
    suffix_start = name.find(".so.")
    return name if suffix_start < 0 else name[: suffix_start + 3]


def load_catalogue(path: str = CATALOGUE_PATH) -> Catalogue:
    """Load the catalogue from a file.

    Raises:
        Fault: it cannot be read, is not valid TOML, or has an unknown table or key or a wrong value.
    """
    try:
        return _build_catalogue(_load_document(path))
    except Fault as fault:
        raise fault if fault.where == path else Fault(fault.what, where=f"{path}, {fault.where}") from None


def _load_document(path: str) -> dict[str, object]:
    """Return the file's tables, from the parsed copy while it is valid: parsing takes 4 ms."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise _make_read_fault(path, error) from None
    stamp = (VERSION, sys.hexversion, status.st_size, status.st_mtime_ns)
    directory, name = os.path.split(path)
    copy_path = f"{directory}/__pycache__/{name}.{sys.implementation.cache_tag}.data"
    tables = _read_parsed_copy(copy_path, stamp)
    if tables is not None:
        return tables
    import tomllib  # expensive to import, and not needed while the parsed copy is valid

    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise _make_read_fault(path, error) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Fault(f"the catalogue of driver files is not valid TOML: {error}", where=path) from None
    _write_parsed_copy(copy_path, stamp, tables)
    return tables


def _make_read_fault(path: str, error: OSError) -> Fault:
    return Fault(f"the catalogue of driver files cannot be read: {describe_os_error(error)}", where=path)


def _read_parsed_copy(copy_path: str, stamp: tuple[object, ...]) -> dict[str, object] | None:
    """Return the tables in a parsed copy, or None when it is missing, damaged, or has another stamp."""
    try:
        with open(copy_path, "rb") as file:
            copy_stamp, tables = marshal.load(file)  # noqa: S302 - a user who can write here can write our code
    except (OSError, ValueError, TypeError, EOFError):
        return None
    return tables if copy_stamp == stamp and isinstance(tables, dict) else None


def _write_parsed_copy(copy_path: str, stamp: tuple[object, ...], tables: dict[str, object]) -> None:
    """Write the parsed copy. A failure only costs the parsing next time."""
    try:
        replace_file(copy_path, marshal.dumps((stamp, tables)), mode=0o644)  # type: ignore[arg-type]
    except (Fault, ValueError):  # ValueError: a value that marshal cannot write (a date) and no table may have
        pass


def _build_catalogue(document: dict[str, object]) -> Catalogue:
    catalogue = Catalogue()
    for kind, tables in document.items():
        if kind == _SEARCH_PATHS_TABLE:
            catalogue.search_paths = {
                key: _require_text_list(value, f"{kind}.{key}") for key, value in _require_table(tables, kind).items()
            }
            continue
        if kind not in _TABLE_KEYS or not isinstance(tables, list):
            raise Fault(f"[[{kind}]] is not one of {', '.join(_TABLE_KEYS)}", where=kind)
        for number, table in enumerate(tables):
            _add_table(catalogue, kind, _require_table(table, kind), f"{kind} {number + 1}")
    for key in _SEARCH_PATH_KEYS:
        if key not in catalogue.search_paths:
            raise Fault("it is missing", where=f"{_SEARCH_PATHS_TABLE}.{key}")
    return catalogue


def _add_table(catalogue: Catalogue, kind: str, table: dict[str, object], where: str) -> None:
    """Add one table to the catalogue.

    Arguments:
        where: the table, for people: "library 3".
    """
    required, optional = _TABLE_KEYS[kind]
    for key in table:
        if key not in required and key not in optional:
            expected = ", ".join(sorted(required | optional))
            raise Fault(f'unknown key "{key}"; expected one of {expected}', where=where)
    for key in sorted(required):
        if key not in table:
            raise Fault(f'key "{key}" is missing', where=where)
    texts = {key: _require_text(value, f"{where}, {key}") for key, value in table.items() if key in _TEXT_KEYS}
    lists = {key: _require_text_list(value, f"{where}, {key}") for key, value in table.items() if key not in _TEXT_KEYS}
    if kind == "withheld":
        catalogue.withheld.update(dict.fromkeys(lists["names"], texts["why"]))
        return
    entry = CatalogueEntry(kind, texts, lists)
    if entry.capability not in CATALOGUE_CAPABILITIES:
        expected = ", ".join(f'"{capability}"' for capability in CATALOGUE_CAPABILITIES)
        raise Fault(f'"{entry.capability}" is not a capability; expected one of {expected}', where=where)
    if kind == "expected":
        catalogue.expected_files += [(entry.capability, name) for name in entry.names]
        return
    if kind != "library":
        catalogue.entries.append(entry)
        return
    for name in entry.names:
        if library_stem(name) != name:
            raise Fault(f'"{name}" has a version; write "{library_stem(name)}"', where=where)
        if name in catalogue.libraries:
            raise Fault(f"{name} is listed twice", where=where)
        catalogue.libraries[name] = entry
    if entry.required:
        catalogue.required_libraries.append((entry.capability, entry.required))


def _require_table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Fault("it is not a table", where=where)
    return value


def _require_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise Fault("it is not a string", where=where)
    return value


def _require_text_list(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Fault("it is not a list of strings", where=where)
    return tuple(value)
