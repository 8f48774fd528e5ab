"""What NVML said once, remembered: for requirement expressions that the tables cannot decide.

Cost rule: cold; only when a requirement depends on something that `versions` does not know.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_oci_hook.host.inventory import Gpu, Memory
    from gpu_oci_hook.request.requirements import Values

_NAME = "answers"
_MOST = 4096  # answers kept; the memory starts anew beyond


def fill(
    hosts: Sequence[Values],
    chosen: Sequence[Gpu],
    version: str,
    unknown: Sequence[str],
    memory: Memory,
    library: Callable[[], str],
) -> str:
    """Fills in what is unknown, from memory or from NVML.

    Arguments:
        hosts: the values to complete, one for each GPU of `chosen`, or a single one when none was chosen.
        version: the running driver's; a remembered answer counts for this driver and this GPU alone.
        unknown: "cuda", "arch", "brand": which of them decide the answer.
        library: gives the path of the host's NVML library; called only to ask it. May raise a Fault.

    Returns:
        Why something is still unknown; "" when nothing is.
    """
    known = _recall(memory.get(_NAME))
    before = len(known)
    reason = ""
    gpus: list[Gpu | None] = [*chosen]
    for values, gpu in zip(hosts, gpus or [None] * len(hosts), strict=False):
        try:
            if "cuda" in unknown and not values.cuda:
                values.cuda = _ask(known, library, "cuda", version, "", "")
            if gpu is None:
                continue
            if "arch" in unknown and not values.arch:
                values.arch = _ask(known, library, "arch", version, gpu.pci, gpu.model)
            if "brand" in unknown and not values.brand:
                values.brand = (_ask(known, library, "brand", version, gpu.pci, gpu.model),)
        except Fault as fault:
            reason = str(fault)
            break  # what hung or crashed once would do so for every GPU
    if len(known) > before:
        memory.put(_NAME, marshal.dumps((VERSION, known)))
    if not reason and not chosen and {"arch", "brand"} & set(unknown):
        return "no GPU was chosen whose answer it could be"
    return reason


def _ask(known: dict[tuple[str, ...], str], library: Callable[[], str], *question: str) -> str:
    if question not in known:
        known[question] = nvml.ask(question[0], question[2], library=library())
    return known[question]


def _recall(blob: bytes | None) -> dict[tuple[str, ...], str]:
    """The remembered answers; none from damaged memory or from another version of ours."""
    if blob is None:
        return {}
    try:
        version, known = marshal.loads(blob)  # noqa: S302  the memory is ours alone
        if version == VERSION and isinstance(known, dict) and len(known) <= _MOST:
            return {key: value for key, value in known.items() if isinstance(key, tuple) and isinstance(value, str)}
    except Exception:  # noqa: S110  whatever a damaged blob does: it costs a question, never a start
        pass
    return {}
