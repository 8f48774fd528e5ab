"""The catalogue of driver files (`catalogue.toml`) as objects: what belongs to which capability.

Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import marshal
import os
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, describe_os_error

CATALOGUE_PATH = os.path.join(os.path.dirname(__file__), "catalogue.toml")
CATALOGUE_CAPABILITIES = ("", "utility", "compute", "video", "graphics", "display", "ngx")

_TEXT_KEYS = {"capability", "required", "why", "variable", "container"}
_TABLE_KEYS = {
    "library": ({"capability", "names"}, {"links", "opens", "required"}),
    "withheld": ({"why", "names"}, set[str]()),
    "binary": ({"capability", "names"}, set[str]()),
    "socket": ({"capability", "paths", "container"}, set[str]()),
    "directory": ({"capability", "paths", "container"}, {"variable"}),
    "firmware": ({"capability", "names", "container"}, set[str]()),
    "config": ({"capability", "paths", "container"}, set[str]()),
}
_SEARCH_PATH_KEYS = ("caches", "libraries", "subdirectories", "binaries", "firmware")


class CatalogueEntry:
    """One table of the catalogue; what its kind does not have is empty.

    Arguments:
        kind: the table's name: "library", "binary", "socket", "directory", "firmware", "config".
        texts: its strings. lists: its lists.
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
    """All of it.

    Attributes:
        libraries: stem ("libcuda.so") to its entry. withheld: stem to the reason.
        entries: all other entries, in the file's order.
        search_paths: "caches", "libraries", "subdirectories", "binaries", "firmware" to paths, in their order.
        required_libraries: (capability, SONAME) of all that a capability cannot do without.
    """

    __slots__ = ("entries", "libraries", "required_libraries", "search_paths", "withheld")

    def __init__(self) -> None:
        self.libraries: dict[str, CatalogueEntry] = {}
        self.withheld: dict[str, str] = {}
        self.entries: list[CatalogueEntry] = []
        self.search_paths: dict[str, tuple[str, ...]] = {}
        self.required_libraries: list[tuple[str, str]] = []

    def entries_of_kind(self, kind: str) -> list[CatalogueEntry]:
        """The entries of one kind, in the file's order."""
        return [entry for entry in self.entries if entry.kind == kind]


def library_stem(name: str) -> str:
    """A library's name up to and including ".so", without a version; all of it when there is no ".so"."""
    at = name.find(".so.")
    return name if at < 0 else name[: at + 3]


def load_catalogue(path: str = CATALOGUE_PATH) -> Catalogue:
    """The catalogue in a file.

    Raises:
        Fault: it cannot be read, is no TOML, or has a table or key that means nothing.
    """
    try:
        return _build_catalogue(_load_document(path))
    except Fault as fault:
        raise fault if fault.where == path else Fault(fault.what, where=f"{path}, {fault.where}") from None


def _load_document(path: str) -> dict[str, object]:
    """The file's tables; kept beside it as the interpreter keeps its compiled modules, since parsing takes 4 ms."""
    try:
        status = os.stat(path)
        stamp = (VERSION, sys.hexversion, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise Fault(f"the catalogue of driver files cannot be read: {describe_os_error(error)}", where=path) from None
    head, name = os.path.split(path)
    compiled = f"{head}/__pycache__/{name}.{sys.implementation.cache_tag}.data"
    try:
        with open(compiled, "rb") as file:
            known, data = marshal.load(file)  # noqa: S302 - who can write here can write our code
        if known == stamp and isinstance(data, dict):
            return data
    except (OSError, ValueError, TypeError, EOFError):
        pass
    import tomllib

    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise Fault(f"the catalogue of driver files cannot be read: {describe_os_error(error)}", where=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Fault(f"the catalogue of driver files is no TOML: {error}", where=path) from None
    fresh = f"{compiled}.{os.getpid()}"
    try:
        with open(fresh, "xb") as file:
            marshal.dump((stamp, data), file)
        os.replace(fresh, compiled)
    except (OSError, ValueError):  # a value that marshal cannot say (a date) means nothing to us either
        try:
            os.unlink(fresh)
        except OSError:
            pass
    return data


def _build_catalogue(data: dict[str, object]) -> Catalogue:
    catalogue = Catalogue()
    for kind, tables in data.items():
        if kind == "places":
            catalogue.search_paths = {
                key: _require_text_list(value, f"places.{key}") for key, value in _require_table(tables, kind).items()
            }
            continue
        if kind not in _TABLE_KEYS or not isinstance(tables, list):
            raise Fault(f"[[{kind}]] is none of {', '.join(_TABLE_KEYS)}", where=kind)
        for number, table in enumerate(tables):
            _add_table(catalogue, kind, _require_table(table, kind), f"{kind} {number + 1}")
    for name in _SEARCH_PATH_KEYS:
        if name not in catalogue.search_paths:
            raise Fault("it is missing", where=f"places.{name}")
    return catalogue


def _add_table(catalogue: Catalogue, kind: str, table: dict[str, object], where: str) -> None:
    needed, optional = _TABLE_KEYS[kind]
    for key in table:
        if key not in needed and key not in optional:
            raise Fault(f'key "{key}" means nothing here', where=where)
    for key in sorted(needed):
        if key not in table:
            raise Fault(f'key "{key}" is missing', where=where)
    texts = {key: _require_text(value, f"{where}, {key}") for key, value in table.items() if key in _TEXT_KEYS}
    lists = {key: _require_text_list(value, f"{where}, {key}") for key, value in table.items() if key not in _TEXT_KEYS}
    if kind == "withheld":
        catalogue.withheld.update(dict.fromkeys(lists["names"], texts["why"]))
        return
    entry = CatalogueEntry(kind, texts, lists)
    if entry.capability not in CATALOGUE_CAPABILITIES:
        raise Fault(f'"{entry.capability}" is no capability', where=where)
    if kind != "library":
        catalogue.entries.append(entry)
        return
    for name in entry.names:
        if name in catalogue.libraries:
            raise Fault(f"{name} is listed twice", where=where)
        catalogue.libraries[name] = entry
    if entry.required:
        catalogue.required_libraries.append((entry.capability, entry.required))


def _require_table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Fault("it is no table", where=where)
    return value


def _require_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise Fault("it is no text", where=where)
    return value


def _require_text_list(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Fault("it is no list of texts", where=where)
    return tuple(value)
