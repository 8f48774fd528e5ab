"""Load the modules that every GPU container needs from one file instead of fifty.

`gpu-oci-hook install` writes the file among the interpreter's compiled modules. It is trusted like them: a user who can
write there can change the code itself. It is used only while every source is unchanged. Without it the interpreter
loads the modules as usual, and a start takes one or two milliseconds longer.

Import budget: GPU container.
"""

from __future__ import annotations

import _imp  # built in, and loaded before anything else
import marshal
import os
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.files.read_regular import read_regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    # Path of the source, whether it is a package, size, mtime in ns, code.
    ModuleEntry = tuple[str, bool, int, int, CodeType]

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
BUNDLE_PATH = f"{_PACKAGE}/__pycache__/code_bundle.{sys.implementation.cache_tag}.data"
BUNDLE_STAMP = (VERSION, sys.hexversion)
_SIZE_LIMIT = 16 << 20
_HASH_KEY, _HASH_SIZE = 0, 8

# The modules of a start with all capabilities. Modules that only some containers need are not worth reading.
BUNDLED_MODULES = (
    "config", "config.keys", "container", "container.image", "container.rootfs_edits", "container.spec_edits",
    "errors", "files.directory", "files.path_walk", "files.prepared_directory", "files.replace", "files.rootfs",
    "files.user_namespace", "formats", "formats.architectures", "formats.driver_version", "formats.fastjson",
    "formats.ldcache", "formats.oci", "formats.proc", "formats.program_names", "host", "host.device_nodes",
    "host.driver", "host.driver.inventory_cache", "host.gpus", "host.mig", "host.mig.capability_files",
    "host.optional", "host.optional.graphics", "host.root", "inject", "inject.gather", "inject.pipeline", "model",
    "model.edits", "model.file_edits", "model.machine", "model.optional_devices", "model.outcome",
    "model.plan_input", "model.request", "plan", "plan.build", "plan.devices", "plan.driver_params", "plan.files",
    "plan.layout", "plan.library_mounts", "plan.links", "plan.loader_files", "plan.mounting", "request",
    "request.capabilities", "request.environment", "request.read", "request.selectors",
)  # fmt: skip


class BundleFinder:
    """A finder and loader of modules, asked before the interpreter searches for files.

    Arguments:
        entries: each module's `ModuleEntry` by its name.
    """

    __slots__ = ("_entries", "_spec_type")

    def __init__(self, entries: dict[str, ModuleEntry]) -> None:
        self._entries = entries
        self._spec_type = type(sys.__spec__)  # importlib.machinery has this type too, and costs a millisecond

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module's spec: see `importlib.abc.MetaPathFinder`."""
        entry = self._entries.get(fullname)
        if entry is None:
            return None
        spec = self._spec_type(fullname, self, origin=entry[0], is_package=entry[1])  # type: ignore[arg-type]
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(entry[0]))
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the interpreter create the module: see `importlib.abc.Loader`."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code: see `importlib.abc.Loader`."""
        exec(self._entries[module.__name__][4], module.__dict__)  # noqa: S102 - as the interpreter's own loader does


def use_code_bundle() -> None:
    """Load modules from the bundle from now on; do nothing when it is missing, damaged or stale."""
    try:
        data = read_regular_file(BUNDLE_PATH, _SIZE_LIMIT)
        if data[:_HASH_SIZE] != _hash_data(data[_HASH_SIZE:]):
            return
        stamp, entries = marshal.loads(data[_HASH_SIZE:])  # noqa: S302 - see the module's docstring
        if stamp != BUNDLE_STAMP:
            return
        for path, _, size, mtime, _ in entries.values():
            status = os.stat(path)
            if status.st_size != size or status.st_mtime_ns != mtime:
                return
    except (OSError, ValueError, TypeError, EOFError):
        return
    sys.meta_path.insert(0, BundleFinder(entries))


def build_code_bundle() -> bytes:
    """Build the content of the bundle from the current sources.

    Raises:
        OSError: a source cannot be read.
    """
    entries: dict[str, ModuleEntry] = {}
    for name in BUNDLED_MODULES:
        path = f"{_PACKAGE}/{name.replace('.', '/')}"
        is_package = os.path.isdir(path)
        path += "/__init__.py" if is_package else ".py"
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            code: CodeType = compile(file.read(), path, "exec", dont_inherit=True, optimize=2)
        entries[f"gpu_oci_hook.{name}"] = (path, is_package, status.st_size, status.st_mtime_ns, code)
    data = marshal.dumps((BUNDLE_STAMP, entries))
    return _hash_data(data) + data


def _hash_data(data: bytes) -> bytes:
    """Return a hash that detects damaged data: marshal crashes on a flipped bit, or the interpreter runs it.

    It is the hash by which the interpreter compares sources with compiled code, and takes 0.05 ms.
    """
    return _imp.source_hash(_HASH_KEY, data)
