"""What NVML said once, remembered: for requirement expressions that the tables cannot decide.

Cost rule: cold; only when a requirement depends on something that `versions` does not know.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.nvml.query import query_nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_oci_hook.model.machine import Cache, Gpu
    from gpu_oci_hook.request.require_expressions import HostProperties

_CACHE_NAME = "answers"
_MAX_ANSWERS = 4096  # answers kept; the memory starts anew beyond


def fill_unknown_values(
    host_values: Sequence[HostProperties],
    chosen: Sequence[Gpu],
    version: str,
    unknown: Sequence[str],
    cache: Cache,
    find_library: Callable[[], str],
) -> str:
    """Fills in what is unknown, from memory or from NVML.

    Arguments:
        host_values: the values to complete, one for each GPU of `chosen`, or a single one when none was chosen.
        version: the running driver's; a remembered answer counts for this driver and this GPU alone.
        unknown: "cuda", "arch", "brand": which of them decide the answer.
        find_library: gives the path of the host's NVML library; called only to ask it. May raise a Fault.

    Returns:
        Why something is still unknown; "" when nothing is.
    """
    known = _decode_cached_answers(cache.get(_CACHE_NAME))
    before = len(known)
    reason = ""
    gpus: list[Gpu | None] = [*chosen]
    for values, gpu in zip(host_values, gpus or [None] * len(host_values), strict=False):
        try:
            if "cuda" in unknown and not values.cuda:
                values.cuda = _query_cached(known, find_library, "cuda", version, "", "")
            if gpu is None:
                continue
            if "arch" in unknown and not values.arch:
                values.arch = _query_cached(known, find_library, "arch", version, gpu.pci, gpu.model)
            if "brand" in unknown and not values.brand:
                values.brand = (_query_cached(known, find_library, "brand", version, gpu.pci, gpu.model),)
        except Fault as fault:
            reason = str(fault)
            break  # what hung or crashed once would do so for every GPU
    if len(known) > before:
        cache.put(_CACHE_NAME, marshal.dumps((VERSION, known)))
    if not reason and not chosen and {"arch", "brand"} & set(unknown):
        return "no GPU was chosen whose answer it could be"
    return reason


def _query_cached(known: dict[tuple[str, ...], str], find_library: Callable[[], str], *question: str) -> str:
    if question not in known:
        known[question] = query_nvml(question[0], question[2], library=find_library())
    return known[question]


def _decode_cached_answers(blob: bytes | None) -> dict[tuple[str, ...], str]:
    """The remembered answers; none from damaged memory or from another version of ours."""
    if blob is None:
        return {}
    try:
        version, known = marshal.loads(blob)  # noqa: S302  the memory is ours alone
        if version == VERSION and isinstance(known, dict) and len(known) <= _MAX_ANSWERS:
            return {key: value for key, value in known.items() if isinstance(key, tuple) and isinstance(value, str)}
    except Exception:  # noqa: S110  whatever a damaged blob does: it costs a question, never a start
        pass
    return {}
