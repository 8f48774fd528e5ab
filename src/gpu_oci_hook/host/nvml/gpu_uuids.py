"""Query NVML for the UUIDs of GPUs for which /proc shows question marks, and cache its answers.

The driver learns a GPU's UUID when the GPU is first opened. On a machine without persistence mode /proc has
"GPU-????????-????-????-????-????????????" until then (facts: gpu-uuid-unknown).

Import budget: cold.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.host.nvml.failure_cache import query_unless_failed
from gpu_oci_hook.host.nvml.query import query_nvml_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.model.machine import Cache, Gpu

_CACHE_NAME = "uuids"
_UUID_LENGTH = len("GPU-44b97862-417b-5351-9f9b-fc184b5f19e7")
_UUID_CHARACTERS = frozenset("0123456789abcdefABCDEF-")


def is_uuid_unknown(gpu: Gpu) -> bool:
    """Tell whether the driver does not know the GPU's UUID yet."""
    return "?" in gpu.uuid


def identify_gpus(gpus: list[Gpu], version: str, cache: Cache, find_library: Callable[[], str]) -> None:
    """Fill in the UUIDs that /proc does not show, from the cache or from NVML.

    Arguments:
        gpus: the machine's GPUs; changed in place.
        version: the running driver's. A cached answer counts for this driver, this PCI address and this model only.
        find_library: returns the path of the host's NVML library. It is called only before a query.

    Raises:
        Fault: NVML does not answer, or its answer is not credible.
    """
    unknown = [gpu for gpu in gpus if is_uuid_unknown(gpu)]
    known = _load_cached_uuids(cache, version)
    if any((gpu.pci, gpu.model) not in known for gpu in unknown):
        addresses = [gpu.pci for gpu in unknown]
        answers = query_unless_failed(lambda: query_nvml_gpus(addresses, library=find_library()), version, cache)
        for gpu, answer in zip(unknown, answers, strict=True):
            if answer.error:
                raise Fault(f"NVML does not know GPU {gpu.index} ({gpu.pci}): {clip_text(answer.error)}")
            known[gpu.pci, gpu.model] = answer.uuid
        _check_uuids(gpus, [known[gpu.pci, gpu.model] for gpu in unknown])
        cache.put(_CACHE_NAME, marshal.dumps((VERSION, version, known)))
    for gpu in unknown:
        gpu.uuid = known[gpu.pci, gpu.model]


def _check_uuids(gpus: list[Gpu], uuids: list[str]) -> None:
    """Check that the UUIDs have the form of one, and that no two GPUs have the same.

    Raises:
        Fault: one is not credible.
    """
    taken = {gpu.uuid.lower() for gpu in gpus if not is_uuid_unknown(gpu)}
    for uuid in uuids:
        digits = uuid.removeprefix("GPU-")
        if digits == uuid or len(uuid) != _UUID_LENGTH or not _UUID_CHARACTERS.issuperset(digits):
            raise Fault(f"NVML answers wrongly: {clip_text(uuid, 80)} is not the UUID of a GPU")
        if uuid.lower() in taken:
            raise Fault(f"NVML answers wrongly: it reports {uuid} for two GPUs")
        taken.add(uuid.lower())


def _load_cached_uuids(cache: Cache, version: str) -> dict[tuple[str, str], str]:
    """Return the cached UUIDs by PCI address and model; none from damaged data or of another version."""
    try:
        own_version, driver_version, known = marshal.loads(cache.get(_CACHE_NAME) or b"")  # noqa: S302
    except Exception:  # damaged data may raise anything: it costs a query
        return {}
    return known if (own_version, driver_version) == (VERSION, version) and isinstance(known, dict) else {}
