"""Check whether this host has what a valid configuration names.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.config.findings import RawFinding
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.driver.other_roots import find_other_driver_root, suggest_driver_root
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.reporting.log import describe_unusable_log_file
from gpu_oci_hook.shim.low_level_runtime import describe_engine_program, find_low_level_runtime, list_engine_programs

_Problem = tuple[tuple[str, ...], str]
"""Path of a key and what does not fit."""


def check_config_against_host(settings: Config) -> list[RawFinding]:
    """Return a finding for each configured path, program or capability that this host or configuration lacks."""
    host = Host(settings.root)
    problems = [
        *_check_roots(host, settings),
        *_check_user_files(host, settings),
        *_check_directories(host, settings),
        *_check_runtime(settings),
        *_check_capabilities(settings),
    ]
    return [(path, what, "host") for path, what in problems]


def _check_roots(host: Host, settings: Config) -> Iterator[_Problem]:
    driver_host = host.driver_host(settings.driver_root)
    if not _is_directory(host, "/"):
        yield ("host", "root"), f"{settings.root} is not a directory"
    elif not _is_directory(driver_host, "/"):
        yield ("host", "driver-root"), f"{driver_host.root} is not a directory (now)"
    else:
        for path in settings.library_paths:
            if not _is_directory(driver_host, path):
                yield ("host", "library-paths"), f"{driver_host.full_path(path)} is not a directory"
        yield from _check_driver_root(host, driver_host, settings)


def _check_driver_root(host: Host, driver_host: Host, settings: Config) -> Iterator[_Problem]:
    """Check that a driver root that the file names has the driver's libraries, when another usual root has them."""
    if settings.driver_root == "/":
        return
    version = read_driver_version(host) or ""
    inventory = load_inventory(host, driver_host, settings.library_paths, version, ReadOnlyCache())
    other_root = "" if inventory.library_version else find_other_driver_root(host, settings, version)
    if other_root:
        hint = suggest_driver_root(other_root, settings)
        yield ("host", "driver-root"), f"{driver_host.root} has no driver libraries; {hint}"


def _check_user_files(host: Host, settings: Config) -> Iterator[_Problem]:
    for index, (path, *_) in enumerate(settings.extra):
        if host.stat_path(path) is None:
            yield ("inject", "extra", str(index), "path"), f"{host.full_path(path)} is missing"


def _check_directories(host: Host, settings: Config) -> Iterator[_Problem]:
    """Check configured directories, but not the defaults, which few hosts have."""
    defaults = Config()
    directories = [
        ("inject.mps-pipe-directory", settings.mps_pipe_directory),
        ("inject.mps-log-directory", settings.mps_log_directory),
        ("inject.mps-shm", settings.mps_shm),
        ("host.csv-directory", settings.csv_directory if settings.csv_directory != defaults.csv_directory else ""),
        *(("cdi.spec-dirs", path) for path in settings.spec_dirs if path not in defaults.spec_dirs),
    ]
    for key, path in directories:
        if path and not _is_directory(host, path):
            yield tuple(key.split(".")), f"{host.full_path(path)} is not a directory"


def _check_runtime(settings: Config) -> Iterator[_Problem]:
    try:
        find_low_level_runtime(settings.low_level)
    except Fault as fault:
        yield ("runtime", "low-level"), f"{fault.what}"
    else:
        for program in list_engine_programs(settings.low_level):
            yield ("runtime", "low-level"), describe_engine_program(program)
    yield from _check_log_file(settings.log_file)


def _check_log_file(path: str) -> Iterator[_Problem]:
    """Check that starts can append to the log file. Its name is this machine's, whatever the host root."""
    directory, unusable = os.path.dirname(path), describe_unusable_log_file(path)
    if unusable:
        yield ("runtime", "log-file"), f"{path} {unusable}; name a regular file"
    elif directory and not os.path.isdir(directory):
        kind = "is not a directory" if os.path.exists(directory) else "does not exist"
        yield ("runtime", "log-file"), f"the directory {directory} {kind}"


def _check_capabilities(settings: Config) -> Iterator[_Problem]:
    supported = settings.supported_capabilities
    if "all" in supported:
        return
    refused = [name for name in settings.default_capabilities if name != "all" and name not in supported]
    if refused:
        yield ("request", "default-capabilities"), f"{', '.join(refused)} not among [request] supported-capabilities"


def _is_directory(host: Host, path: str) -> bool:
    status = host.stat_path(path)
    return status is not None and stat.S_ISDIR(status.st_mode)
