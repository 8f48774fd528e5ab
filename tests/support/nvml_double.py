"""A libnvidia-ml.so.1 for simulated hosts that answers, fails or hangs as a test wants (nvml_double.c)."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpu_oci_hook.simulate import host_tree, kernel

SOURCE = Path(__file__).with_name("nvml_double.c")
MODES = (
    "normal", "sleep", "crash", "chatter", "orphan", "lost", "latin-name", "latin-uuid", "endless", "lie-uuid",
    "lie-gpu", "lie-count", "lie-twice", "lie-ids", "gfx",
)  # fmt: skip


def find_compiler() -> str:
    """Return the C compiler, or an empty string."""
    return shutil.which("gcc") or shutil.which("cc") or ""


@functools.cache
def compile_library() -> bytes:
    """Compile the library, once in a process."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "double.so"
        subprocess.run(
            [
                find_compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation",
                "-Wl,-soname,libnvidia-ml.so.1", "-o", made, SOURCE, "-ldl",
            ],
            check=True,
        )  # fmt: skip
        return made.read_bytes()


class NvmlDouble:
    """The library in a simulated host.

    Arguments:
        report: of the host.
        reverse: list MIG devices in the opposite order, which tells NVML's order from ours.
    """

    def __init__(self, report: host_tree.SimulatedHost, *, reverse: bool = False) -> None:
        root = Path(report.directory + report.driver_root.rstrip("/"))
        self.path = Path(f"{root}{report.libraries['libnvidia-ml.so.1']}")
        self.reverse = reverse
        self.report = report
        self.called_file = self.path.with_name("nvml-double.called")
        fresh = self.path.with_name("nvml-double.new")
        fresh.write_bytes(compile_library())
        fresh.chmod(0o755)
        os.replace(fresh, self.path)
        self.set_mode("normal")

    def set_mode(self, mode: str, *, gpus: tuple[kernel.SimulatedGpu, ...] | None = None) -> None:
        """Choose what the library does from now on, and with other GPUs than the host's if `gpus` is given."""
        assert mode in MODES
        lines = [f"mode {mode}", f"driver {self.report.driver}"]
        cards = self.report.gpus if gpus is None else gpus
        for card in cards:
            lines.append(f"gpu {card.pci} {card.uuid} {card.minor} {int(bool(card.mig))} {40 << 30} {card.model}")
        for card in cards:
            for one in reversed(card.mig) if self.reverse else card.mig:
                lines.append(f"mig {card.index} {one.gi} {one.ci} {one.uuid}")
        self.path.with_name("nvml-double").write_text("\n".join(lines) + "\n")

    @property
    def call_count(self) -> int:
        """How often NVML was loaded and asked."""
        return self.called_file.stat().st_size if self.called_file.exists() else 0
