"""Edit containerd's config.toml: add our runtime handler, take it out again. Pure: bytes in, bytes out.

The tables of the CRI plugin have another name in each version of the file. What the handler needs beside the path of
our program, such as SystemdCgroup, is copied from the handler that containerd uses now.

Import budget: cold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_oci_hook.engines.wanted import WantedRuntime, is_gpu_runtime_program, is_own_program
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.toml_text import Path, TomlText, get_at

_BUILT_IN = "runc"
_RUNC_TYPE = "io.containerd.runc.v2"
_CRI_NAMES = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
# The CRI plugin's tables by the version of the file (facts: containerd-config-versions).
_CRI_TABLES = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_LATEST_VERSION = 4  # with the CRI tables of version 3
_MIGRATES_VERSION_1 = (2, 3)
_KEEPS_RUNC = (2,)  # containerd 1 forgets its own handlers when a file names any
# Keys of a handler that say how it is run, apart from its type and options. Others are defaults.
_COPIED_KEYS = (
    "pod_annotations", "container_annotations", "privileged_without_host_devices",
    "privileged_without_host_devices_all_devices_allowed", "base_runtime_spec", "snapshotter", "cgroup_writable",
)  # fmt: skip
_PROGRAM_KEY, _SYSTEMD_KEY = "BinaryName", "SystemdCgroup"


@dataclass(frozen=True)
class EffectiveConfig:
    """What an installed containerd makes of its file.

    Arguments:
        release: of containerd, such as (1, 6, 20).
        values: the document that `containerd config dump` prints.
        imports: what the built-in configuration imports; a file that did not exist has to name it.
    """

    release: tuple[int, ...]
    values: dict[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()

    @property
    def handlers(self) -> dict[str, Any]:
        """The runtime handlers by name."""
        return get_at(self._find_containerd_table(), ("runtimes",)) or {}

    @property
    def default_name(self) -> str:
        """The name of the default handler."""
        return str(get_at(self._find_containerd_table(), ("default_runtime_name",)) or "runc")

    def _find_containerd_table(self) -> dict[str, Any]:
        for name in _CRI_NAMES[::-1]:
            table = get_at(self.values, ("plugins", name, "containerd"))
            if isinstance(table, dict):
                return table
        return {}


def add_containerd_runtime(data: bytes | None, wanted: WantedRuntime, effective: EffectiveConfig, path: str) -> bytes:
    """Return config.toml with our runtime; the same bytes if it is there already.

    Arguments:
        data: the file, None if there is none.
        effective: what containerd makes of the file without our runtime.
        path: of the file, for messages.

    Raises:
        Fault: the file is not valid, containerd would not use the entry, or another runtime has the name.
    """
    document = TomlText(data, path)
    if document.has_bom and effective.release >= (2,):
        hint = "Save it as UTF-8 without one"
        raise Fault("starts with a byte order mark, which containerd 2 refuses", where=f"{path}:1", hint=hint)
    _refuse_disabled_plugin(document, path)
    settings: list[tuple[Path, Any]] = []
    version = _find_version(document, effective, path)
    if not document.values:
        settings.append((("version",), version))
        if data is None and effective.imports:
            settings.append((("imports",), list(effective.imports)))
    table = _find_cri_table(version)
    entry = document.get(*table, "runtimes", wanted.name)
    if entry is not None and not _may_replace(entry, wanted):
        where = f"{path}:{document.find_line(f'runtimes.{wanted.name}')}"
        raise Fault(f"another runtime has the name {wanted.name}", where=where, hint="Choose another one with --name")
    if wanted.default and document.get(*table, "default_runtime_name") != wanted.name:
        settings.append(((*table, "default_runtime_name"), wanted.name))
    if effective.release < _KEEPS_RUNC and not document.get(*table, "runtimes"):
        settings += [((*table, "runtimes", name), _copy_handler(effective, name)) for name in effective.handlers]
    if not _is_complete(entry, wanted):
        settings.append(((*table, "runtimes", wanted.name), _build_handler(effective, wanted)))
    if not settings:
        return data or b""
    document.set_values(settings)
    return document.to_bytes()


def take_out_containerd_runtime(data: bytes, original: bytes | None, added: WantedRuntime | None, path: str) -> bytes:
    """Return config.toml without our runtime; what `original` has in its place is put back.

    Arguments:
        original: the file as it was before us, None if unknown or if there was none.
        added: what we have added, None if unknown; other handlers with our program are taken out too.

    Raises:
        Fault: the file is not valid.
    """
    document, former = TomlText(data, path), TomlText(original, path)
    removed: list[Path] = []
    restored: list[tuple[Path, Any]] = []
    for name in _CRI_NAMES:
        table = ("plugins", name, "containerd")
        handlers = document.get(*table, "runtimes")
        if not isinstance(handlers, dict):
            continue
        own = [name for name, entry in handlers.items() if _is_own(entry) or _is_as_added(name, entry, added)]
        if added is not None and own and _is_built_in_alone(handlers, own):
            own.append(_BUILT_IN)
        paths: list[Path] = [(*table, "runtimes", name) for name in own]
        if document.get(*table, "default_runtime_name") in own:
            paths.append((*table, "default_runtime_name"))
        for names in paths:
            previous = former.get(*names)
            if previous is None:
                removed.append(names)
            elif previous != document.get(*names):
                restored.append((names, previous))
    if restored:
        document.set_values(restored)
    document.remove_values(removed)
    return document.to_bytes()


def has_own_containerd_runtime(data: bytes | None, path: str) -> bool:
    """Tell whether config.toml names our runtime program."""
    document = TomlText(data, path)
    tables = [document.get("plugins", name, "containerd", "runtimes") for name in _CRI_NAMES]
    return any(_is_own(entry) for table in tables if isinstance(table, dict) for entry in table.values())


def is_cri_plugin_disabled(data: bytes | None, path: str) -> bool:
    """Tell whether config.toml switches the CRI plugin off, as Docker's own package of containerd does."""
    disabled = TomlText(data, path).get("disabled_plugins")
    return isinstance(disabled, list) and any(name in _CRI_NAMES for name in disabled)


def check_effective_config(before: EffectiveConfig, after: EffectiveConfig, wanted: WantedRuntime, path: str) -> None:
    """Check that containerd has our runtime by the new file, and everything else as before.

    Raises:
        Fault: it does not.
    """
    hint = "Another file that it imports may replace the table; add the runtime there (docs/engines.md)"
    handler = after.handlers.get(wanted.name)
    if get_at(handler, ("options", _PROGRAM_KEY)) != wanted.program:
        raise Fault(f"containerd would not use the runtime {wanted.name} of this file", where=path, hint=hint)
    if wanted.default and after.default_name != wanted.name:
        raise Fault(f"containerd would not use {wanted.name} as its default", where=path, hint=hint)
    for name in before.handlers:
        kept = name == wanted.name or (
            name in after.handlers and _copy_handler(after, name) == _copy_handler(before, name)
        )
        if not kept:
            raise Fault(f"containerd would lose or change its runtime {name}", where=path, hint=hint)
    if not wanted.default and after.default_name != before.default_name and before.default_name != wanted.name:
        raise Fault(f"containerd would change its default runtime {before.default_name}", where=path, hint=hint)
    left, right = (_without_handlers(values.values) for values in (before, after))
    if left != right:
        raise Fault("containerd would change more than its runtimes", where=path, hint=hint)


def _refuse_disabled_plugin(document: TomlText, path: str) -> None:
    disabled = document.get("disabled_plugins")
    names = [name for name in disabled if name in _CRI_NAMES] if isinstance(disabled, list) else []
    if names:
        raise Fault(
            f"the CRI plugin is switched off by disabled_plugins ({names[0]}), so containerd has no runtimes to set",
            where=f"{path}:{document.find_line('disabled_plugins')}",
            hint="Remove it there if Kubernetes is to use this containerd; docker, nerdctl and ctr need no entry",
        )


def _find_version(document: TomlText, effective: EffectiveConfig, path: str) -> int:
    newest = 3 if effective.release >= (2,) else 2
    if not document.values:
        return newest
    version = document.get("version")
    line = f"{path}:{document.find_line('version')}"
    if version is None:
        version, line = 1, path
    if not isinstance(version, int) or not 1 <= version <= _LATEST_VERSION:
        raise Fault(f"version = {version} is not a version of containerd's configuration", where=line)
    release = ".".join(map(str, effective.release))
    if version > newest and effective.release < _MIGRATES_VERSION_1:
        raise Fault(f"containerd {release} does not read version {version} of its configuration", where=line)
    if version == 1 and (2,) <= effective.release < _MIGRATES_VERSION_1:
        hint = "Make it a newer one with: containerd config migrate"
        raise Fault(f"containerd {release} ignores the runtimes of a file of version 1", where=line, hint=hint)
    return version


def _find_cri_table(version: int) -> Path:
    return ("plugins", _CRI_TABLES[min(version, 3)], "containerd")


def _copy_handler(effective: EffectiveConfig, name: str) -> dict[str, Any]:
    """Copy what a handler sets, without the defaults that `config dump` prints too."""
    handler = effective.handlers.get(name, {})
    entry = {"runtime_type": handler.get("runtime_type") or _RUNC_TYPE}
    entry.update({key: handler[key] for key in _COPIED_KEYS if handler.get(key)})
    options = {key: value for key, value in (handler.get("options") or {}).items() if value}
    return {**entry, "options": options} if options else entry


def _build_handler(effective: EffectiveConfig, wanted: WantedRuntime) -> dict[str, Any]:
    entry = _copy_handler(effective, effective.default_name)
    if entry["runtime_type"] != _RUNC_TYPE:  # such as Kata: its options are not runc's
        entry = {"runtime_type": _RUNC_TYPE}
    options = entry.pop("options", {})
    systemd = bool(options.pop(_SYSTEMD_KEY, False))
    others = {key: value for key, value in options.items() if key != _PROGRAM_KEY}
    return {**entry, "options": {_PROGRAM_KEY: wanted.program, _SYSTEMD_KEY: systemd, **others}}


def _may_replace(entry: object, wanted: WantedRuntime) -> bool:
    program = get_at(entry, ("options", _PROGRAM_KEY))
    return program == wanted.program or is_gpu_runtime_program(program)


def _is_complete(entry: object, wanted: WantedRuntime) -> bool:
    program = get_at(entry, ("options", _PROGRAM_KEY))
    return program == wanted.program and bool(get_at(entry, ("runtime_type",)))


def _is_own(entry: object) -> bool:
    return is_own_program(get_at(entry, ("options", _PROGRAM_KEY)))


def _is_built_in_alone(handlers: dict[str, Any], own: list[str]) -> bool:
    """Tell whether only the handler is left that containerd has by itself, as we write it beside ours."""
    others = {name: entry for name, entry in handlers.items() if name not in own}
    return others == {_BUILT_IN: {"runtime_type": _RUNC_TYPE}}


def _is_as_added(name: str, entry: object, added: WantedRuntime | None) -> bool:
    return added is not None and name == added.name and get_at(entry, ("options", _PROGRAM_KEY)) == added.program


def _without_handlers(values: dict[str, Any]) -> dict[str, Any]:
    """Return the document without runtimes, the default one, and the list of the files that were read."""
    plugins = {
        name: {
            key: {k: v for k, v in member.items() if k not in ("runtimes", "default_runtime_name")}
            if key == "containerd" and name in _CRI_NAMES and isinstance(member, dict)
            else member
            for key, member in plugin.items()
        }
        if isinstance(plugin, dict)
        else plugin
        for name, plugin in (values.get("plugins") or {}).items()
    }
    return {**{key: value for key, value in values.items() if key not in ("imports", "version")}, "plugins": plugins}
