"""Decide whether the image's CUDA forward-compatibility libraries are used instead of the host's libcuda.

NVIDIA supports a newer libcuda on an older kernel module on data-centre GPUs only (facts: cuda-compat-errors). The
image's files are judged by their names; no file of an image is parsed here.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.plan.compat_branches import COMPAT_BRANCHES, LONG_LIVED_BRANCHES
from gpu_oci_hook.request.require_expressions import compare_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_MAX_LISTED = 4  # an image can have thousands
_MAX_LINKS = 100


class CompatDecision:
    """The decision.

    Attributes:
        directory: the directory in the container whose libraries win, or "".
        reason: why.
        warning: a sentence for the user, or "".
        error: how CUDA fails in programs that load the compat library all the same; "" if it does not or is unknown.
    """

    __slots__ = ("directory", "error", "reason", "warning")

    def __init__(self, directory: str, reason: str, warning: str = "", error: str = "") -> None:
        self.directory = directory
        self.reason = reason
        self.warning = warning
        self.error = error


def decide_cuda_compat(
    compat_libraries: tuple[tuple[str, str], ...],
    driver_version: str,
    policy: str,
    *,
    has_only_datacenter_gpus: Callable[[], bool],
) -> CompatDecision:
    """Compare the libcuda files in the image's compat directory with the host's driver.

    Arguments:
        compat_libraries: (path in the container, version from the file's name) of each regular libcuda.so.<version>.
        driver_version: the host's driver version.
        policy: `[inject] cuda-compat`: "auto", "always" or "never".
        has_only_datacenter_gpus: whether all of the container's GPUs are data-centre GPUs; called only when it matters.
    """
    if not compat_libraries:
        return CompatDecision("", "the image has no compat libraries")
    if policy == "never":
        return CompatDecision("", '[inject] cuda-compat is "never"')
    if len(compat_libraries) > 1:
        names = ", ".join(path for path, _ in compat_libraries[:_MAX_LISTED])
        if len(compat_libraries) > _MAX_LISTED:
            names += f" and {len(compat_libraries) - _MAX_LISTED} more"
        return CompatDecision("", "ambiguous", f"the image has several CUDA compat libraries, so none is used: {names}")
    if not driver_version and policy != "always":
        return CompatDecision("", "the host's driver version is unknown, so its own libcuda is used")
    path, version = compat_libraries[0]
    directory = path.rpartition("/")[0] or "/"
    if policy == "always":
        return CompatDecision(directory, '[inject] cuda-compat is "always"')
    compat_major, host_major = version.partition(".")[0], driver_version.partition(".")[0]
    order = compare_versions(compat_major, host_major)
    if order == 0:
        return CompatDecision("", f"compat {version} and the driver {driver_version} have the same major version")
    if order < 0:
        return CompatDecision("", f"compat {version} is older than the driver {driver_version}")
    if not has_only_datacenter_gpus():
        return CompatDecision(
            "",
            "forward compatibility is for data-centre GPUs",
            f"the image's compat libcuda {version} is newer than the driver {driver_version}, but using it on this GPU "
            "would be CUDA error 804, so the host's libcuda is used",
            "is newer and fails with CUDA error 804 on this GPU",
        )
    branches, is_known = list_compat_branches(int(compat_major))
    if host_major not in map(str, branches):
        supported = ", ".join(map(str, branches))
        basis = "is made for the driver branches" if is_known else "is used on the long-lived driver branches only:"
        return CompatDecision(
            "",
            f"compat {version} {basis} {supported}, and the driver {driver_version} is of branch {host_major}",
            f"the image's compat libcuda {version} {basis} {supported}; the driver {driver_version} is of branch "
            f"{host_major}, on which CUDA would fail with error 803, so the host's libcuda is used",
            f"is newer and fails with CUDA error 803 on driver branch {host_major}",
        )
    return CompatDecision(
        directory,
        f"compat {version} is newer than the driver {driver_version} ({compat_major} > {host_major}) and supports "
        f"branch {host_major}",
    )


def decide_board_compat(compat_dir: str, environment_version: str, host_cuda: str, policy: str) -> CompatDecision:
    """Compare the CUDA version of the image's compat directory with that of a Tegra board.

    A board's libcuda has no version in its name. NVIDIA's packages have theirs in the directory, as in
    /usr/local/cuda-13.2/compat_orin (facts: cuda-compat-boards).

    Arguments:
        compat_dir: the directory without links.
        environment_version: the container's CUDA_VERSION, for a directory without a version; "" if it is not set.
        host_cuda: the CUDA version of the board's libcuda; "" if it is unknown.
        policy: `[inject] cuda-compat`.
    """
    if policy == "never":
        return CompatDecision("", '[inject] cuda-compat is "never"')
    if policy == "always":
        return CompatDecision(compat_dir, '[inject] cuda-compat is "always"')
    names = [part.removeprefix("cuda-") for part in compat_dir.split("/") if part.startswith("cuda-")]
    version = names[0] if names else ".".join(environment_version.split(".")[:2])
    if not version.replace(".", "").isdigit() or not host_cuda:
        unknown = f"the CUDA version of {compat_dir}" if host_cuda else "the board's CUDA version"
        return CompatDecision("", f"{unknown} is unknown, so the board's own libcuda is used")
    if compare_versions(version, host_cuda) > 0:
        return CompatDecision(compat_dir, f"compat for CUDA {version} is newer than the board's CUDA {host_cuda}")
    return CompatDecision("", f"compat for CUDA {version} is not newer than the board's CUDA {host_cuda}")


def list_compat_branches(compat_branch: int) -> tuple[list[int], bool]:
    """Return the driver branches on which compat libraries of a branch work, and whether they are in the table.

    For an unknown branch these are the older long-lived ones.
    """
    known = COMPAT_BRANCHES.get(compat_branch)
    if known is not None:
        return list(known), True
    return [branch for branch in LONG_LIVED_BRANCHES if branch < compat_branch], False


def list_compat_links(
    compat_directory: str, compat_names: Iterable[str], names: Collection[str]
) -> list[tuple[str, str]]:
    """Return (name, target) of links, next to the host's libraries, to the files of compat libraries.

    `ldconfig` in a container links a SONAME to the newest file in its directory. With these links that is the compat
    library there too, and not the host's, for programs that have the directory in LD_LIBRARY_PATH.

    Arguments:
        compat_names: the names in the compat directory.
        names: of the host's libraries and their links.
    """
    stems = {name.partition(".so.")[0] for name in names}
    added = [name for name in compat_names if name not in names and name.partition(".so.")[0] in stems]
    return [(name, f"{compat_directory}/{name}") for name in added[:_MAX_LINKS]]
