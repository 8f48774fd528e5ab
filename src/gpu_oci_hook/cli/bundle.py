"""The --bundle option and the bundle that it names.

Import budget: cold.
"""

from __future__ import annotations

import os

import click

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.formats.fastjson import parse_config_json
from gpu_oci_hook.live.container_changes import Change
from gpu_oci_hook.live.device_access import DeviceRules

bundle_option = click.option(
    "--bundle",
    "-b",
    metavar="PATH",
    default=".",
    show_default=True,
    help="OCI bundle: the directory with config.json, or that file itself.",
)


class Bundle:
    """A bundle's config.json, as bytes and as an object.

    Arguments:
        path: the bundle, or the config.json in it.

    Attributes:
        title: the container that it belongs to, for people; "" if only the bundle is known.
        is_running: the container runs.
        is_assumed: there is no bundle: the container does not exist.
        has_assumed_root: its root file system is not there now; `spec` names another one.
        attached, detached: the GPUs that were attached to the container while it runs, and those of its start that were
            detached.
        attached_changes: what attach has changed in the container.
        init_pid: the container's first process; 0 if it is not known.
        device_rules: those of the container's cgroup.

    Raises:
        Fault: config.json is missing or is not a JSON object.
    """

    title = ""
    is_running = False
    is_assumed = False
    has_assumed_root = False
    attached: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    attached_changes: tuple[Change, ...] = ()
    init_pid = 0
    device_rules = DeviceRules()

    def __init__(self, path: str) -> None:
        self.directory = path
        self.config_json_path = os.path.join(path, "config.json")
        if os.path.isfile(path):
            self.directory, self.config_json_path = os.path.dirname(path) or ".", path
        data = read_config_json(self.config_json_path)
        if data is None:
            what = "there is no config.json in it" if os.path.isdir(path) else "there is no such directory"
            raise Fault(what, where=path, hint="Name a bundle with --bundle DIR")
        self.config_json_bytes = data
        self.spec = parse_config_json(data, self.config_json_path)

    @property
    def absolute_directory(self) -> str:
        """Absolute path of the bundle directory."""
        return os.path.abspath(self.directory)
