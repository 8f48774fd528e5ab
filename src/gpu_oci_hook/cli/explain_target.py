"""The container that `explain` is asked about: a bundle, a running container, a process, or an environment alone.

Import budget: cold.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.printing import print_warning
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.rootfs import read_rootfs_path
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.live.attachment_record import AttachmentRecord, RecordStore
from gpu_oci_hook.live.device_access import DeviceRules, read_device_rules
from gpu_oci_hook.live.engine_queries import read_image_environment
from gpu_oci_hook.live.find_container import (
    REFERENCE_FORMS,
    find_container,
    find_container_by_bare_name,
    find_container_of_process,
    is_container_reference,
)
from gpu_oci_hook.live.found_container import FoundContainer
from gpu_oci_hook.live.join_namespaces import join_mount_namespace

PODMAN_BUNDLE_NAME = "userdata"
ASSUMED_BUNDLE = "/BUNDLE"
"""The bundle's path in the plan for a container that does not exist."""


class TargetOptions:
    """The options that name what is explained.

    Attributes:
        container: "docker:NAME" and the like, or a bundle's path; "" if it is not given.
        bundle: a bundle's path; "" if it is not given.
        pid: a process of the container; 0 if it is not given.
        env: the variables of a container that does not exist, as NAME=VALUE.
        rootfs: the root file system of such a container; "" if it is not given.
        image: an image whose variables such a container has as well; "" if it is not given.
    """

    def __init__(self, container: str, bundle: str, pid: int, env: tuple[str, ...], rootfs: str, image: str) -> None:
        self.container = container
        self.bundle = bundle
        self.pid = pid
        self.env = env
        self.rootfs = rootfs
        self.image = image

    def open_target(self, context: click.Context) -> Bundle:
        """Return what is to be explained. Its directory is the current one if no option names anything.

        This process joins the mount namespace of a running container's monitor, if that is another one.

        Raises:
            UsageFault: two options name something.
            Fault: there is no such bundle or container.
        """
        assumed = "--env" if self.env else "--image" if self.image else "--rootfs" if self.rootfs else ""
        named = [self.container, self.bundle and "--bundle", self.pid and "--pid", assumed]
        given = [str(name) for name in named if name]
        if len(given) > 1:
            raise UsageFault(f"{' and '.join(given)} name different containers", hint="Give one of them")
        if assumed:
            image_env = read_image_environment(self.image) if self.image else ()
            rootfs = self.rootfs or context.with_resource(tempfile.TemporaryDirectory())
            return AssumedBundle(self.env, rootfs, self.image, image_env)
        bundle = self._open_bundle()
        if not bundle.is_running and os.path.basename(bundle.absolute_directory) == PODMAN_BUNDLE_NAME:
            _assume_missing_root(bundle, context)
        return bundle

    def _open_bundle(self) -> Bundle:
        if self.pid:
            return _open_container(find_container_of_process(self.pid))
        if is_container_reference(self.container):
            return _open_container(find_container(self.container))
        path = self.container or self.bundle or "."
        if self.container and not os.path.exists(path):
            if "/" not in path:
                return _open_container(find_container_by_bare_name(path))
            raise Fault(
                "there is no such bundle, and it does not name a container",
                where=path,
                hint=f"Write {REFERENCE_FORMS}, or the directory of a bundle",
            )
        return Bundle(path)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name what is explained; the command gets them as the parameter `target`."""

    @click.argument("container", metavar="[CONTAINER]", default="")
    @click.option("--bundle", "-b", metavar="PATH", default="", help="OCI bundle: its directory, or its config.json.")
    @click.option(
        "--pid", metavar="PID", type=click.IntRange(min=1), default=None, help="A process of a running container."
    )
    @click.option(
        "--env",
        "-e",
        metavar="NAME=VALUE",
        multiple=True,
        help="A container that does not exist yet, by its variables; can be repeated.",
    )
    @click.option("--rootfs", metavar="DIR", default="", help="Its root file system.  [default: like a Debian image]")
    @click.option("--image", metavar="NAME", default="", help="An image of docker or podman whose variables it has.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        container: str,
        bundle: str,
        pid: int | None,
        env: tuple[str, ...],
        rootfs: str,
        image: str,
        **rest: Any,
    ) -> Any:
        return command(*args, target=TargetOptions(container, bundle, pid or 0, env, rootfs, image), **rest)

    return wrapped


def _open_container(found: FoundContainer) -> Bundle:
    record = _read_attachments(found)
    # Before this process becomes another user, who may not read them.
    device_rules = read_device_rules(found.init_pid) if found.init_pid else DeviceRules()
    if found.monitor_pid:
        join_mount_namespace(found.monitor_pid)
    try:
        bundle = Bundle(found.bundle)
    except Fault as fault:
        where = fault.where or found.bundle
        raise Fault(f"{found.title}: its bundle cannot be read: {fault.what}", where=where) from None
    bundle.title = found.title
    bundle.is_running = found.is_running
    bundle.init_pid, bundle.device_rules = found.init_pid, device_rules
    if record is not None:
        bundle.attached, bundle.detached = tuple(record.attached), tuple(record.detached)
        bundle.attached_changes = tuple(record.changes)
    return bundle


def _read_attachments(found: FoundContainer) -> AttachmentRecord | None:
    """Return what was attached and detached while the container runs, as far as this user may know."""
    if not found.init_pid or os.geteuid() != 0:
        return None
    try:
        with RecordStore(create=False) as store:
            return store.load(found.init_pid, found.title)
    except Fault as fault:
        print_warning(str(fault))
        return None


def _assume_missing_root(bundle: Bundle, context: click.Context) -> None:
    """Give a bundle another root file system if its own is not there, as podman unmounts it when a container ends."""
    path = read_rootfs_path(bundle.spec, bundle.directory)
    if os.path.isdir(path) and os.listdir(path):
        return
    directory = context.with_resource(tempfile.TemporaryDirectory())
    _fill_debian_root(directory)
    bundle.spec = {**bundle.spec, "root": {"path": directory}}
    bundle.has_assumed_root = True


class AssumedBundle(Bundle):
    """A container that does not exist: an environment, with the mounts and device rules that docker would write.

    Arguments:
        env: its variables, as NAME=VALUE.
        rootfs: its root file system. An empty directory is filled with the directories of a Debian image.
        image: the image that has set `image_env`; "" without one.
        image_env: the variables that `env` is added to.
    """

    def __init__(self, env: tuple[str, ...], rootfs: str, image: str = "", image_env: tuple[str, ...] = ()) -> None:
        for entry in env:
            if "=" not in entry or entry.startswith("="):
                raise UsageFault(f"{entry} is not NAME=VALUE", where="--env")
        if not os.path.isdir(rootfs):
            raise Fault("there is no such directory", where=f"--rootfs {rootfs}")
        self.directory = ASSUMED_BUNDLE
        self.config_json_path = f"{ASSUMED_BUNDLE}/config.json"
        self.config_json_bytes = b""
        parts = [*([f"the variables of {image}"] if image else []), *([" ".join(env)] if env else [])]
        self.title = f"assumed, with {' and '.join(parts) or 'no variable'}"
        self.is_running = False
        self.is_assumed = True
        if not os.listdir(rootfs):
            _fill_debian_root(rootfs)
            self.title += " and an image like Debian's"
        names = {entry.partition("=")[0] for entry in env}
        kept = tuple(entry for entry in image_env if entry.partition("=")[0] not in names)  # as engines merge them
        self.spec = _build_spec((*kept, *env), os.path.abspath(rootfs))


def _fill_debian_root(rootfs: str) -> None:
    """Make the directories and files by which Debian's images are known to have a glibc."""
    triples = [ARCHITECTURES[os.uname().machine].triple] if os.uname().machine in ARCHITECTURES else []
    for path in ("etc/ld.so.conf.d", "usr/bin", "proc", "dev", "run", "tmp", *(f"usr/lib/{name}" for name in triples)):
        os.makedirs(f"{rootfs}/{path}")
    for name in ("bin", "lib"):
        os.symlink(f"usr/{name}", f"{rootfs}/{name}")
    with open(f"{rootfs}/etc/ld.so.conf", "w") as file:
        file.write("include /etc/ld.so.conf.d/*.conf\n")


def _build_spec(env: tuple[str, ...], rootfs: str) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["sh"], "cwd": "/", "env": list(env)},
        "root": {"path": rootfs},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs"},
        ],
        "linux": {
            "namespaces": [{"type": "mount"}, {"type": "pid"}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }
