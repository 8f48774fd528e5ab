"""Describe a CDI name that no file resolves, and the answer about it: the types of `unresolved`.

Import budget: cold.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu_oci_hook.cdi.own_kinds import GPU_MODE, map_kinds_to_modes
from gpu_oci_hook.cdi.provenance import (
    build_generate_command,
    build_refresh_hint,
    build_stale_hint,
    is_own_spec_file,
)
from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
from gpu_oci_hook.cdi.registry.scan import SpecFile, SpecScan
from gpu_oci_hook.cdi.registry.spec_dirs import FALLBACK_SPEC_DIR, locate_spec_dir
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.request.cdi_requests import get_own_kinds, strip_type_prefix

MAX_SHOWN = 8
"""Devices and files that an answer names at most."""


class UnresolvedCause(NamedTuple):
    """Why a name is not resolved.

    Attributes:
        code: identifier for programs.
        files: paths of the files concerned.
        text: the cause, a sentence without its full stop.
        hint: what to do, likewise.
    """

    code: str
    files: tuple[str, ...]
    text: str
    hint: str


class CdiNameQuery:
    """A name that is not resolved, with everything that the checks look at.

    Attributes:
        name: the name as requested.
        kind: the part before its first "=".
        device: the part after it.
        scan: all CDI files.
        config: our configuration.
        own_devices: the devices of this host.
    """

    __slots__ = ("config", "device", "kind", "name", "own_devices", "scan")

    def __init__(self, name: str, scan: SpecScan, config: Config, own_devices: OwnDevices) -> None:
        self.name = name
        self.kind, _, self.device = name.partition("=")
        self.scan = scan
        self.config = config
        self.own_devices = own_devices

    @property
    def is_own_kind(self) -> bool:
        """Whether our runtime resolves names of this kind without a file."""
        return self.kind in get_own_kinds(self.config)

    @property
    def selector(self) -> str:
        """The device selector, as in NVIDIA_VISIBLE_DEVICES, that a name of our own kind stands for."""
        return strip_type_prefix(self.device)

    @property
    def generate_mode(self) -> str:
        """The `cdi generate --mode` that writes the name's kind; "" if none does."""
        return next((mode for kind, mode in map_kinds_to_modes(self.config).items() if kind == self.kind), "")

    def describe_without_file(self) -> str:
        """Describe what our runtime injects for the name without a file; "" if it needs a file."""
        return self.own_devices.describe_devices(self.selector) if self.is_own_kind else ""

    def suggest_generate_command(self) -> str:
        """Return the command that writes a file of the name's kind where engines of this host look."""
        mode = self.generate_mode or GPU_MODE
        options = () if mode == GPU_MODE else ("--mode", mode)
        file_name = "nvidia.yaml" if mode == GPU_MODE else f"nvidia-{mode}.yaml"
        if any(file.path.rpartition("/")[2] == file_name for file in self.scan.files):  # it would be replaced
            file_name = f"{self.kind.replace('/', '-')}.yaml"
        directory = self.scan.directories[0] if self.scan.directories else FALLBACK_SPEC_DIR
        return build_generate_command(f"{directory}/{file_name}", *options)

    def suggest_regeneration(self, path: str) -> str:
        """Return the hint for a file of the name's kind that lacks a device which this host has.

        The options of a file that we wrote may have left the device out, so the hint adds `--device`.
        """
        if is_own_spec_file(path):
            return build_refresh_hint(path, "--device", "all,none")
        return build_stale_hint(self.kind, path, get_own_kinds(self.config))

    def list_invalid_definitions(self) -> list[SpecFile]:
        """List the invalid files that would define the name."""
        return [file for file in self.scan.files if file.errors and self.name in file.list_qualified_names()]

    def sort_by_file_name(self, files: list[SpecFile]) -> list[SpecFile]:
        """Sort files by how well their names match the kind.

        Generators call their files vendor-class, or after the vendor.
        """
        vendor, _, category = self.kind.partition("/")
        likely_names = (f"{vendor}-{category}", vendor, vendor.partition(".")[0])
        return sorted(files, key=lambda file: [name not in file.path.rpartition("/")[2] for name in likely_names])


def describe_searched_dirs(scan: SpecScan) -> str:
    """Describe in which directories files were looked for, and where engines look if that differs."""
    shown = [
        scan.host.full_path(directory) + ("" if locate_spec_dir(scan.host, directory) else " (does not exist)")
        for directory in scan.directories
    ]
    directories = ", ".join(shown) or "no directory"
    if not scan.host.prefix:
        return directories
    return (
        f"{directories} ([host] root is {scan.host.root}: engines of this machine read {', '.join(scan.directories)})"
    )


def get_name_kind(name: str) -> str:
    """Return the kind of a qualified name."""
    return name.partition("=")[0]
