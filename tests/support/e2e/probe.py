"""The probe (probe.c) in a container: its command line, and what it reports."""

from __future__ import annotations

import json
from dataclasses import dataclass

from support.e2e.host import SimulatedHost

LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")


@dataclass(frozen=True)
class ProbeResult:
    """What the probe answered, and what ldconfig listed before and after a run of its own."""

    nodes: dict[str, str]
    made: dict[str, str]
    libraries: dict[str, str]
    listed: str = ""
    listed_later: str = ""
    libraries_later: dict[str, str] | None = None


def build_probe_command(host: SimulatedHost) -> list[str]:
    """The probe's words: every node of the host, the other GPU's numbers, the libraries."""
    words = ["/probe"]
    for node in (*CONTROL_NODES, *(card.node for card in host.cards)):
        words += ["--node", node]
    words += ["--make", host.cards[1].numbers]
    for library in LIBRARIES:
        words += ["--library", library]
    return words


def parse_probe_output(line: str) -> ProbeResult:
    """The probe's one line."""
    answer = json.loads(line)
    return ProbeResult(answer["nodes"], answer["made"], answer["libraries"])
