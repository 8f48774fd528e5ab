"""Whether the image's CUDA forward-compatibility libraries are used in place of the host's libcuda; pure.

NVIDIA allows a newer libcuda on an older kernel module on data-centre GPUs only; elsewhere CUDA answers with
error 804, and an older libcuda than the module's with 803 (CUDA compatibility guide; libnvidia-container facts
2.10). The image's files are judged by their names alone: nothing of an image is parsed here.
"""

from __future__ import annotations

from gpu_oci_hook.request.requirements import compare

_SHOWN = 4  # an image can have thousands


class Compat:
    """The verdict: the directory in the container whose libraries win, or ""; the reason; a warning or ""."""

    __slots__ = ("directory", "reason", "warning")

    def __init__(self, directory: str, reason: str, warning: str = "") -> None:
        self.directory = directory
        self.reason = reason
        self.warning = warning


def decide(found: tuple[tuple[str, str], ...], host: str, policy: str, *, datacenter: bool) -> Compat:
    """Weighs the libcuda files below the image's compat directory against the host's driver.

    Arguments:
        found: (path in the container, version from the file's name) of each regular libcuda.so.<version>.
        host: the host's driver version.
        policy: `[inject] cuda-compat`: "auto", "always" or "never".
        datacenter: all chosen GPUs are of the data-centre class.
    """
    if not found:
        return Compat("", "the image has no compat libraries")
    if policy == "never":
        return Compat("", '[inject] cuda-compat is "never"')
    if len(found) > 1:
        names = ", ".join(path for path, _ in found[:_SHOWN])
        if len(found) > _SHOWN:
            names += f" and {len(found) - _SHOWN} more"
        return Compat("", "ambiguous", f"the image has several compat libcuda, none is used: {names}")
    if not host and policy != "always":
        return Compat("", "the host does not tell its driver's version, so its own libcuda is used")
    path, version = found[0]
    directory = path.rpartition("/")[0] or "/"
    if policy == "always":
        return Compat(directory, '[inject] cuda-compat is "always"')
    compat_major, host_major = version.partition(".")[0], host.partition(".")[0]
    order = compare(compat_major, host_major)
    if order == 0:
        return Compat("", f"compat {version} and the driver {host} are of the same major version")
    if order < 0:
        return Compat("", f"compat {version} is older than the driver {host}")
    if not datacenter:
        return Compat(
            "",
            "forward compatibility is for data-centre GPUs",
            f"the image's compat libcuda {version} is newer than the driver {host}, but using it on this GPU "
            "would be CUDA error 804: the host's libcuda is used",
        )
    return Compat(directory, f"compat {version} is newer than the driver {host} ({compat_major} > {host_major})")
