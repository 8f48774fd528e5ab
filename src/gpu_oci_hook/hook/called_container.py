"""The container that a hook is called for: the OCI state on stdin, its bundle, its root file system.

The state and the bundle's config.json are the runtime's and the engine's word and are believed; the root file system
is the image's and is not. runc starts a hook with the root as its current directory, so that directory is
believed in one case only (see `_find_bundle`). Cost rule: on the way of the hook.
"""

from __future__ import annotations

import errno
import os

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.config_json import read_config_json
from gpu_oci_hook.files.directory import read_mount_id
from gpu_oci_hook.files.rootfs import Rootfs, read_rootfs_path
from gpu_oci_hook.formats.fastjson import parse_config_json, parse_json
from gpu_oci_hook.formats.oci import get_list, get_member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.plan.layout import Layout

STATE_SIZE_LIMIT = 4 << 20  # it has the container's annotations, of which Kubernetes allows 256 KiB
PROBE_NAME = ".gpu-oci-hook"  # a name that nothing is mounted on
_STATE_HINT = "A runtime calls this hook; by hand, give it what `runc state ID` prints"


class Container:
    """The container that a hook is called for.

    Attributes:
        bundle: its directory. spec: its config.json.
        rootfs: its root file system, held, with the container's mounts in it.
        writable_rootfs: the same for writing into the image's part of it: another one where the runtime has made the root
            read-only already.
        notes: what is left undone without harm, one sentence each.
    """

    __slots__ = ("_image", "_layout", "_mount_id", "bundle", "notes", "rootfs", "spec", "writable_rootfs")

    def __init__(self, bundle: str, spec: dict[str, object], rootfs: Rootfs) -> None:
        self.bundle = bundle
        self.spec = spec
        self.rootfs = self.writable_rootfs = rootfs
        self._mount_id = rootfs.get_mount_id()
        rootfs.restrict_writes(self._may_write_below)
        self.notes: list[str] = []
        self._image: Image | None = None
        self._layout: Layout | None = None

    def inspect_image(self, arch: str, compat_root: str = "") -> Image:
        """What its image is like, looked at once."""
        if self._image is None:
            from gpu_oci_hook.container.image import COMPAT_DIRECTORY, inspect_image

            self._image = inspect_image(self.rootfs, arch, compat_root or COMPAT_DIRECTORY)
        return self._image

    def get_layout(self) -> Layout:
        """Where its spec's mounts lie: what is below one of them is not the image's."""
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
        """Whether a directory is the image's, or in a tmpfs of the container's own; what is bound there is not ours.

        By the kernel's word on the descriptor: a link of the image that a later mount hides, or another process,
        can have led a mount elsewhere than the spec seems to say.
        """
        number = read_mount_id(directory.fd)
        if number == self._mount_id:
            return True
        from gpu_oci_hook.files.mounts import read_mount_info
        from gpu_oci_hook.plan.layout import TMPFS_TYPES

        mount = read_mount_info(number)
        if mount is None or mount.filesystem_type not in TMPFS_TYPES:
            return False
        return self.get_layout().classify_resolved_path(f"{directory.path}/{PROBE_NAME}") == "fresh"

    def list_device_nodes(self) -> dict[str, tuple[int, int]]:
        """Its character devices: path in the container to numbers; bind mounts of nodes are such, too."""
        found: dict[str, tuple[int, int]] = {}
        for device in get_list(self.spec, "linux", "devices"):
            path, major, minor = (get_member(device, key) for key in ("path", "major", "minor"))
            if isinstance(path, str) and isinstance(major, int) and isinstance(minor, int):
                found[path] = major, minor
        for mount in get_list(self.spec, "mounts"):
            path, source = get_member(mount, "destination"), get_member(mount, "source")
            if isinstance(path, str) and isinstance(source, str) and path.startswith("/dev/") and source[:1] == "/":
                try:
                    status = os.stat(source)
                except (OSError, ValueError):
                    continue
                if status.st_mode & 0o170000 == 0o020000:  # S_ISCHR, without the import
                    found[path] = os.major(status.st_rdev), os.minor(status.st_rdev)
        return found


def read_container(state_fd: int) -> Container:
    """The container whose state a descriptor gives.

    Raises:
        Fault: no state, one that means nothing, a bundle or a root file system that cannot be used.
    """
    state = _read_state(state_fd)
    said = state.get("root")  # crun says it, as the bundle's config.json has it
    bundle, guessed = _find_bundle(state, said)
    path = f"{bundle}/config.json"
    data = read_config_json(path)
    if data is None:
        raise Fault("the bundle has no config.json", where=path)
    spec = parse_config_json(data, path)
    named: dict[str, object] = {"root": {"path": said}}
    rootfs = Rootfs(read_rootfs_path(named if isinstance(said, str) and said else spec, bundle))
    if rootfs.is_host_root():
        raise Fault("the container's root file system is this machine's own: nothing is put into it", where=path)
    if guessed and not _is_outside_rootfs(bundle, rootfs):
        raise Fault("the container's state names no bundle, and the current directory is none", hint=_STATE_HINT)
    return Container(bundle, spec, rootfs)


def drain_state(state_fd: int) -> None:
    """Reads a state that nobody needs: crun up to 1.8 fails a start ("Broken pipe") whose hook ends without reading.

    A person's terminal is left alone, and what is longer than any state is not waited for.
    """
    left = STATE_SIZE_LIMIT
    try:
        while left > 0 and not os.isatty(state_fd):
            more = os.read(state_fd, 65536)
            if not more:
                return
            left -= len(more)
    except OSError:
        pass  # closed: nobody writes there


def _read_state(state_fd: int) -> dict[str, object]:
    data = b""
    try:
        while len(data) <= STATE_SIZE_LIMIT:
            more = os.read(state_fd, STATE_SIZE_LIMIT + 1 - len(data))
            if not more:
                break
            data += more
    except OSError as error:
        reason = "it is closed" if error.errno == errno.EBADF else describe_os_error(error)
        raise Fault(
            f"the container's state cannot be read: {reason}", where="standard input", hint=_STATE_HINT
        ) from None
    if len(data) > STATE_SIZE_LIMIT:
        raise Fault(f"the container's state is larger than {STATE_SIZE_LIMIT >> 20} MiB", where="standard input")
    if not data.strip():
        raise Fault("the container's state is empty", where="standard input", hint=_STATE_HINT)
    try:
        state = parse_json(data)
    except Fault as fault:
        raise Fault(f"the container's state is refused: {fault}", where="standard input", hint=_STATE_HINT) from None
    if not isinstance(state, dict):
        raise Fault("the container's state is refused: it is not an object", where="standard input", hint=_STATE_HINT)
    return state


def _find_bundle(state: dict[str, object], root: object) -> tuple[str, bool]:
    """The bundle's directory, and whether it is a guess.

    An empty one is crun's, which then stands in the bundle; it is known by the key "root" that only crun has. Any
    other runtime may stand in the root file system, whose config.json would be the image's.
    """
    bundle = state.get("bundle")
    if bundle in (None, "") and isinstance(root, str) and root:
        try:
            return os.getcwd(), True
        except OSError as error:
            raise Fault(
                f"the state names no bundle, and the current directory is lost: {describe_os_error(error)}"
            ) from None
    if not isinstance(bundle, str) or not bundle.startswith("/") or "\0" in bundle:
        named = f"{clip_text(bundle)!r}" if isinstance(bundle, str) else "none"
        raise Fault(
            f"the container's state names no bundle by an absolute path ({named})", where="bundle", hint=_STATE_HINT
        )
    return bundle, False


def _is_outside_rootfs(bundle: str, rootfs: Rootfs) -> bool:
    """Whether a directory lies outside of the root: crun has made that a mount, which no image can."""
    fd = os.open(bundle, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own, theirs = read_mount_id(fd), rootfs.get_mount_id()
    finally:
        os.close(fd)
    return bool(own and theirs) and own != theirs and not f"{bundle}/".startswith(f"{rootfs.path}/")
