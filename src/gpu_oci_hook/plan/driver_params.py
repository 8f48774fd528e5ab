"""Hide that the driver may create device files: the parameters with `ModifyDeviceFiles: 0` for a container.

With `ModifyDeviceFiles: 1` NVIDIA's libraries in a container try to create the nodes of GPUs that it does not have.
The shim (`plan.build`) and the hook (`hook.device_steps`) lay this content over /proc/driver/nvidia/params.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.formats.proc import disable_modify_device_files

DRIVER_PARAMS = "/proc/driver/nvidia/params"
DRIVER_PARAMS_LIMIT = 65536
MODIFY_DEVICE_FILES = "ModifyDeviceFiles: 0"
# Reasons for leaving a container's parameters as they are.
NO_PROCFS_REASON = "the container has no procfs on /proc that shows it"
SHARED_MOUNTS_REASON = "the container shares its mounts with the host, which would then see it too"


def build_hidden_params(params: bytes | None) -> bytes | None:
    """Build the parameters that a container sees; None if there are none, or they have `ModifyDeviceFiles: 0` already.

    Arguments:
        params: the content of the host's DRIVER_PARAMS.
    """
    hidden = disable_modify_device_files(params or b"")
    return None if hidden == (params or b"") else hidden
