"""The code of the modules that every GPU container needs, in one file: thirty files less to look for and to read.

`gpu-oci-hook install` writes it beside the interpreter's own compiled modules, whose trust it shares: who can write
there can write our code. It counts only while every source is as it was; without it the interpreter loads the modules
as it always does, and a start takes a millisecond or two longer. Cost rule: on the way of every GPU container.
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
_HASH_KEY, _HASH_SIZE = 0, 8  # what the hash begins with, and its size

# What a start with all capabilities loads; what only some containers need is not worth its reading.
BUNDLED_MODULES = (
    "config", "config.keys", "container", "container.image", "container.rootfs_edits", "container.spec_edits",
    "errors", "files.directory", "files.path_walk", "files.prepared_directory", "files.replace", "files.rootfs", "files.user_namespace", "formats",
    "formats.architectures", "formats.driver_version", "formats.fastjson", "formats.ldcache", "formats.oci",
    "formats.proc", "formats.program_names", "host", "host.device_nodes", "host.driver", "host.driver.inventory_cache", "host.gpus",
    "host.mig", "host.mig.capability_files", "host.optional", "host.optional.graphics", "host.root", "inject",
    "inject.gather", "inject.pipeline", "model", "model.edits", "model.file_edits", "model.machine", "model.optional_devices",
    "model.outcome", "model.plan_input", "model.request", "plan", "plan.build", "plan.devices", "plan.driver_params",
    "plan.files", "plan.libraries", "plan.layout", "plan.links", "plan.loader_files", "plan.mounting", "request", "request.capabilities",
    "request.environment", "request.read", "request.selectors",
)  # fmt: skip


class BundleFinder:
    """What the interpreter asks for modules before it looks for files.

    Arguments:
        entries: name of a module to its `ModuleEntry`.
    """

    __slots__ = ("_entries", "_spec_type")

    def __init__(self, entries: dict[str, ModuleEntry]) -> None:
        self._entries = entries
        self._spec_type = type(sys.__spec__)  # importlib.machinery has it too, and costs a millisecond

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        entry = self._entries.get(fullname)
        if entry is None:
            return None
        spec = self._spec_type(fullname, self, origin=entry[0], is_package=entry[1])  # type: ignore[arg-type]
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(entry[0]))
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """See `importlib.abc.Loader`: a module like any other."""

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        exec(self._entries[module.__name__][4], module.__dict__)  # noqa: S102 - as the interpreter's own loader does


def use_code_bundle() -> None:
    """Lets the interpreter take the modules from the file; does nothing when that is missing, damaged or stale."""
    try:
        data = read_regular_file(BUNDLE_PATH, _SIZE_LIMIT)
        if data[:_HASH_SIZE] != _hash_data(data[_HASH_SIZE:]):
            return
        stamp, entries = marshal.loads(data[_HASH_SIZE:])  # noqa: S302 - who can write here can write our code
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
    """What is to be in the file, from the sources as they are now.

    Raises:
        OSError: a source cannot be read.
    """
    entries: dict[str, ModuleEntry] = {}
    for name in BUNDLED_MODULES:
        path = f"{_PACKAGE}/{name.replace('.', '/')}"
        package = os.path.isdir(path)
        path += "/__init__.py" if package else ".py"
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            code: CodeType = compile(file.read(), path, "exec", dont_inherit=True, optimize=2)
        entries[f"gpu_oci_hook.{name}"] = (path, package, status.st_size, status.st_mtime_ns, code)
    data = marshal.dumps((BUNDLE_STAMP, entries))
    return _hash_data(data) + data


def _hash_data(data: bytes) -> bytes:
    """Tells damaged data: one bit that has turned makes `marshal` crash, or is run.

    The interpreter's own hash, by which it compares sources with compiled code; a twentieth of a millisecond.
    """
    return _imp.source_hash(_HASH_KEY, data)
