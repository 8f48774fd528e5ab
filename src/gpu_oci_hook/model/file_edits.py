"""The edits that make files, links and directories: below a container's root, in its bundle or on the host.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.model.edits import Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.rootfs_edits import RootfsEditor
    from gpu_oci_hook.generate.content import ContentBuilder


class PrepareDirectory(Edit):
    """A directory on the host that containers share: an empty file for each library that is mounted there, and links.

    It is prepared once and mounted read-only, so a start writes nothing and the image's tree stays as it is.

    Attributes:
        source: its path on the host. The name contains a digest of the entries, so an existing directory is right.
        destination: its path in the container.
        entries: (name, link target) in order; an empty target means an empty file.
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

    def apply_to_rootfs(self, editor: RootfsEditor) -> None:
        """See `Edit.apply_to_rootfs`."""
        editor.prepare_directory(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_directory(self)


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

    def apply_to_rootfs(self, editor: RootfsEditor) -> None:
        """See `Edit.apply_to_rootfs`."""
        editor.make_link(self)

    def is_in_rootfs(self, editor: RootfsEditor) -> bool:
        """See `Edit.is_in_rootfs`."""
        return editor.has_link(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_link(self)


class AddFile(Edit):
    """A generated file below the container's root.

    Attributes:
        bind_mounted: the file is written into the bundle; a mount brings it into the container.
        optional: a failure to write it does not stop the start, since only a later `ldconfig` in the container needs
            it.
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

    def apply_to_rootfs(self, editor: RootfsEditor) -> None:
        """See `Edit.apply_to_rootfs`."""
        editor.write_file(self)

    def is_in_rootfs(self, editor: RootfsEditor) -> bool:
        """See `Edit.is_in_rootfs`."""
        return editor.has_file(self)

    def add_to_cdi(self, builder: ContentBuilder) -> None:
        """See `Edit.add_to_cdi`."""
        builder.add_file(self)


class AddHostLink(Edit):
    """A symbolic link in the host's /dev/char or /dev/block, from which systemd cgroup drivers know a device node."""

    __slots__ = ("path", "target")
    kind = "host-link"

    def __init__(self, path: str, target: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.target = target

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"{self.path} -> {self.target} on the host"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"path": self.path, "target": self.target}
