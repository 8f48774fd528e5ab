"""Build the files from which the shim and our hooks load their modules: see `files.code_bundle`.

Import budget: cold.
"""

from __future__ import annotations

import ast
import marshal
import os
from typing import TYPE_CHECKING

from gpu_oci_hook.files.code_bundle import (
    BUNDLE_PATH,
    BUNDLE_STAMP,
    HASH_SIZE,
    HOOK_BUNDLE_PATH,
    INDEX_START,
    OTHER_BUNDLE_PATH,
    PACKAGE,
    BundleFinder,
    hash_data,
)

if TYPE_CHECKING:
    from types import CodeType

    from gpu_oci_hook.files.code_bundle import IndexEntry, ModuleEntry

# The modules of a start with all capabilities.
BUNDLED_MODULES = (
    "config", "config.keys", "container", "container.image", "container.injection_record", "container.rootfs_edits",
    "container.spec_edits", "errors", "files.directory", "files.path_walk", "files.prepared_directory",
    "files.replace", "files.rootfs", "files.user_namespace", "formats",
    "formats.architectures", "formats.driver_version", "formats.fastjson",
    "formats.ldcache", "formats.oci", "formats.proc", "formats.program_names", "host", "host.device_nodes",
    "host.driver", "host.driver.inventory_cache", "host.gpus", "host.mig", "host.mig.capability_files",
    "host.optional", "host.optional.graphics", "host.root", "inject", "inject.device_links", "inject.gather",
    "inject.optional_items", "inject.pipeline", "model", "model.edits", "model.file_edits", "model.machine",
    "model.optional_devices", "model.outcome", "model.plan_input", "model.request", "plan", "plan.build",
    "plan.devices", "plan.driver_params", "plan.files",
    "plan.layout", "plan.library_mounts", "plan.links", "plan.loader_files", "plan.mounting", "request",
    "request.capabilities", "request.environment", "request.read", "request.selectors",
)  # fmt: skip

# In addition, those of a prestart or precreate hook for such a container.
HOOK_MODULES = (
    "files.mounts", "files.trust", "hook.called_container", "hook.cdi_hook", "hook.hook_config",
    "hook.precreate_hook", "hook.prestart_hook", "live", "live.container_editor", "live.device_cgroup",
    "live.device_list", "live.mount_api", "live.namespace_process", "plan.live_edits", "reporting",
    "reporting.failure",
)  # fmt: skip

# The module that every start of a GPU container imports, and with it what it imports at its top.
_START_MODULE = "inject.pipeline"
# Rooms that the shim and our hooks never enter.
_UNUSED_ROOMS = ("cli", "generate", "simulate")


def build_code_bundles() -> dict[str, bytes]:
    """Build the content of each bundle file from the current sources, by its path.

    Raises:
        OSError: a source cannot be read.
    """
    modules = {name: _compile_module(name) for name in _list_modules("")}
    always_needed = _sort_by_imports((_START_MODULE,))
    bundles = {}
    for path, names in ((BUNDLE_PATH, BUNDLED_MODULES), (HOOK_BUNDLE_PATH, HOOK_MODULES)):
        entries: dict[str, ModuleEntry] = {}
        for name in _sort_by_imports(names):
            if name in names:  # the others are loaded before the file is read, or are in the first file
                entries[f"gpu_oci_hook.{name}"] = (*modules.pop(name)[:5], name in always_needed)
        data = marshal.dumps((BUNDLE_STAMP, entries))
        bundles[path] = hash_data(data) + data
    return {**bundles, OTHER_BUNDLE_PATH: _build_other_bundle(modules)}


def are_code_bundles_current() -> bool:
    """Tell whether the bundle files have every module as its source is now."""
    finder = BundleFinder(BUNDLE_PATH, HOOK_BUNDLE_PATH)
    return all(finder.find_spec(f"gpu_oci_hook.{name}") is not None for name in _list_modules(""))


def _build_other_bundle(modules: dict[str, ModuleEntry]) -> bytes:
    """Build the last file: the hash and size of its index, the index, and the marshalled code of each module."""
    blobs = [marshal.dumps(entry[4]) for entry in modules.values()]
    start = 0
    while True:  # the offsets in the index depend on its size
        index: dict[str, IndexEntry] = {}
        offset = start
        for (name, entry), blob in zip(modules.items(), blobs, strict=True):
            index[f"gpu_oci_hook.{name}"] = (*entry[:4], (offset, len(blob), hash_data(blob)))
            offset += len(blob)
        data = marshal.dumps((BUNDLE_STAMP, index))
        head = hash_data(data) + len(data).to_bytes(INDEX_START - HASH_SIZE, "little") + data
        if len(head) == start:
            return head + b"".join(blobs)
        start = len(head)


def _list_modules(package: str) -> list[str]:
    """List the names of the modules and packages below one of our packages, without the rooms that are never used."""
    names = []
    for leaf in sorted(os.listdir(f"{PACKAGE}/{package.replace('.', '/')}")):
        module, extension = os.path.splitext(leaf)
        name = f"{package}.{module}" if package else module
        if extension == ".py" and module != "__init__":
            names.append(name)
        elif not extension and name not in _UNUSED_ROOMS and os.path.exists(_source_path(name, is_package=True)):
            names += [name, *_list_modules(name)]
    return names


def _sort_by_imports(names: tuple[str, ...]) -> list[str]:
    """Return modules with all that they need before them: their packages, and what they import at their top."""
    done: dict[str, None] = {}

    def add(name: str) -> None:
        if name in done or not _find_source(name):
            return
        for needed in (name.rpartition(".")[0], *_list_top_imports(name)):
            add(needed)
        done[name] = None

    for name in names:
        add(name)
    return list(done)


def _list_top_imports(name: str) -> list[str]:
    """List our modules that a module imports whenever it is loaded, without the name of our package."""
    with open(_find_source(name), "rb") as file:
        tree = ast.parse(file.read())
    prefix = "gpu_oci_hook."
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
            module = str(node.module).removeprefix(prefix)
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return found


def _find_source(name: str) -> str:
    """Return the path of a module's or package's source; "" if there is none of this name."""
    paths = (_source_path(name, is_package=is_package) for is_package in (True, False))
    return next((path for path in paths if name and os.path.exists(path)), "")


def _source_path(name: str, *, is_package: bool) -> str:
    return f"{PACKAGE}/{name.replace('.', '/')}{'/__init__' if is_package else ''}.py"


def _compile_module(name: str) -> ModuleEntry:
    """Compile one module from its source, without docstrings, assertions and annotations."""
    is_package = os.path.isdir(f"{PACKAGE}/{name.replace('.', '/')}")
    path = _source_path(name, is_package=is_package)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        source = file.read()
    code: CodeType = compile(_parse_without_annotations(source), path, "exec", dont_inherit=True, optimize=2)
    return path, is_package, status.st_size, status.st_mtime_ns, code, False


def _parse_without_annotations(source: bytes) -> ast.Module:
    """Parse a source and drop the annotations of its functions.

    They are a tenth of the code, and nothing looks at them while the program runs.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree
