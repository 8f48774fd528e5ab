"""Does a CDI file fit this host: the driver's version, device numbers, paths and hook programs.

A file is made once and the machine goes on: a driver's upgrade renames its libraries, a reboot or a reload gives
device nodes other numbers, and an engine then fails with a bare stat error, or hands out another device than it says
(field reports A3-01, A3-02, A2-10). Nothing here is read of the file but what was parsed. Cost rule: hot where a CDI
file is used; one `stat` for each path that the file names.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.cdi.apply import below, identified, is_of_host, program
from gpu_oci_hook.errors import clipped
from gpu_oci_hook.formats.oci import items, member
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import nodes as host_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.cdi.finding import Finding
    from gpu_oci_hook.host.root import Host

# Files of NVIDIA's driver, by how their names begin; others have versions that are their own.
_DRIVER_FILES = ("libcuda.so.", "libcudadebugger.so.", "libnv", "nvidia")
# The module whose major a node has, by the node's path or how it begins.
_EXACT = {
    "/dev/nvidiactl": "nvidia",
    "/dev/nvidia-modeset": "nvidia-modeset",
    "/dev/nvidia-uvm": "nvidia-uvm",
    "/dev/nvidia-uvm-tools": "nvidia-uvm",
}
_BELOW = (("/dev/nvidia-caps/", "nvidia-caps"), ("/dev/nvidia-caps-imex-channels/", "nvidia-caps-imex-channels"))

# Kinds that our own generator makes files of, and its options for them.
OURS = {
    "nvidia.com/gpu": "",
    "runtime.nvidia.com/gpu": "--vendor runtime.nvidia.com",
    "management.nvidia.com/gpu": "--mode management",
}
# How a cure begins that makes a whole file anew.
ANEW = "Write it anew"

# Missing paths that a sentence names.
_SHOWN = 3


class Mismatch:
    """What does not fit, before it is worded.

    Attributes:
        versions: of the driver that the file was written for, where they are others than the running one's.
        running: the running driver's.
        missing: (JSON path, path) of what the host does not have.
        numbers: (JSON path, sentence) of device numbers.
    """

    __slots__ = ("missing", "numbers", "running", "versions")

    def __init__(self, running: str) -> None:
        self.running = running
        self.versions: list[str] = []
        self.missing: list[tuple[str, str]] = []
        self.numbers: list[tuple[str, str]] = []

    def __bool__(self) -> bool:
        return bool(self.versions or self.missing or self.numbers)

    def text(self) -> str:
        """All of it in one sentence."""
        said = []
        if self.versions:
            said.append(f"spec written for {', '.join(self.versions)}, running driver {self.running}")
        if self.missing:
            count = f"{len(self.missing)} missing path{'' if len(self.missing) == 1 else 's'}"
            names = ", ".join(clipped(path) for _, path in self.missing[:_SHOWN])
            more = f" and {len(self.missing) - _SHOWN} more" if len(self.missing) > _SHOWN else ""
            said.append(count if self.versions else f"{count}: {names}{more}")
        said += [sentence for _, sentence in self.numbers]
        return ", ".join(said)


def cure(kind: str, path: str, own: tuple[str, ...] = ()) -> str:
    """What to do about a file that does not fit.

    A file of ours knows by which options it was made; one of the same kind that another tool has written does not.

    Arguments:
        kind: of the file. path: where it lies. own: more kinds that we make files for.
    """
    from gpu_oci_hook.cdi import origin

    if origin.is_ours(path):
        return f"{ANEW}: gpu-oci-hook cdi refresh --output {path}"
    if kind in OURS or kind in own:
        return anew(kind, path)
    return f"{ANEW} with the tool that made it, or remove it"


def anew(kind: str, path: str, *options: str) -> str:
    """The cure for a file of a kind that we make files for: the command, with more options of `cdi generate`."""
    words = " ".join(["gpu-oci-hook cdi generate", *OURS.get(kind, "").split(), *options, "--output", path])
    return f"{ANEW}: {words}"


def findings(data: object, path: str, host: Host, version: str | None) -> list[Finding]:
    """Everything about a spec that does not fit this host, each an error; a sentence for the whole comes first.

    Arguments:
        data: the spec as parsed. path: the file, for people.
        version: of the running driver; None when none runs, then versions are not compared.
    """
    found = look(_edits(data), host, version)
    if not found:
        return []
    from gpu_oci_hook.cdi.finding import Finding

    kind = member(data, "kind")
    what = cure(kind if isinstance(kind, str) else "", path)
    listed: list[Finding] = []
    if found.versions:
        listed.append(Finding("error", path, "", found.text(), what))
    for where, name in found.missing:
        about = clipped(name)
        listed.append(Finding("error", path, where, f"{about} is missing on this host", what, about=about))
    listed += [Finding("error", path, where, sentence, what) for where, sentence in found.numbers]
    return listed


def look(said: list[tuple[str, object]], host: Host, version: str | None) -> Mismatch:
    """What does not fit, of edits with their JSON paths; see `findings`."""
    found = Mismatch(version or "")
    numbers: host_nodes.Majors | None = None
    versions: dict[str, None] = {}
    for where, edits in said:
        for place, mount in enumerate(items(edits, "mounts")):
            source = member(mount, "hostPath")
            if not isinstance(source, str) or not is_of_host(mount):
                continue
            if version:
                versions.update(dict.fromkeys(of_driver(source)))
            if host.status(below(host, source)) is None:
                found.missing.append((f"{where}.mounts[{place}].hostPath", source))
        for place, node in enumerate(items(edits, "deviceNodes")):
            numbers = numbers or host_nodes.majors(host)
            _node(found, f"{where}.deviceNodes[{place}]", node, host, numbers)
        for place, hook in enumerate(items(edits, "hooks")):
            run = member(hook, "path")
            if not isinstance(run, str) or not run.startswith("/") or member(hook, "hookName") == "startContainer":
                continue
            if not _runs(program(host, run)):
                found.missing.append((f"{where}.hooks[{place}].path", run))
            words = items(hook, "args")
            if version and "--driver-version" in words[:-1]:  # of our own hook: what the file was made for
                made_for = words[words.index("--driver-version") + 1]
                if isinstance(made_for, str):
                    versions[made_for] = None
    versions.pop(version or "", None)
    found.versions = list(versions)
    return found


def of_driver(path: str) -> list[str]:
    """The driver's version in the name of one of its files, or of a directory of its firmware."""
    above, _, name = path.rpartition("/")
    said = []
    if name.startswith(_DRIVER_FILES) or "nvidia" in name:
        said.append(name.rpartition(".so.")[2] if ".so." in name else name.rpartition("-")[2])
    for directory, inside in zip(above.split("/"), above.split("/")[1:], strict=False):
        if directory == "nvidia":
            said.append(inside)  # firmware: .../nvidia/550.54.14/gsp_ga10x.bin
    if above.endswith("/nvidia"):
        said.append(name)
    return [text for text in dict.fromkeys(said) if host_gpus.driver_like(text)]


def _runs(path: str) -> bool:
    try:
        return os.access(path, os.X_OK) and not os.path.isdir(path)
    except ValueError:  # a NUL in it
        return False


def _edits(data: object) -> list[tuple[str, object]]:
    """The edits of a spec with their JSON paths."""
    return [("containerEdits", member(data, "containerEdits"))] + [
        (f"devices[{place}].containerEdits", member(device, "containerEdits"))
        for place, device in enumerate(items(data, "devices"))
    ]


def _module(path: str) -> str:
    """The module of NVIDIA's whose node this is; "" for another one's."""
    if path in _EXACT:
        return _EXACT[path]
    if path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit():
        return "nvidia"
    return next((module for begin, module in _BELOW if path.startswith(begin)), "")


def _node(found: Mismatch, where: str, node: object, host: Host, numbers: host_nodes.Majors) -> None:
    path, source = member(node, "path"), member(node, "hostPath")
    source = below(host, source if isinstance(source, str) and source else path if isinstance(path, str) else "")
    major, minor = member(node, "major"), member(node, "minor")
    status = host.status(source, follow=False)
    special = status is not None and stat.S_IFMT(status.st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
    said = major if isinstance(major, int) and major and identified(node) else None
    if status is None and not identified(node):
        found.missing.append((f"{where}.hostPath" if member(node, "hostPath") else f"{where}.path", source))
        return
    module = _module(source)
    if module:
        kernel = numbers.of(module) or numbers.names.get(module)
        who, has = "spec", said
        if has is None and special and status is not None:
            who, has = f"the host's {source}", os.major(status.st_rdev)
        if has is not None and has != kernel:
            owner = numbers.owner(has)
            theirs = f" ({has} is {owner})" if owner else ""
            tells = f"kernel says {kernel}" if kernel else f"kernel has no {module}"
            verb = "says" if who == "spec" else "has"
            found.numbers.append((f"{where}.major", f"{who} {verb} {has}, {tells}{theirs}"))
    elif said is not None and special and status is not None:
        is_now = (os.major(status.st_rdev), os.minor(status.st_rdev))
        if (said, minor if isinstance(minor, int) else 0) != is_now:
            sentence = f"spec says {said}:{minor or 0}, the host's {source} is {is_now[0]}:{is_now[1]}"
            found.numbers.append((f"{where}.major", sentence))
