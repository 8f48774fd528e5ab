"""Load our modules from a few files instead of a hundred.

`gpu-oci-hook install` writes the files among the interpreter's compiled modules. They are trusted like them: a user who
can write there can change the code itself. The first one has the modules that every GPU container needs, and is used
only while none of their sources has changed. The hook's file has those that our prestart and precreate hooks need in
addition. The last one has the other modules that shim and hooks can need: an index, and the code of each module, which
is read when the module is loaded, if its source is unchanged. Without these files the interpreter loads the modules as
usual, and a start takes a few milliseconds longer.

Import budget: GPU container.
"""

from __future__ import annotations

import _imp  # built in, and loaded before anything else
import marshal
import os
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.files.read_regular import open_regular_file, read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    # Path of the source, whether it is a package, size, mtime in ns, code, whether every start imports it. Each module
    # stands behind those that it imports at its top.
    ModuleEntry = tuple[str, bool, int, int, CodeType, bool]
    # The same, but with the offset and size of the marshalled code behind the index, and its hash.
    IndexEntry = tuple[str, bool, int, int, tuple[int, int, bytes]]

PACKAGE = os.path.dirname(os.path.dirname(__file__))
_PREFIX = f"{PACKAGE}/__pycache__/code_bundle"
_SUFFIX = f"{sys.implementation.cache_tag}.data"
BUNDLE_PATH = f"{_PREFIX}.{_SUFFIX}"
HOOK_BUNDLE_PATH = f"{_PREFIX}_hook.{_SUFFIX}"
OTHER_BUNDLE_PATH = f"{_PREFIX}_other.{_SUFFIX}"
BUNDLE_STAMP = (VERSION, sys.hexversion)
_SIZE_LIMIT = 16 << 20
_HASH_KEY, HASH_SIZE = 0, 8
# The last file begins with the hash of the index and the size of the index.
INDEX_START = HASH_SIZE + 4
# What reading and decoding a damaged file raises.
_DAMAGE = (OSError, ValueError, TypeError, EOFError, AttributeError, KeyError, IndexError)


class BundleFinder:
    """A finder and loader of our modules, asked before the interpreter searches for files.

    Arguments:
        paths: the bundle files that are read as a whole.
    """

    __slots__ = ("_codes", "_entries", "_index", "_paths", "_spec_type")

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._entries: dict[str, ModuleEntry] | None = None
        self._index: dict[str, IndexEntry] | None = None
        self._codes: dict[str, CodeType] = {}  # of modules that are found and not loaded yet
        self._spec_type = type(sys.__spec__)  # importlib.machinery has this type too, and costs a millisecond

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module's spec: see `importlib.abc.MetaPathFinder`."""
        if fullname[:13] != "gpu_oci_hook.":
            return None
        if self._entries is None:
            self._entries = self._read_entries()
        entry = self._entries.get(fullname) or self._read_other_module(fullname)
        if entry is None:
            return None
        self._codes[fullname] = entry[4]
        spec = self._spec_type(fullname, self, origin=entry[0], is_package=entry[1])  # type: ignore[arg-type]
        spec.has_location = True
        spec.cached = BUNDLE_PATH  # else the interpreter works out for each module where its own copy would be
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(entry[0]))
        return spec

    def load_modules(self) -> None:
        """Load the modules that every start imports.

        The interpreter searches, locks and describes each module that it imports, which takes as long as running it.
        Here they are run one after the other, so an import statement in one of them finds the others loaded.
        """
        if self._entries is None:
            self._entries = self._read_entries()
        for name, (path, is_package, _, _, code, is_always_needed) in self._entries.items():
            if name in sys.modules or not is_always_needed:
                continue
            module = type(sys)(name)
            module.__file__ = path
            parent, _, leaf = name.rpartition(".")
            module.__package__ = parent
            if is_package:
                module.__package__, module.__path__ = name, [os.path.dirname(path)]
            sys.modules[name] = module
            try:
                exec(code, module.__dict__)  # noqa: S102 - as the interpreter's own loader does
            except BaseException:
                del sys.modules[name]
                raise
            setattr(sys.modules[parent], leaf, module)

    def _read_entries(self) -> dict[str, ModuleEntry]:
        entries: dict[str, ModuleEntry] = {}
        for path in self._paths:
            entries.update(_read_entries(path))
        return entries

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the interpreter create the module: see `importlib.abc.Loader`."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code: see `importlib.abc.Loader`."""
        exec(self._codes.pop(module.__name__), module.__dict__)  # noqa: S102 - as the interpreter's own loader does

    def _read_other_module(self, name: str) -> ModuleEntry | None:
        """Read a module from the last file; return None when it is not there, damaged, or its source has changed."""
        try:
            if self._index is not None and name not in self._index:
                return None
            fd = open_regular_file(OTHER_BUNDLE_PATH)  # not kept open: a start may have few descriptors
            try:
                if self._index is None:
                    self._index = {}
                    self._index = _read_index(fd)
                entry = self._index.get(name)
                if entry is None or not _is_unchanged(*entry[:4]):
                    return None
                offset, size, digest = entry[4]
                data = os.pread(fd, size, offset)
            finally:
                os.close(fd)
            if hash_data(data) != digest:
                return None
            code = marshal.loads(data)  # noqa: S302 - see the module's docstring
        except _DAMAGE:
            return None
        return (*entry[:4], code, False)


def use_code_bundle(*more_paths: str, load_modules: bool = False) -> None:
    """Load our modules from the bundle files from now on, as far as these are present, undamaged and fresh.

    Arguments:
        more_paths: files that are read as a whole, like the first one.
        load_modules: load those that every GPU container needs at once.
    """
    finder = sys.meta_path[0]
    if not isinstance(finder, BundleFinder):
        finder = BundleFinder(BUNDLE_PATH, *more_paths)
        sys.meta_path.insert(0, finder)
    if load_modules:
        finder.load_modules()


def _read_entries(path: str) -> dict[str, ModuleEntry]:
    """Read one file as a whole; return nothing when it is missing, damaged or stale."""
    try:
        data = memoryview(read_regular_file(path, _SIZE_LIMIT))
        if data[:HASH_SIZE] != hash_data(data[HASH_SIZE:]):
            return {}
        stamp, entries = marshal.loads(data[HASH_SIZE:])  # noqa: S302 - see the module's docstring
        if stamp == BUNDLE_STAMP and all(len(entry) == 6 and _is_unchanged(*entry[:4]) for entry in entries.values()):
            return entries  # type: ignore[no-any-return]
    except _DAMAGE:
        pass
    return {}


def _read_index(fd: int) -> dict[str, IndexEntry]:
    """Read the index of the last file; return nothing when it is damaged or of another build.

    Raises:
        OSError, ValueError, TypeError, EOFError: it cannot be read or decoded.
    """
    start = os.pread(fd, INDEX_START, 0)
    data = os.pread(fd, int.from_bytes(start[HASH_SIZE:], "little"), INDEX_START)
    if start[:HASH_SIZE] != hash_data(data):
        return {}
    stamp, index = marshal.loads(data)  # noqa: S302 - see the module's docstring
    return index if stamp == BUNDLE_STAMP else {}


def _is_unchanged(path: str, _is_package: bool, size: int, mtime: int) -> bool:
    """Return whether a module's source is the one that was compiled.

    Raises:
        OSError: it is gone.
    """
    status = os.stat(path)
    return status.st_size == size and status.st_mtime_ns == mtime


def hash_data(data: bytes | memoryview) -> bytes:
    """Return a hash that detects damaged data: marshal crashes on a flipped bit, or the interpreter runs it.

    It is the hash by which the interpreter compares sources with compiled code, and takes 0.05 ms.
    """
    return _imp.source_hash(_HASH_KEY, data)
