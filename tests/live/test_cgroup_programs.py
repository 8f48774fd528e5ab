"""Device programs of a cgroup of version 2 are changed in the real kernel: all or none."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.bundles import skip_or_fail

DUMPS = json.loads((Path(__file__).with_name("device_programs.json")).read_text())
DENIED, NO_DRIVER, OPENED = errno.EPERM, errno.ENXIO, 0
RULE = 64  # bytes
HEAD = 64  # mark and prelude

pytestmark = pytest.mark.root


def play(tmp_path: Path, scene: str, program: str = "runc 1.1.5") -> Any:
    """Play a scene of kernel_judge.py with the program of a runtime; return its report."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    script = Path(__file__).with_name("kernel_judge.py")
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, str(script), str(tmp_path), scene]
    done = subprocess.run(command, input=DUMPS[program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", DUMPS)
def test_devices_are_allowed_and_denied_and_the_old_program_comes_back(tmp_path: Path, program: str) -> None:
    size = len(DUMPS[program]) // 2
    one, two = size + HEAD + RULE, size + HEAD + 2 * RULE
    assert play(tmp_path, "change_rules", program) == [
        [DENIED, OPENED, ["old"]],
        [NO_DRIVER, OPENED, [one]],
        [NO_DRIVER, DENIED, [two]],
        [DENIED, DENIED, [one]],
        [NO_DRIVER, OPENED, [one]],
        [DENIED, OPENED, ["old"]],
    ]


def test_after_many_changes_the_program_is_the_old_one_and_no_descriptor_is_left(tmp_path: Path) -> None:
    assert play(tmp_path, "change_rules_often") == [DENIED, OPENED, ["old"], 0]


def test_a_device_is_denied_where_no_program_is_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    denying = 3 * 8 + HEAD + RULE
    assert play(tmp_path, "deny_without_a_program") == [
        [NO_DRIVER, OPENED, []],
        [NO_DRIVER, OPENED, []],
        [DENIED, OPENED, [denying]],
        [DENIED, OPENED, [denying]],
        [NO_DRIVER, OPENED, []],
    ]


def test_a_program_that_a_link_holds_is_named_and_the_others_are_as_before(tmp_path: Path) -> None:
    fault, is_same, count, _ = play(tmp_path, "change_a_linked_program")
    assert "a link holds the program, so only the link's owner can replace it" in fault
    assert (is_same, count) == (True, 2)


def test_two_processes_that_change_the_rules_at_once_lose_nothing(tmp_path: Path) -> None:
    assert play(tmp_path, "race") == [[""], 0, 1]
