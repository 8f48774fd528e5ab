"""What every engine can do for configure: find its file, edit it, judge it, and say how a change takes effect.

Import budget: cold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_oci_hook.engines.wanted import WantedRuntime


@dataclass(frozen=True)
class ApplyCommand:
    """The command after which a changed file counts.

    Arguments:
        words: the command line.
        note: what happens to running containers, as a sentence without its full stop.
    """

    words: tuple[str, ...]
    note: str


class Engine(Protocol):
    """One container engine on this machine."""

    name: str

    def is_installed(self) -> bool:
        """Tell whether the engine's program is on this machine."""

    def find_config_path(self) -> str:
        """Return the configuration file that the engine reads, whether it exists or not."""

    def add_runtime(self, data: bytes | None, wanted: WantedRuntime, path: str) -> bytes:
        """Return the file with our runtime; the same bytes if it is there already.

        Raises:
            Fault: the file is not valid, or cannot get the runtime.
        """

    def take_out_runtime(self, data: bytes, original: bytes | None, added: WantedRuntime | None, path: str) -> bytes:
        """Return the file without our runtime; what `original` has in its place is put back.

        Raises:
            Fault: the file is not valid.
        """

    def has_own_runtime(self, data: bytes | None, path: str) -> bool:
        """Tell whether the file names our runtime program."""

    def judge(self, data: bytes, wanted: WantedRuntime | None, path: str) -> str:
        """Let the engine check a file before it counts.

        Arguments:
            data: the new content of the file.
            wanted: what was added; None if our runtime was taken out.
            path: where it will be.

        Returns:
            who has checked it, for people.

        Raises:
            Fault: the engine refuses it.
        """

    def find_apply_command(self, *, undo: bool) -> ApplyCommand:
        """Return the command after which a change counts."""

    def knows_runtime(self, name: str) -> bool | None:
        """Ask the running engine whether it has a runtime of this name; None if it does not answer."""
