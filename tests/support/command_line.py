"""Run `gpu-oci-hook` in this process, and read the JSON that it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpu_oci_hook import cli


@dataclass
class CommandResult:
    status: int
    out: str
    err: str


Command = Callable[..., CommandResult]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `gpu-oci-hook` with these arguments; a traceback fails the test."""

    def call(*words: str, name: str = "gpu-oci-hook") -> CommandResult:
        capsys.readouterr()
        status = cli.run_command_line([str(word) for word in words], name)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return CommandResult(status, printed.out, printed.err)

    return call
