"""A child process without its parent's terminal and descriptors, whose output the parent prints."""

from __future__ import annotations

import subprocess
import sys
import time

START = "from gpu_oci_hook.live.untrusted_child import continue_in_untrusted_child as go\nimport os, sys\n"


def run_script(script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", START + script], capture_output=True, timeout=20, check=False)


def test_output_and_status_are_those_of_the_child() -> None:
    done = run_script("go([])\nprint('a line')\nprint('another', file=sys.stderr)\nsys.exit(7)\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"a line\n", b"another\n", 7)


def test_a_long_output_is_complete() -> None:
    done = run_script("go([])\nprint('é' * 300000)\n")
    assert done.stdout.decode() == "é" * 300000 + "\n"


def test_control_characters_do_not_reach_the_terminal() -> None:
    done = run_script("go([])\nos.write(1, b'\\x1b]0;title\\x07\\xff\\n')\n")
    assert done.stdout == rb"\x1b]0;title\x07\xff" + b"\n"


def test_the_child_has_a_session_of_its_own_and_only_the_descriptors_that_it_needs() -> None:
    done = run_script(
        "kept, other = os.open('/', 0), os.open('/', 0)\nos.set_inheritable(other, True)\ngo([kept])\n"
        "print(os.getsid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd')))[:-1] == [0, 1, 2, kept])\n"
    )
    assert done.stdout == b"True True\n"


def test_a_process_that_it_leaves_behind_is_not_waited_for() -> None:
    begin = time.monotonic()
    done = run_script("go([])\nif os.fork() == 0:\n    import time\n    time.sleep(15)\nelse:\n    print('end')\n")
    assert done.stdout == b"end\n" and time.monotonic() - begin < 10


def test_a_killed_child_is_a_failure() -> None:
    assert run_script("go([])\nos.kill(os.getpid(), 9)\n").returncode == 128 + 9
