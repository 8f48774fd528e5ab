"""The small edits that a plan is made of: data, each with its reason; pure.

An edit knows how to describe itself to a person and to a program. Applying it is the business of
`container.spec_edits` (what goes into config.json) and `container.rootfs_edits` (what goes below the root).
Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    PlanState = Literal["inject", "nothing", "done"]


class Edit:
    """One change, and why it is made.

    Attributes:
        from_cdi_file: it is from somebody else's CDI file; `cdi.translate` makes it.
    """

    __slots__ = ("reason",)
    kind = ""
    from_cdi_file = False

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def describe(self) -> str:
        """The change in one line, without its reason."""
        raise NotImplementedError

    def to_data(self) -> dict[str, object]:
        """The change as JSON-able data, without its kind and reason."""
        raise NotImplementedError


class AddDeviceNode(Edit):
    """A device node in `linux.devices`: the runtime makes it, so it need not exist on the host."""

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
        return {
            "path": self.path,
            "major": self.major,
            "minor": self.minor,
            "mode": f"{self.mode:04o}",
            "uid": self.uid,
            "gid": self.gid,
        }


class AddDeviceRule(Edit):
    """An allow rule in `linux.resources.devices`: in the spec it survives `systemctl daemon-reload`."""

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


class AddMount(Edit):
    """A bind mount of something of the host's; `clear_mount_point` says that the place lies in the image's own tree."""

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


class PrepareDirectory(Edit):
    """A directory of the host's with everything that a container sees beside its libraries, prepared once.

    Or one with links alone. It holds an empty file for each library, where that is mounted, and every link. Mounted
    read-only as a whole it costs a start no writing at all, and leaves nothing in the image's tree.

    Attributes:
        source: on the host; its name tells its content, so that one that is there is right.
        destination: in the container.
        entries: (name, link text) in order; an empty text means an empty file.
    """

    __slots__ = ("destination", "entries", "source")
    kind = "directory"

    def __init__(self, source: str, destination: str, entries: tuple[tuple[str, str], ...], reason: str) -> None:
        super().__init__(reason)
        self.source = source
        self.destination = destination
        self.entries = entries

    def describe(self) -> str:
        """See `Edit.describe`."""
        links = sum(1 for _, target in self.entries if target)
        if links == len(self.entries):
            return f"{self.destination} with {', '.join(f'{name} -> {target}' for name, target in self.entries)}"
        return f"{self.destination} with {len(self.entries) - links} libraries and {links} links"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {
            "destination": self.destination,
            "source": self.source,
            "links": {name: target for name, target in self.entries if target},
        }


class AddLink(Edit):
    """A symbolic link below the container's root."""

    __slots__ = ("path", "target")
    kind = "link"

    def __init__(self, path: str, target: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.target = target

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.path} -> {self.target}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"path": self.path, "target": self.target}


class AddFile(Edit):
    """A generated file below the container's root; where that cannot be written, it is bind-mounted.

    An optional one never stops a start: the loader's drop-in serves a later `ldconfig` in the container only.
    """

    __slots__ = ("bind_mounted", "content", "optional", "path")
    kind = "file"

    def __init__(
        self, path: str, content: bytes, reason: str, *, bind_mounted: bool = False, optional: bool = False
    ) -> None:
        super().__init__(reason)
        self.optional = optional
        self.path = path
        self.content = content
        self.bind_mounted = bind_mounted

    def describe(self) -> str:
        """See `Edit.describe`."""
        how = ", bind-mounted from the bundle" if self.bind_mounted else ""
        return f"{self.path} ({len(self.content)} bytes{how})"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"path": self.path, "size": len(self.content), "mounted": self.bind_mounted}


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


class AddHook(Edit):
    """A hook that the low-level runtime runs; absolute path, and an environment that is never empty.

    runc up to 1.2 hands a hook without one the image's environment (CVE-2025-23266).
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


class DropHook(Edit):
    """A hook taken out of the spec: it would do our work a second time."""

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


class DropMount(Edit):
    """A mount of our own taken out of the spec: it is from an earlier driver."""

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


class WithheldItem:
    """Something that does not go in, and why."""

    __slots__ = ("kind", "name", "reason")

    def __init__(self, kind: str, name: str, reason: str) -> None:
        self.kind = kind
        self.name = name
        self.reason = reason


class Plan:
    """The edits in the order in which they are applied, what is withheld, and warnings.

    Attributes:
        state: "inject"; "nothing" if nothing is requested or the request is refused; "done" if a CDI file has injected
            already.
    """

    __slots__ = ("edits", "state", "warnings", "withheld")

    def __init__(self, state: PlanState = "inject", warnings: list[str] | None = None) -> None:
        self.state = state
        self.edits: list[Edit] = []
        self.withheld: list[WithheldItem] = []
        self.warnings = warnings if warnings is not None else []


# What a hook without an environment of its own gets.
DEFAULT_HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
