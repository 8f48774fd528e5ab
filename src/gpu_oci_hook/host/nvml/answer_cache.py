"""Query NVML for requirement properties that the tables do not know, and cache its answers.

What invalidates a cached answer: another driver version (or, on a platform, another driver identity), or another PCI
address or model name of the GPU. All answers are dropped by another version of gpu-oci-hook, by damaged data, and when
the cache holds more than `_MAX_ANSWERS`. They also end with the state directory, which lies in /run. A slow
failure of NVML is remembered for a minute (`failure_cache`).

Import budget: cold.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.nvml.failure_cache import query_unless_failed
from gpu_oci_hook.host.nvml.query import query_nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_oci_hook.model.machine import Cache, Gpu
    from gpu_oci_hook.request.require_expressions import HostProperties

    AnswerKey = tuple[str, ...]  # question, driver version, PCI address, model (the last two "" for "cuda")

_CACHE_NAME = "answers"
_MAX_ANSWERS = 4096


def fill_unknown_values(
    host_values: Sequence[HostProperties],
    chosen: Sequence[Gpu],
    version: str,
    unknown: Sequence[str],
    cache: Cache,
    find_library: Callable[[], str],
) -> str:
    """Fill in unknown properties from the cache or from NVML.

    Arguments:
        host_values: the properties to complete, one for each GPU of `chosen`, or a single one when no GPU was chosen.
        version: the running driver's version or identity. A cached answer counts for this driver only.
        unknown: the properties that the requirements depend on: of "cuda", "arch", "brand".
        find_library: returns the path of the host's NVML library. It is called only before a query and may raise a
            Fault.

    Returns:
        Why a property is still unknown, or "" when all are known.
    """
    answers = _decode_cached_answers(cache.get(_CACHE_NAME))
    cached_count = len(answers)
    reason = ""
    gpus: list[Gpu | None] = [*chosen]
    for values, gpu in zip(host_values, gpus or [None] * len(host_values), strict=False):
        try:
            if "cuda" in unknown and not values.cuda:
                values.cuda = _query_cached(answers, cache, find_library, ("cuda", version, "", ""))
            if gpu is None:
                continue
            if "arch" in unknown and not values.arch:
                values.arch = _query_cached(answers, cache, find_library, ("arch", version, gpu.pci, gpu.model))
            if "brand" in unknown and not values.brand:
                values.brand = (_query_cached(answers, cache, find_library, ("brand", version, gpu.pci, gpu.model)),)
        except Fault as fault:
            reason = str(fault)
            break  # a hang or crash would repeat itself for every GPU
    if len(answers) > cached_count:
        cache.put(_CACHE_NAME, marshal.dumps((VERSION, answers)))
    if not reason and not chosen and {"arch", "brand"} & set(unknown):
        return "no GPU was chosen that NVML could be queried for"
    return reason


def _query_cached(answers: dict[AnswerKey, str], cache: Cache, find_library: Callable[[], str], key: AnswerKey) -> str:
    if key not in answers:
        question, version, pci, _ = key
        answers[key] = query_unless_failed(lambda: query_nvml(question, pci, library=find_library()), version, cache)
    return answers[key]


def _decode_cached_answers(blob: bytes | None) -> dict[AnswerKey, str]:
    """Return the cached answers, but none from damaged data or from another version of gpu-oci-hook."""
    if blob is None:
        return {}
    try:
        version, answers = marshal.loads(blob)  # noqa: S302  only this user can write the cache
        if version == VERSION and isinstance(answers, dict) and len(answers) <= _MAX_ANSWERS:
            return {key: value for key, value in answers.items() if isinstance(key, tuple) and isinstance(value, str)}
    except Exception:  # noqa: S110  a damaged blob may raise anything: it costs a query, never a start
        pass
    return {}
