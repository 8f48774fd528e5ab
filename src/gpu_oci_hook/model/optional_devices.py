"""Optional devices and files: one object to which each optional feature adds its own.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DeviceNode, DriverFile

    GeneratedFile = tuple[str, bytes, str, bool]  # path in the container, content, reason, written in any case
    OptionalLink = tuple[str, str, str]  # path in the container, target, reason


class OptionalItems:
    """Optional nodes and files, each with its reason.

    Attributes:
        nodes: (node, reason) of nodes that are created or bound like the driver's own, each with a device rule.
        best_effort_nodes: the same for nodes that are left out where the host or a user namespace does not allow them.
        generated_files: files to write. One that is not written in any case only replaces a file of the image.
        files: (file, reason) of files to mount at their `container_path`, libraries next to the driver's. All but
            libraries are optional.
        links: symbolic links below the container's root. In a tmpfs of the container their directory is mounted as a
            whole and contains nothing else.
        excluded_files: source of a driver file to the reason why it is not injected.
        withheld: (kind, name, reason).
        warnings: sentences for the user.
    """

    __slots__ = (
        "best_effort_nodes",
        "excluded_files",
        "files",
        "generated_files",
        "links",
        "nodes",
        "warnings",
        "withheld",
    )

    def __init__(self) -> None:
        self.nodes: list[tuple[DeviceNode, str]] = []
        self.best_effort_nodes: list[tuple[DeviceNode, str]] = []
        self.generated_files: list[GeneratedFile] = []
        self.files: list[tuple[DriverFile, str]] = []
        self.links: list[OptionalLink] = []
        self.excluded_files: dict[str, str] = {}
        self.withheld: list[tuple[str, str, str]] = []
        self.warnings: list[str] = []
