"""Name the phase in which `nvidia-container-cli` failed, as its callers know it: "device error: …".

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gpu_oci_hook.errors import Fault

# The incumbent's words (facts: container-cli-errors).
Phase = Literal[
    "input", "initialization", "container", "detection", "device", "mig-config", "mig-monitor", "imex", "requirement",
    "mount",
]  # fmt: skip


class PhaseFault(Fault):
    """A failure with the phase in which it happened.

    Arguments:
        phase: the incumbent's word.
        fault: what failed.
    """

    def __init__(self, phase: str, fault: Fault) -> None:
        super().__init__(fault.what, where=fault.where, hint=fault.hint)
        self.phase = phase

    def __str__(self) -> str:
        """Return the line that callers look at: the phase comes first."""
        return f"{self.phase} error: {super().__str__()}"


@contextmanager
def name_phase(phase: Phase, prefix: str = "") -> Iterator[None]:
    """Name the phase of a fault that does not name one.

    Arguments:
        prefix: words of the incumbent that callers look for, at the beginning of what failed.
    """
    try:
        yield
    except PhaseFault:
        raise
    except Fault as fault:
        what = f"{prefix}: {fault.what}" if prefix else fault.what
        raise PhaseFault(phase, Fault(what, where=fault.where, hint=fault.hint)) from fault
