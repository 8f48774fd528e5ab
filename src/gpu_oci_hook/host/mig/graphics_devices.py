"""Find the MIG devices that can draw: those of a profile with "+gfx", which only NVML knows.

Such devices get the DRM nodes of their GPU (facts: mig-graphics-profiles). NVML is queried for a container that
requests graphics on a MIG device of a model with such profiles, and the answer is cached while the GPU's MIG devices
stay the same.

Import budget: cold.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.host.mig.capability_files import read_mig_signature
from gpu_oci_hook.host.nvml.failure_cache import query_unless_failed
from gpu_oci_hook.host.nvml.query import query_nvml_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.mig.capability_files import MigSignature
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.model.machine import Gpu

    # By PCI address and UUID: the signature, and the (gi, ci) of the devices that can draw.
    CachedGraphics = dict[tuple[str, str], tuple[MigSignature, tuple[tuple[int, int], ...]]]

_CACHE_NAME = "mig-graphics"


def list_graphics_devices(mig_devices: MigDevices, gpu: Gpu) -> frozenset[tuple[int, int]]:
    """List the (gi, ci) of a GPU's MIG devices that can draw.

    Raises:
        Fault: NVML has to be queried, and fails.
    """
    known = mig_devices.graphics_devices.get(gpu.index)
    if known is None:
        known = mig_devices.graphics_devices[gpu.index] = _find_graphics_devices(mig_devices, gpu)
    return known


def _find_graphics_devices(mig_devices: MigDevices, gpu: Gpu) -> frozenset[tuple[int, int]]:
    signature = read_mig_signature(mig_devices.host, gpu)
    cached = _load_cached_graphics(mig_devices)
    cached_signature, ids = cached.get((gpu.pci, gpu.uuid), ((), ()))
    if cached_signature != signature:
        (answer,) = query_unless_failed(
            lambda: query_nvml_gpus([gpu.pci], library=mig_devices.find_library(), timeout=mig_devices.timeout),
            mig_devices.version,
            mig_devices.cache,
        )
        ids = tuple(answer.graphics_devices)
        cached[gpu.pci, gpu.uuid] = (signature, ids)
        mig_devices.cache.put(_CACHE_NAME, marshal.dumps((VERSION, mig_devices.version, cached)))
    return frozenset(ids)


def _load_cached_graphics(mig_devices: MigDevices) -> CachedGraphics:
    """Return the cached answers; none from damaged data or of another version."""
    try:
        own_version, driver_version, cached = marshal.loads(mig_devices.cache.get(_CACHE_NAME) or b"")  # noqa: S302
    except Exception:  # damaged data may raise anything: it costs a query
        return {}
    return (
        cached if (own_version, driver_version) == (VERSION, mig_devices.version) and isinstance(cached, dict) else {}
    )
