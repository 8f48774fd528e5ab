"""What goes in beside the driver's own nodes and files: one object that every kind of extra adds to.

Cost rule: hot, no imports; the modules that find extras are imported only for a request that has one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DeviceNode, DriverFile


class OptionalItems:
    """Nodes and files with their reasons.

    Attributes:
        nodes: (node, reason): made or bound as the driver's own are, with a rule each.
        best_effort_nodes: the same for nodes that a start does without where they cannot be given.
        generated_files: (path in the container, content, reason, always): generated files. One that is not `always` only
            takes the place of what the image has there.
        files: (file, reason): mounted at their `container` place, libraries among the driver's; optional as all
            files that are no libraries.
        links: (path in the container, target, reason): symbolic links below the container's root. Where that is
            a tmpfs of the container's, their directory comes from us and has nothing else in it.
        excluded_files: source of a driver file to the reason why it does not go in after all.
        withheld: (kind, name, reason).
        warnings: sentences for people.
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
        self.generated_files: list[tuple[str, bytes, str, bool]] = []
        self.files: list[tuple[DriverFile, str]] = []
        self.links: list[tuple[str, str, str]] = []
        self.excluded_files: dict[str, str] = {}
        self.withheld: list[tuple[str, str, str]] = []
        self.warnings: list[str] = []
