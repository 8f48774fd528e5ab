"""The spec files of a host as `cdi list` and `cdi resolve` inspect them, and the options that select them.

Import budget: cold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
from gpu_oci_hook.cdi.registry.scan import SpecFile, SpecScan
from gpu_oci_hook.cdi.registry.staleness import list_stale_findings
from gpu_oci_hook.cdi.registry.unresolved_query import CdiNameQuery
from gpu_oci_hook.cdi.spec.finding import Finding, find_line_number
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cdi.spec.validation import find_unmountable_mounts
from gpu_oci_hook.cdi.spec.versions import list_reading_engines
from gpu_oci_hook.cli.command_config import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.common_options import config_option, root_option
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.host.root import Host


def spec_location_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the config file, the host root and the spec directories."""
    command = click.option(
        "--spec-dir",
        "directories",
        metavar="DIR",
        multiple=True,
        help="Override `[cdi] spec-dirs` with a directory of this machine, regardless of the host root. Repeatable; "
        "later directories have precedence.",
    )(command)
    return config_option(root_option(command))


class CdiInspection:
    """The configuration, the host and the scanned spec directories.

    Arguments:
        config_path, root: overrides of the configuration, "" for none.
        directories: overrides of the spec directories.
    """

    def __init__(self, config_path: str, root: str, directories: tuple[str, ...]) -> None:
        self.settings: Config = load_command_config(config_path, root, "")
        self.host = Host(self.settings.root)
        # --spec-dir names directories of this process, as `generate` and `validate` name files. Directories of the
        # configuration lie below the host root, where the runtime looks for them.
        self.spec_host = Host() if directories else self.host
        for directory in directories:
            if not os.path.isdir(directory):
                problem = "not a directory" if os.path.exists(directory) else "no such directory"
                raise Fault(problem, where=f"--spec-dir {directory}")
        if directories:
            self.settings.spec_dirs = tuple(map(os.path.abspath, directories))
        self.driver_version = read_driver_version(self.host)
        self.scan = SpecScan(self.spec_host, self.settings.spec_dirs)
        self.own_devices = OwnDevices(self.host, self.settings, ReadOnlyCache())

    def collect_findings(self, file: SpecFile) -> list[Finding]:
        """Return the findings about a file with their lines, as `cdi validate` reports them."""
        findings = [*file.findings]
        if file.data is not None:
            findings += find_unmountable_mounts(file.data, file.path)
            findings += list_stale_findings(file.data, file.path, self.host, self.driver_version)
        if all(finding.line or not finding.where for finding in findings):
            return findings
        lines = read_spec_file(file.real_path).line_numbers
        findings = [
            finding if finding.line else finding._replace(line=find_line_number(lines, finding.where))
            for finding in findings
        ]
        return sorted(findings, key=lambda finding: finding.line)

    def describe_without_file(self, name: str) -> str:
        """Return what gpu-oci-runtime injects for a name without a file, "" if it needs one."""
        return CdiNameQuery(name, self.scan, self.settings, self.own_devices).describe_without_file()


def read_declared_version(file: SpecFile) -> str | None:
    """Return a file's cdiVersion, None if it has none."""
    version = get_member(file.unchecked_data, "cdiVersion")
    return version if isinstance(version, str) else None


def list_spec_readers(file: SpecFile) -> list[str]:
    """List the engines that read a file, each with the first version that does."""
    version = read_declared_version(file)
    return list_reading_engines(version.removeprefix("v")) if file.data is not None and version else []
