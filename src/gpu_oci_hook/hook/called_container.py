"""Open the container that a hook is called for: the OCI state on stdin, its bundle and its root file system.

The state and the bundle's config.json come from the runtime and the engine and are trusted. The root file system comes
from the image and is not. runc starts a hook with the root file system as its current directory, so the current
directory is trusted in one case only (see `_find_bundle`).

Import budget: hook.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.directory import read_mount_id
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.files.rootfs import Rootfs, read_rootfs_path
from gpu_oci_hook.formats.fastjson import parse_config_json, parse_json
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.hook.standard_streams import STATE_SIZE_LIMIT, read_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.plan.layout import Layout

PROBE_NAME = ".gpu-oci-hook"  # a name that nothing is mounted on
_STATE_HINT = "Let a runtime call this hook, or pipe the output of `runc state ID` into it"


class Container:
    """The container that a hook is called for.

    Attributes:
        bundle: the bundle's directory.
        spec: the bundle's config.json.
        rootfs: the root file system with the container's mounts in it, held open.
        writable_rootfs: the root file system for writes to the image's part. It differs from `rootfs` when the runtime
            has already made the root read-only.
        notes: one sentence for each optional step that was skipped.
        has_whole_spec: the spec is that of config.json; otherwise it has the root and the mounts only.
    """

    __slots__ = (
        "_image", "_layout", "_mount_id", "bundle", "has_whole_spec", "notes", "rootfs", "spec", "writable_rootfs",
    )  # fmt: skip

    def __init__(self, bundle: str, spec: dict[str, object], rootfs: Rootfs) -> None:
        self.bundle = bundle
        self.spec = spec
        self.rootfs = self.writable_rootfs = rootfs
        self._mount_id = rootfs.get_mount_id()
        rootfs.restrict_writes(self._may_write_below)
        self.notes: list[str] = []
        self.has_whole_spec = True
        self._image: Image | None = None
        self._layout: Layout | None = None

    def inspect_image(self, arch: str, compat_root: str = "") -> Image:
        """Return the facts about the container's image; the first call collects them."""
        if self._image is None:
            from gpu_oci_hook.container.image import COMPAT_DIRECTORY, inspect_image

            self._image = inspect_image(self.rootfs, arch, compat_root or COMPAT_DIRECTORY)
        return self._image

    def get_layout(self) -> Layout:
        """Return the layout of the spec's mounts, which separates the image's files from mounted ones."""
        if self._layout is None:
            from gpu_oci_hook.plan.layout import Layout

            writable = self.rootfs.is_writable()
            if not writable and get_member(self.spec, "root", "readonly") is True:
                layer = self.rootfs.open_writable_layer()
                writable = layer is not None
                self.writable_rootfs = layer or self.rootfs
            self._layout = Layout(self.spec, self.rootfs, [], writable=writable)
        return self._layout

    def _may_write_below(self, directory: Directory) -> bool:
        """Tell whether a directory lies in the image or in a tmpfs of the container, and not in a bind mount.

        The kernel decides by the descriptor's mount. The paths in the spec are not enough: a link in the image that a
        later mount hides, or another process, can have redirected a mount.
        """
        mount_id = read_mount_id(directory.fd)
        if mount_id == self._mount_id:
            return True
        from gpu_oci_hook.files.mounts import read_mount_info
        from gpu_oci_hook.plan.layout import TMPFS_TYPES

        mount = read_mount_info(mount_id)
        if mount is None or mount.filesystem_type not in TMPFS_TYPES:
            return False
        return self.get_layout().classify_resolved_path(f"{directory.path}/{PROBE_NAME}") == "fresh"

    def list_device_nodes(self) -> dict[str, tuple[int, int]]:
        """Return the character devices in the spec, by path, with their numbers; bind mounts of nodes count too."""
        nodes: dict[str, tuple[int, int]] = {}
        for device in get_list(self.spec, "linux", "devices"):
            path, major, minor = (get_member(device, key) for key in ("path", "major", "minor"))
            if isinstance(path, str) and isinstance(major, int) and isinstance(minor, int):
                nodes[path] = major, minor
        for mount in get_list(self.spec, "mounts"):
            path, source = get_member(mount, "destination"), get_member(mount, "source")
            if isinstance(path, str) and isinstance(source, str) and path.startswith("/dev/") and source[:1] == "/":
                try:
                    status = os.stat(source)
                except (OSError, ValueError):
                    continue
                if status.st_mode & 0o170000 == 0o020000:  # S_ISCHR, without the import
                    nodes[path] = os.major(status.st_rdev), os.minor(status.st_rdev)
        return nodes


def read_container(state_fd: int) -> Container:
    """Open the container whose OCI state can be read from a descriptor.

    Raises:
        Fault: the state is missing or invalid, or the bundle or the root file system cannot be used.
    """
    state = parse_state(read_state(state_fd))
    state_root = state.get("root")  # only crun's state has it, with the value of the bundle's config.json
    bundle, is_guess = _find_bundle(state, state_root)
    path = f"{bundle}/config.json"
    try:
        data = read_config_json(path)
    except Fault as fault:
        from gpu_oci_hook.hook.mounted_container import is_hidden_by_user_namespace, open_mounted_rootfs

        if not is_hidden_by_user_namespace(path):
            raise
        rootfs, spec = open_mounted_rootfs(bundle, state_root, fault)
        container = Container(bundle, spec, rootfs)
        container.has_whole_spec = False
        return container
    if data is None:
        raise Fault("the bundle has no config.json", where=path)
    spec = parse_config_json(data, path)
    root_entry: dict[str, object] = {"root": {"path": state_root}}
    rootfs = Rootfs(read_rootfs_path(root_entry if isinstance(state_root, str) and state_root else spec, bundle))
    if rootfs.is_host_root():
        raise Fault("the container's root file system is the host's root: refusing to change it", where=path)
    if is_guess and not _is_outside_rootfs(bundle, rootfs):
        raise Fault(
            "the container's state has no bundle path, and the current directory is not a bundle", hint=_STATE_HINT
        )
    return Container(bundle, spec, rootfs)


def find_bundle_and_pid(state: dict[str, object]) -> tuple[str, int]:
    """Return the bundle's directory and the process in a container's state.

    Returns:
        The process is 0 where the state has none.

    Raises:
        Fault: the state has no bundle.
    """
    pid = state.get("pid")
    return _find_bundle(state, state.get("root"))[0], pid if type(pid) is int and pid > 0 else 0


def read_state(state_fd: int) -> bytes:
    """Read the container's state from a descriptor.

    Raises:
        Fault: it cannot be read.
    """
    try:
        return read_input(state_fd, STATE_SIZE_LIMIT)
    except OSError as error:
        reason = describe_os_error(error)
        raise Fault(f"cannot read the container's state: {reason}", where="standard input", hint=_STATE_HINT) from None


def parse_state(data: bytes) -> dict[str, object]:
    """Parse the container's state.

    Raises:
        Fault: it is empty, too large, or not an object.
    """
    if len(data) > STATE_SIZE_LIMIT:
        raise Fault(f"the container's state is larger than {STATE_SIZE_LIMIT >> 20} MiB", where="standard input")
    if not data.strip():
        raise Fault("the container's state is empty", where="standard input", hint=_STATE_HINT)
    try:
        state = parse_json(data)
    except Fault as fault:
        raise Fault(f"invalid container state: {fault}", where="standard input", hint=_STATE_HINT) from None
    if not isinstance(state, dict):
        raise Fault("invalid container state: it is not an object", where="standard input", hint=_STATE_HINT)
    return state


def _find_bundle(state: dict[str, object], state_root: object) -> tuple[str, bool]:
    """Return the bundle's directory, and whether it is a guess.

    crun leaves the bundle's path empty and runs the hook in the bundle. It is recognised by the key "root", which only
    crun writes. Any other runtime may run the hook in the root file system, whose config.json would be the image's.
    """
    bundle = state.get("bundle", state.get("bundlePath"))  # the second one until version 1.0 of the specification
    if bundle in (None, "") and isinstance(state_root, str) and state_root:
        try:
            return os.getcwd(), True
        except OSError as error:
            raise Fault(
                "the container's state has no bundle path, and the current directory cannot be found: "
                f"{describe_os_error(error)}"
            ) from None
    if not isinstance(bundle, str) or not bundle.startswith("/") or "\0" in bundle:
        shown = f"{clip_text(bundle)!r}" if isinstance(bundle, str) else "none"
        raise Fault(f"the container's state has no absolute bundle path ({shown})", where="bundle", hint=_STATE_HINT)
    return bundle, False


def _is_outside_rootfs(bundle: str, rootfs: Rootfs) -> bool:
    """Tell whether a directory lies outside the root file system.

    crun has made the root file system a mount of its own, which an image cannot do.
    """
    fd = os.open(bundle, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        bundle_mount, rootfs_mount = read_mount_id(fd), rootfs.get_mount_id()
    finally:
        os.close(fd)
    is_other_mount = bool(bundle_mount and rootfs_mount) and bundle_mount != rootfs_mount
    return is_other_mount and not f"{bundle}/".startswith(f"{rootfs.path}/")
