"""Run `gpu-oci-hook` in this process, and read the JSON that it prints."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_oci_hook import cli


@dataclass
class CommandResult:
    status: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines on stderr that are not warnings."""
        return [line for line in self.err.splitlines() if not line.startswith("warning: ")]


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


SCHEMAS = Path(__file__).parents[2] / "src/gpu_oci_hook/cli"


def read_json(result: CommandResult, name: str) -> dict[str, Any]:
    """Return the JSON document that a command printed; check it against the shipped schema."""
    document: dict[str, Any] = json.loads(result.out)
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    return document


class DebianBundle:
    """A bundle with a Debian-like image."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        for name in ("etc/ld.so.conf.d", "usr/lib/x86_64-linux-gnu", "usr/bin", "proc", "dev"):
            (directory / "rootfs" / name).mkdir(parents=True)
        (directory / "rootfs/etc/debian_version").write_text("12\n")
        (directory / "rootfs/etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")

    def request(self, *env: str) -> DebianBundle:
        """Write config.json with this environment."""
        spec = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["sh"], "cwd": "/", "env": ["PATH=/bin", *env]},
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {
                "namespaces": [{"type": "mount"}, {"type": "pid"}],
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            },
        }
        (self.path / "config.json").write_text(json.dumps(spec))
        return self

    def tree(self) -> dict[str, object]:
        """Return everything in the bundle: name to content, link text or kind."""
        found: dict[str, object] = {}
        for path in sorted(self.path.rglob("*")):
            mode = path.lstat().st_mode
            name = str(path.relative_to(self.path))
            if stat.S_ISLNK(mode):
                found[name] = os.readlink(path)
            else:
                found[name] = (mode, path.lstat().st_mtime_ns, path.read_bytes() if stat.S_ISREG(mode) else b"")
        return found
