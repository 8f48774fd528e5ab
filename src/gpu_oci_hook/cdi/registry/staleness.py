"""Does a CDI file fit this host: the driver's version, device numbers, paths and hook programs.

A file is made once and the machine goes on: a driver's upgrade renames its libraries, a reboot or a reload gives
device nodes other numbers, and an engine then fails with a bare stat error, or hands out another device than it says
(field reports A3-01, A3-02, A2-10). Nothing here is read of the file but what was parsed. Cost rule: hot where a CDI
file is used; one `stat` for each path that the file names.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.cdi.spec.mount_options import has_host_source
from gpu_oci_hook.cdi.translate import is_fully_specified_node, resolve_hook_program, strip_host_root
from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.device_nodes import DeviceMajors, read_device_majors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.cdi.spec.finding import Finding
    from gpu_oci_hook.host.root import Host

# Files of NVIDIA's driver, by how their names begin; others have versions that are their own.
_DRIVER_FILE_PREFIXES = ("libcuda.so.", "libcudadebugger.so.", "libnv", "nvidia")
# The module whose major a node has, by the node's path or how it begins.
_MODULE_BY_PATH = {
    "/dev/nvidiactl": "nvidia",
    "/dev/nvidia-modeset": "nvidia-modeset",
    "/dev/nvidia-uvm": "nvidia-uvm",
    "/dev/nvidia-uvm-tools": "nvidia-uvm",
}
_MODULE_BY_PREFIX = (
    ("/dev/nvidia-caps/", "nvidia-caps"),
    ("/dev/nvidia-caps-imex-channels/", "nvidia-caps-imex-channels"),
)

# Kinds that our own generator makes files of, and its options for them.
GENERATE_OPTIONS_BY_KIND = {
    "nvidia.com/gpu": "",
    "runtime.nvidia.com/gpu": "--vendor runtime.nvidia.com",
    "management.nvidia.com/gpu": "--mode management",
}
# How a cure begins that makes a whole file anew.
REWRITE_HINT_PREFIX = "Write it anew"

# Missing paths that a sentence names.
_MAX_SHOWN = 3


class SpecMismatch:
    """What does not fit, before it is worded.

    Attributes:
        driver_versions: of the driver that the file was written for, where they are others than the running one's.
        running_version: the running driver's.
        missing_paths: (JSON path, path) of what the host does not have.
        number_conflicts: (JSON path, sentence) of device numbers.
    """

    __slots__ = ("driver_versions", "missing_paths", "number_conflicts", "running_version")

    def __init__(self, running_version: str) -> None:
        self.running_version = running_version
        self.driver_versions: list[str] = []
        self.missing_paths: list[tuple[str, str]] = []
        self.number_conflicts: list[tuple[str, str]] = []

    def __bool__(self) -> bool:
        return bool(self.driver_versions or self.missing_paths or self.number_conflicts)

    def describe(self) -> str:
        """All of it in one sentence."""
        said = []
        if self.driver_versions:
            said.append(f"spec written for {', '.join(self.driver_versions)}, running driver {self.running_version}")
        if self.missing_paths:
            count = f"{len(self.missing_paths)} missing path{'' if len(self.missing_paths) == 1 else 's'}"
            names = ", ".join(clip_text(path) for _, path in self.missing_paths[:_MAX_SHOWN])
            more = f" and {len(self.missing_paths) - _MAX_SHOWN} more" if len(self.missing_paths) > _MAX_SHOWN else ""
            said.append(count if self.driver_versions else f"{count}: {names}{more}")
        said += [sentence for _, sentence in self.number_conflicts]
        return ", ".join(said)


def build_stale_hint(kind: str, path: str, own_kinds: tuple[str, ...] = ()) -> str:
    """What to do about a file that does not fit.

    A file of ours knows by which options it was made; one of the same kind that another tool has written does not.

    Arguments:
        kind: of the file. path: where it lies. own_kinds: more kinds that we make files for.
    """
    from gpu_oci_hook.cdi.provenance import is_own_spec_file

    if is_own_spec_file(path):
        return f"{REWRITE_HINT_PREFIX}: gpu-oci-hook cdi refresh --output {path}"
    if kind in GENERATE_OPTIONS_BY_KIND or kind in own_kinds:
        return build_generate_hint(kind, path)
    return f"{REWRITE_HINT_PREFIX} with the tool that made it, or remove it"


def build_generate_hint(kind: str, path: str, *options: str) -> str:
    """The cure for a file of a kind that we make files for: the command, with more options of `cdi generate`."""
    words = " ".join(
        ["gpu-oci-hook cdi generate", *GENERATE_OPTIONS_BY_KIND.get(kind, "").split(), *options, "--output", path]
    )
    return f"{REWRITE_HINT_PREFIX}: {words}"


def list_stale_findings(data: object, path: str, host: Host, driver_version: str | None) -> list[Finding]:
    """Everything about a spec that does not fit this host, each an error; a sentence for the whole comes first.

    Arguments:
        data: the spec as parsed. path: the file, for people.
        driver_version: of the running driver; None when none runs, then versions are not compared.
    """
    found = find_spec_mismatch(_list_edits_by_path(data), host, driver_version)
    if not found:
        return []
    from gpu_oci_hook.cdi.spec.finding import Finding

    kind = get_member(data, "kind")
    what = build_stale_hint(kind if isinstance(kind, str) else "", path)
    listed: list[Finding] = []
    if found.driver_versions:
        listed.append(Finding("error", path, "", found.describe(), what))
    for where, name in found.missing_paths:
        about = clip_text(name)
        listed.append(Finding("error", path, where, f"{about} is missing on this host", what, variable_text=about))
    listed += [Finding("error", path, where, sentence, what) for where, sentence in found.number_conflicts]
    return listed


def find_spec_mismatch(edits_by_path: list[tuple[str, object]], host: Host, driver_version: str | None) -> SpecMismatch:
    """What does not fit, of edits with their JSON paths; see `list_stale_findings`."""
    found = SpecMismatch(driver_version or "")
    numbers: DeviceMajors | None = None
    versions: dict[str, None] = {}
    for where, edits in edits_by_path:
        for place, mount in enumerate(get_list(edits, "mounts")):
            source = get_member(mount, "hostPath")
            if not isinstance(source, str) or not has_host_source(mount):
                continue
            if driver_version:
                versions.update(dict.fromkeys(parse_driver_versions(source)))
            if host.stat_path(strip_host_root(host, source)) is None:
                found.missing_paths.append((f"{where}.mounts[{place}].hostPath", source))
        for place, node in enumerate(get_list(edits, "deviceNodes")):
            numbers = numbers or read_device_majors(host)
            _check_device_node(found, f"{where}.deviceNodes[{place}]", node, host, numbers)
        for place, hook in enumerate(get_list(edits, "hooks")):
            run = get_member(hook, "path")
            if not isinstance(run, str) or not run.startswith("/") or get_member(hook, "hookName") == "startContainer":
                continue
            if not _is_executable_file(resolve_hook_program(host, run)):
                found.missing_paths.append((f"{where}.hooks[{place}].path", run))
            words = get_list(hook, "args")
            if driver_version and "--driver-version" in words[:-1]:  # of our own hook: what the file was made for
                made_for = words[words.index("--driver-version") + 1]
                if isinstance(made_for, str):
                    versions[made_for] = None
    versions.pop(driver_version or "", None)
    found.driver_versions = list(versions)
    return found


def parse_driver_versions(path: str) -> list[str]:
    """The driver's version in the name of one of its files, or of a directory of its firmware."""
    above, _, name = path.rpartition("/")
    said = []
    if name.startswith(_DRIVER_FILE_PREFIXES) or "nvidia" in name:
        said.append(name.rpartition(".so.")[2] if ".so." in name else name.rpartition("-")[2])
    for directory, inside in zip(above.split("/"), above.split("/")[1:], strict=False):
        if directory == "nvidia":
            said.append(inside)  # firmware: .../nvidia/550.54.14/gsp_ga10x.bin
    if above.endswith("/nvidia"):
        said.append(name)
    return [text for text in dict.fromkeys(said) if is_driver_version(text)]


def _is_executable_file(path: str) -> bool:
    try:
        return os.access(path, os.X_OK) and not os.path.isdir(path)
    except ValueError:  # a NUL in it
        return False


def _list_edits_by_path(data: object) -> list[tuple[str, object]]:
    """The edits of a spec with their JSON paths."""
    return [("containerEdits", get_member(data, "containerEdits"))] + [
        (f"devices[{place}].containerEdits", get_member(device, "containerEdits"))
        for place, device in enumerate(get_list(data, "devices"))
    ]


def _find_node_module(path: str) -> str:
    """The module of NVIDIA's whose node this is; "" for another one's."""
    if path in _MODULE_BY_PATH:
        return _MODULE_BY_PATH[path]
    if path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit():
        return "nvidia"
    return next((module for begin, module in _MODULE_BY_PREFIX if path.startswith(begin)), "")


def _check_device_node(mismatch: SpecMismatch, json_path: str, node: object, host: Host, majors: DeviceMajors) -> None:
    path, source = get_member(node, "path"), get_member(node, "hostPath")
    source = strip_host_root(
        host, source if isinstance(source, str) and source else path if isinstance(path, str) else ""
    )
    major, minor = get_member(node, "major"), get_member(node, "minor")
    status = host.stat_path(source, follow=False)
    special = status is not None and stat.S_IFMT(status.st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
    said = major if isinstance(major, int) and major and is_fully_specified_node(node) else None
    if status is None and not is_fully_specified_node(node):
        mismatch.missing_paths.append(
            (f"{json_path}.hostPath" if get_member(node, "hostPath") else f"{json_path}.path", source)
        )
        return
    module = _find_node_module(source)
    if module:
        kernel = majors.major_of_module(module) or majors.majors_by_name.get(module)
        who, has = "spec", said
        if has is None and special and status is not None:
            who, has = f"the host's {source}", os.major(status.st_rdev)
        if has is not None and has != kernel:
            owner = majors.owner_of_major(has)
            theirs = f" ({has} is {owner})" if owner else ""
            tells = f"kernel says {kernel}" if kernel else f"kernel has no {module}"
            verb = "says" if who == "spec" else "has"
            mismatch.number_conflicts.append((f"{json_path}.major", f"{who} {verb} {has}, {tells}{theirs}"))
    elif said is not None and special and status is not None:
        is_now = (os.major(status.st_rdev), os.minor(status.st_rdev))
        if (said, minor if isinstance(minor, int) else 0) != is_now:
            sentence = f"spec says {said}:{minor or 0}, the host's {source} is {is_now[0]}:{is_now[1]}"
            mismatch.number_conflicts.append((f"{json_path}.major", sentence))
