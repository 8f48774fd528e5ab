"""Check whether a CDI file matches this host: driver version, device numbers, paths and hook programs.

A CDI file is written once, and the host changes afterwards. A driver upgrade renames libraries; a reboot or a module
reload gives device nodes other numbers. Engines then fail with a bare stat error, or inject another device than the
file names (facts: cdi-file-goes-stale). The checks need only the parsed edits and one `stat` for each path in them.

Import budget: CDI.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.cdi.resolved_edits import list_edits_by_path, list_named_edits
from gpu_oci_hook.cdi.spec.mount_options import has_host_source
from gpu_oci_hook.cdi.translate import is_fully_specified_node, resolve_hook_program, strip_host_root
from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.host.device_nodes import DeviceMajors, read_device_majors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.cdi.spec.finding import Finding
    from gpu_oci_hook.host.root import Host

# Starts of the names of NVIDIA driver files; other files have versions of their own.
_DRIVER_FILE_PREFIXES = ("libcuda.so.", "libcudadebugger.so.", "libnv", "nvidia")
# The kernel module that owns a device node, by the node's path or the start of it.
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

# Missing paths that a sentence names.
_MAX_SHOWN = 3


class SpecMismatch:
    """The differences between a CDI file and this host.

    Attributes:
        host_name: the host, as `_name_host` names it.
        suffix: the same in brackets if it is another host than this one, else "".
        driver_versions: driver versions in the file that differ from the running driver's.
        running_version: version of the running driver.
        missing_paths: (JSON path, path) of each path that the host lacks.
        number_conflicts: (JSON path, sentence) of each wrong device number.
    """

    __slots__ = ("driver_versions", "host_name", "missing_paths", "number_conflicts", "running_version", "suffix")

    def __init__(self, running_version: str, host: Host) -> None:
        self.host_name = _name_host(host)
        self.suffix = f" ({self.host_name})" if host.prefix else ""
        self.running_version = running_version
        self.driver_versions: list[str] = []
        self.missing_paths: list[tuple[str, str]] = []
        self.number_conflicts: list[tuple[str, str]] = []

    def __bool__(self) -> bool:
        return bool(self.driver_versions or self.missing_paths or self.number_conflicts)

    @property
    def missing_program(self) -> str:
        """The program of a hook, if it is all that is missing and nothing else is different; else ""."""
        programs = {path for json_path, path in self.missing_paths if ".hooks[" in json_path}
        if len(programs) != 1 or self.driver_versions or self.number_conflicts:
            return ""
        return programs.pop() if all(".hooks[" in json_path for json_path, _ in self.missing_paths) else ""

    def describe(self) -> str:
        """Describe all differences in one sentence."""
        parts = []
        if self.driver_versions:
            written_for = ", ".join(self.driver_versions)
            running = f"{self.host_name} runs {self.running_version}"
            parts.append(f"the CDI file was written for driver {written_for}, and {running}")
        if self.missing_paths:
            count = f"{len(self.missing_paths)} missing path{'' if len(self.missing_paths) == 1 else 's'}"
            names = ", ".join(clip_text(path) for _, path in self.missing_paths[:_MAX_SHOWN])
            more = f" and {len(self.missing_paths) - _MAX_SHOWN} more" if len(self.missing_paths) > _MAX_SHOWN else ""
            parts.append(count if self.driver_versions else f"{count}: {names}{more}{self.suffix}")
        parts += [sentence for _, sentence in self.number_conflicts]
        return ", ".join(parts)


def list_stale_findings(data: object, path: str, host: Host, driver_version: str | None) -> list[Finding]:
    """List all differences between a CDI file and this host as errors; the driver version comes first.

    Arguments:
        data: the parsed file.
        path: path of the file, for people.
        driver_version: version of the running driver; None skips the comparison of versions.
    """
    mismatch = find_spec_mismatch(list_edits_by_path(data), host, driver_version, list_named_edits(data))
    if not mismatch:
        return []
    # Not at the top: a start that uses a file without differences needs neither.
    from gpu_oci_hook.cdi.provenance import build_stale_hint
    from gpu_oci_hook.cdi.spec.finding import Finding

    kind = get_member(data, "kind")
    kind = kind if isinstance(kind, str) else ""
    hint = build_stale_hint(kind, path, missing_program=mismatch.missing_program)
    findings: list[Finding] = []
    if mismatch.driver_versions:
        findings.append(Finding("error", path, "", mismatch.describe(), hint))
    for json_path, missing_path in mismatch.missing_paths:
        shown = clip_text(missing_path)
        findings.append(
            Finding("error", path, json_path, f"{shown} is missing on {_name_host(host)}", hint, variable_text=shown)
        )
    findings += [Finding("error", path, json_path, sentence, hint) for json_path, sentence in mismatch.number_conflicts]
    return findings


def _name_host(host: Host) -> str:
    """Return "this host", or the root of another one: a wrong --root is found by its name."""
    return f"the host below {host.root}" if host.prefix else "this host"


def find_spec_mismatch(
    edits_by_path: list[tuple[str, object]],
    host: Host,
    driver_version: str | None,
    named_edits: list[tuple[str, str, object]],
) -> SpecMismatch:
    """Compare edits with this host.

    Arguments:
        edits_by_path: (JSON path, `containerEdits`) of each part of a file.
        driver_version: version of the running driver; None skips the comparison of versions.
        named_edits: (JSON path, qualified name, `containerEdits`) of each device among these parts.
    """
    mismatch = SpecMismatch(driver_version or "", host)
    majors: DeviceMajors | None = None
    versions: dict[str, None] = {}
    for json_path, edits in edits_by_path:
        versions.update(dict.fromkeys(_check_mounts(mismatch, json_path, edits, host)))
        for index, node in enumerate(get_list(edits, "deviceNodes")):
            majors = majors or read_device_majors(host)
            _check_device_node(mismatch, f"{json_path}.deviceNodes[{index}]", node, host, majors)
        versions.update(dict.fromkeys(_check_hooks(mismatch, json_path, edits, host)))
    versions.pop(driver_version or "", None)
    mismatch.driver_versions = list(versions) if driver_version else []
    _check_device_identity(mismatch, edits_by_path, named_edits, host)
    return mismatch


def _check_device_identity(
    mismatch: SpecMismatch,
    edits_by_path: list[tuple[str, object]],
    named_edits: list[tuple[str, str, object]],
    host: Host,
) -> None:
    """Check that GPU nodes are those of this host's GPUs, and that each device has those of the GPU in its name."""
    nodes_by_path = {json_path: _list_node_sources(edits, host) for json_path, edits in edits_by_path}
    if not any(path.startswith("/dev/nvidia") for paths in nodes_by_path.values() for path in paths):
        return
    from gpu_oci_hook.cdi.registry.device_identity import DeviceIdentity

    identity = DeviceIdentity(host)
    told: set[str] = set()
    for json_path, paths in nodes_by_path.items():
        for index, path in enumerate(paths):
            sentence = identity.describe_foreign_node(path)
            if sentence and sentence not in told:
                told.add(sentence)
                mismatch.number_conflicts.append((f"{json_path}.deviceNodes[{index}]", sentence))
    for json_path, name, edits in named_edits:
        sentence = identity.describe_wrong_device(name, _list_node_sources(edits, host))
        if sentence:
            mismatch.number_conflicts.append((f"{json_path}.deviceNodes", sentence))


def _list_node_sources(edits: object, host: Host) -> list[str]:
    """Return the host path of each device node."""
    nodes = get_list(edits, "deviceNodes")
    return [strip_host_root(host, get_text(node, "hostPath") or get_text(node, "path")) for node in nodes]


def _check_mounts(mismatch: SpecMismatch, json_path: str, edits: object, host: Host) -> list[str]:
    """Check the mount sources; return the driver versions in their names."""
    versions: list[str] = []
    for index, mount in enumerate(get_list(edits, "mounts")):
        source = get_member(mount, "hostPath")
        if isinstance(source, str) and has_host_source(mount):
            versions += parse_driver_versions(source)
            if host.stat_path(strip_host_root(host, source)) is None:
                mismatch.missing_paths.append((f"{json_path}.mounts[{index}].hostPath", source))
    return versions


def _check_hooks(mismatch: SpecMismatch, json_path: str, edits: object, host: Host) -> list[str]:
    """Check the programs of hooks; return the driver versions that our own hook was written for."""
    versions: list[str] = []
    for index, hook in enumerate(get_list(edits, "hooks")):
        program = get_member(hook, "path")
        # The program of a startContainer hook is the container's.
        if (
            not isinstance(program, str)
            or not program.startswith("/")
            or get_member(hook, "hookName") == "startContainer"
        ):
            continue
        if not _is_executable_file(resolve_hook_program(host, program)):
            mismatch.missing_paths.append((f"{json_path}.hooks[{index}].path", program))
        args = get_list(hook, "args")
        if "--driver-version" in args[:-1]:
            version = args[args.index("--driver-version") + 1]
            if isinstance(version, str):
                versions.append(version)
    return versions


def parse_driver_versions(path: str) -> list[str]:
    """Parse the driver version in the name of a driver file, or of a directory of its firmware."""
    name = path.rpartition("/")[2]
    candidates = []
    if name.startswith(_DRIVER_FILE_PREFIXES) or "nvidia" in name:
        candidates.append(name.rpartition(".so.")[2] if ".so." in name else name.rpartition("-")[2])
    parent = ""
    for part in path.split("/"):
        if parent == "nvidia":
            candidates.append(part)  # firmware: .../nvidia/550.54.14/gsp_ga10x.bin
        parent = part
    return [text for text in dict.fromkeys(candidates) if is_driver_version(text)]


def _is_executable_file(path: str) -> bool:
    try:
        return os.access(path, os.X_OK) and not os.path.isdir(path)
    except ValueError:  # a NUL in the path
        return False


def _find_node_module(path: str) -> str:
    """Return the NVIDIA kernel module that owns a device node; "" for nodes of others."""
    if path in _MODULE_BY_PATH:
        return _MODULE_BY_PATH[path]
    if path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit():
        return "nvidia"
    return next((module for prefix, module in _MODULE_BY_PREFIX if path.startswith(prefix)), "")


def _check_device_node(mismatch: SpecMismatch, json_path: str, node: object, host: Host, majors: DeviceMajors) -> None:
    path, host_path = get_member(node, "path"), get_member(node, "hostPath")
    source = host_path if isinstance(host_path, str) and host_path else path if isinstance(path, str) else ""
    source = strip_host_root(host, source)
    status = host.stat_path(source, follow=False)
    is_complete = is_fully_specified_node(node)
    if status is None and not is_complete:
        mismatch.missing_paths.append((f"{json_path}.{'hostPath' if host_path else 'path'}", source))
        return
    is_node = status is not None and stat.S_IFMT(status.st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
    host_numbers = (os.major(status.st_rdev), os.minor(status.st_rdev)) if is_node and status is not None else None
    major, minor = get_member(node, "major"), get_member(node, "minor")
    spec_major = major if isinstance(major, int) and major and is_complete else None
    module = _find_node_module(source)
    if module:
        sentence = _compare_with_kernel(module, spec_major, host_numbers, source, majors)
    elif spec_major is not None and host_numbers is not None:
        spec_numbers = (spec_major, minor if isinstance(minor, int) else 0)
        sentence = ""
        if spec_numbers != host_numbers:
            there = f"the host's {source} is {host_numbers[0]}:{host_numbers[1]}"
            sentence = f"the CDI file says {spec_major}:{minor or 0}, {there}"
    else:
        return
    if sentence:
        mismatch.number_conflicts.append((f"{json_path}.major", sentence))


def _compare_with_kernel(
    module: str, spec_major: int | None, host_numbers: tuple[int, int] | None, source: str, majors: DeviceMajors
) -> str:
    """Compare the major of an NVIDIA node with that of its kernel module; "" if they are equal or unknown."""
    kernel_major = majors.major_of_module(module) or majors.majors_by_name.get(module)
    if spec_major is not None:
        claim, major = f"the CDI file says {spec_major}", spec_major
    elif host_numbers is not None:
        claim, major = f"the host's {source} has {host_numbers[0]}", host_numbers[0]
    else:
        return ""
    if major == kernel_major:
        return ""
    owner = majors.owner_of_major(major)
    kernel = f"the kernel says {kernel_major}" if kernel_major else f"the kernel has no {module}"
    return f"{claim}, {kernel}{f' ({major} is {owner})' if owner else ''}"
