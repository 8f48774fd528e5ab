"""The edits that a plan is made of: small pieces of data, each with its reason. Those of files are in `file_edits`.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from gpu_oci_hook.container.cdi_spec_edits import SpecChecker
    from gpu_oci_hook.container.rootfs_edits import RootfsEditor
    from gpu_oci_hook.container.spec_edits import SpecEditor
    from gpu_oci_hook.generate.content import ContentBuilder
    from gpu_oci_hook.model.libcuda_choice import LibcudaFinder

    EditKind = Literal[
        "device", "rule", "mount", "directory", "link", "file", "group", "env", "hook", "drop-hook", "drop-mount",
        "drop-earlier", "host-link", "order", "net-device", "rdt",
    ]  # fmt: skip
    PlanState = Literal["inject", "nothing", "done"]
    ListChanges = list[list[object]]  # of a list: entries that were added, and [position, entry] of removed ones

# The environment of a hook that has none of its own.
DEFAULT_HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)


class Edit:
    """One change, and its reason.

    Only its class says what an edit does. `describe` and `to_data` show it. `apply_to_spec` and `apply_to_rootfs` make
    it, each by one operation of an editor in `container`. `is_in_spec` and `is_in_rootfs` tell whether it is made
    already. `add_to_cdi` writes it into a CDI file. Methods that do not concern an edit do nothing, or say that it is
    made.
    """

    __slots__ = ("reason",)
    kind: EditKind

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def describe(self) -> str:
        """Return the change in one line, without its reason."""
        raise NotImplementedError

    def to_data(self) -> dict[str, object]:
        """Return the change as JSON-able data, without its kind and reason."""
        raise NotImplementedError

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """Make the change in config.json; a second time it changes nothing."""

    def apply_to_rootfs(self, editor: RootfsEditor) -> None:
        """Make the change below the container's root or in the bundle; a second time it changes nothing."""

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """Add what a CDI file can express; our hook makes the rest."""

    def get_spec_target(self) -> object:
        """Return what the edit sets in config.json, so that the last of two edits counts; None if both count."""
        return None

    def is_in_spec(self, checker: SpecChecker) -> bool:
        """Tell whether config.json has the change already, from this program or another."""
        return True

    def is_in_rootfs(self, editor: RootfsEditor) -> bool:
        """Tell whether the change below the root is made already."""
        return True


class AddDeviceNode(Edit):
    """A device node in `linux.devices`: the runtime creates it, so the host need not have it."""

    __slots__ = ("gid", "major", "minor", "mode", "path", "uid")
    kind = "device"
    type = "c"

    def __init__(self, path: str, major: int, minor: int, mode: int, uid: int, gid: int, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.major = major
        self.minor = minor
        self.mode = mode
        self.uid = uid
        self.gid = gid

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.path} c {self.major}:{self.minor} mode {self.mode:04o}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        owner = {"uid": self.uid, "gid": self.gid}
        return {"path": self.path, "major": self.major, "minor": self.minor, "mode": f"{self.mode:04o}", **owner}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.put_device_node(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_node(self)


class AddDeviceRule(Edit):
    """A cgroup device rule in `linux.resources.devices`: there it survives `systemctl daemon-reload`."""

    __slots__ = ("access", "major", "minor")
    kind = "rule"
    type = "c"

    def __init__(self, major: int, minor: int, access: str, reason: str) -> None:
        super().__init__(reason)
        self.major = major
        self.minor = minor
        self.access = access

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"allow {self.type} {self.major}:{self.minor} {self.access}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"major": self.major, "minor": self.minor, "access": self.access}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.allow_device(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_rule(self)


class AddMount(Edit):
    """A bind mount of a file or directory of the host.

    Attributes:
        clear_mount_point: the destination lies in the image's own tree, so a link or a special file there is removed.
    """

    __slots__ = ("clear_mount_point", "destination", "options", "source")
    kind = "mount"

    def __init__(
        self, source: str, destination: str, options: tuple[str, ...], reason: str, *, clear_mount_point: bool = True
    ) -> None:
        super().__init__(reason)
        self.source = source
        self.destination = destination
        self.options = options
        self.clear_mount_point = clear_mount_point

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.destination} <- {self.source} ({','.join(self.options)})"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"destination": self.destination, "source": self.source, "options": list(self.options)}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.add_mount(self)

    def apply_to_rootfs(self, editor: RootfsEditor) -> None:
        """See `Edit.apply_to_rootfs`."""
        editor.clear_mount_point(self)

    def get_spec_target(self) -> object:
        """See `Edit.get_spec_target`."""
        return "mount", self.destination

    def is_in_spec(self, checker: SpecChecker) -> bool:
        """See `Edit.is_in_spec`."""
        return checker.has_mount(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_mount(self)


class AddGroup(Edit):
    """An additional group of the container's process."""

    __slots__ = ("gid",)
    kind = "group"

    def __init__(self, gid: int, reason: str) -> None:
        super().__init__(reason)
        self.gid = gid

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"additional group {self.gid}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"gid": self.gid}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.add_group(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_group(self)


class SetEnvVariable(Edit):
    """An environment variable of the container's process."""

    __slots__ = ("name", "value")
    kind = "env"

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.value = value

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.name}={self.value}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"name": self.name, "value": self.value}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.set_env(self)

    def get_spec_target(self) -> object:
        """See `Edit.get_spec_target`."""
        return "env", self.name

    def is_in_spec(self, checker: SpecChecker) -> bool:
        """See `Edit.is_in_spec`."""
        return checker.has_env(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.set_env(self)


class AddHook(Edit):
    """A hook that the low-level runtime runs, by an absolute path and with an environment that is never empty.

    runc up to 1.2 passes the image's environment to a hook without one (CVE-2025-23266).
    """

    __slots__ = ("args", "env", "path", "stage")
    kind = "hook"

    def __init__(self, stage: str, path: str, args: tuple[str, ...], env: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.stage = stage
        self.path = path
        self.args = args
        self.env = env

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.stage}: {self.path} {' '.join(self.args[1:])}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"stage": self.stage, "path": self.path, "args": list(self.args), "env": list(self.env)}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.add_hook(self)


class DropHook(Edit):
    """A hook to remove from config.json, because it injects GPUs by itself."""

    __slots__ = ("path", "stage")
    kind = "drop-hook"

    def __init__(self, stage: str, path: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage
        self.path = path

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.stage}: {self.path}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"stage": self.stage, "path": self.path}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.remove_hooks(self)


class DropMount(Edit):
    """A mount to remove from config.json: an earlier run has added it for another driver."""

    __slots__ = ("destination", "source")
    kind = "drop-mount"

    def __init__(self, source: str, destination: str, reason: str) -> None:
        super().__init__(reason)
        self.source = source
        self.destination = destination

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.destination} <- {self.source}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"destination": self.destination, "source": self.source}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.remove_mount(self)


class WithheldItem:
    """Something that is not injected, and the reason. `name` is a library's SONAME, else the path in the container."""

    __slots__ = ("kind", "name", "reason")

    def __init__(self, kind: str, name: str, reason: str) -> None:
        self.kind, self.name, self.reason = kind, name, reason


class Plan:
    """The edits in the order in which they are applied, what is withheld, and warnings.

    Attributes:
        state: "inject"; "nothing" without a request or if it is refused; "done" if a CDI file has injected already.
        find_libcuda: finds out which libcuda the container's programs will load; None if the plan brings none.
    """

    __slots__ = ("edits", "find_libcuda", "state", "warnings", "withheld")

    def __init__(self, state: PlanState = "inject", warnings: list[str] | None = None) -> None:
        self.state = state
        self.edits: list[Edit] = []
        self.withheld: list[WithheldItem] = []
        self.warnings = warnings if warnings is not None else []
        self.find_libcuda: LibcudaFinder | None = None
