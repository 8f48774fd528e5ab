"""Remember for a minute that NVML does not answer, so that not every start and every refresh waits for it.

Only slow failures are remembered: NVML that hangs until its time limit costs ten seconds each time, a missing library
costs nothing. The memory is in the state directory, for this driver version, and ends with the first answer.

Import budget: cold.
"""

from __future__ import annotations

import marshal
import time

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from gpu_oci_hook.model.machine import Cache

    T = TypeVar("T")

LIFETIME = 60.0  # seconds
SLOW = 1.0  # seconds

_CACHE_NAME = "nvml-failure"


def query_unless_failed(query: Callable[[], T], version: str, cache: Cache) -> T:
    """Return the answer of a query to NVML.

    Arguments:
        query: asks NVML.
        version: the running driver's.

    Raises:
        Fault: the query fails, or an earlier one has failed slowly within the last minute; then NVML is not asked.
    """
    started = _read_clock()
    _refuse_after_failure(started, version, cache)
    try:
        answer = query()
    except Fault as fault:
        now = _read_clock()
        if now - started >= SLOW:
            cache.put(_CACHE_NAME, marshal.dumps((VERSION, version, now, fault.what, fault.hint)))
        raise
    if cache.get(_CACHE_NAME):
        cache.put(_CACHE_NAME, b"")
    return answer


def _refuse_after_failure(now: float, version: str, cache: Cache) -> None:
    try:
        own_version, driver_version, failed, what, hint = marshal.loads(cache.get(_CACHE_NAME) or b"")  # noqa: S302
        age = now - failed
    except Exception:  # nothing is remembered, or the data is damaged: NVML is asked
        return
    if (own_version, driver_version) == (VERSION, version) and 0 <= age < LIFETIME:
        raise Fault(
            f"{what} ({age:.0f} seconds ago; it is not queried again before {LIFETIME - age:.0f} seconds have passed)",
            hint=hint,
        )


def _read_clock() -> float:
    """Return the seconds since boot, which count while the machine sleeps and which nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
