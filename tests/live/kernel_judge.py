"""Load device programs into the kernel and open device nodes below them; run in a mount namespace of its own.

python kernel_judge.py DIRECTORY           cases as JSON on stdin: per name a program, and accesses
python kernel_judge.py DIRECTORY replace   one program on stdin: extended, and given back
"""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpu_oci_hook.live import bpf, device_program

Result = TypeVar("Result")


def run_in_cgroup(cgroup: Path, function: Callable[[], Result]) -> Result:
    """Call a function in a child process that has entered the cgroup; return its JSON-able result."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        os.write(write_end, json.dumps(function()).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        text = file.read()
    os.waitpid(child, 0)
    result: Result = json.loads(text)
    return result


def open_node(path: Path, access: int) -> int:
    """Open a node and return the errno; 0 if it opened."""
    flags = {device_program.READ: os.O_RDONLY, device_program.WRITE: os.O_WRONLY}.get(access, os.O_RDWR)
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return error.errno or -1
    return 0


def main() -> None:
    directory = Path(sys.argv[1])
    tree, nodes = directory / "cgroup", directory / "nodes"
    for path, kind in ((tree, "cgroup2"), (nodes, "tmpfs")):
        path.mkdir()
        subprocess.run(["mount", "-t", kind, "none", str(path)], check=True)
    cgroup = tree / f"gpu-oci-hook-test-{os.getpid()}"
    cgroup.mkdir()
    try:
        fd = bpf.open_cgroup(str(cgroup))
        if sys.argv[2:] == ["replace"]:
            print(json.dumps(replace(cgroup, fd, nodes, bytes.fromhex(sys.stdin.read()))))
        else:
            print(
                json.dumps({name: judge(cgroup, fd, nodes / name, case) for name, case in json.load(sys.stdin).items()})
            )
    finally:
        cgroup.rmdir()


def judge(cgroup: Path, fd: int, nodes: Path, case: dict[str, object]) -> list[bool]:
    """Return whether the kernel allows each access: only the device cgroup answers EPERM to root."""
    nodes.mkdir()
    paths = []
    for number, (access, major, minor) in enumerate(case["accesses"]):  # type: ignore[call-overload]
        path = nodes / str(number)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        paths.append((path, access))
    program = bpf.load_program(bytes.fromhex(str(case["program"])))
    bpf.attach_program(fd, program)
    errors = run_in_cgroup(cgroup, lambda: [open_node(path, access) for path, access in paths])
    bpf.detach_program(fd, program)
    return [error != errno.EPERM for error in errors]


def replace(cgroup: Path, fd: int, nodes: Path, old: bytes) -> dict[str, object]:
    """Extend an attached program by a GPU and give the old one back; report what the kernel had and did."""
    node = nodes / "nvidia0"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(195, 0))
    bpf.attach_program(fd, bpf.load_program(old))
    counts, errors = [], []
    for devices in (None, [(195, 0)], []):
        (program_id,) = bpf.list_program_ids(fd)
        attached = bpf.open_program(program_id)
        if devices is not None:
            program = device_program.build_allowing_program(bpf.dump_program(attached), devices)
            bpf.replace_program(fd, attached, bpf.load_program(program))
        counts.append(len(bpf.list_program_ids(fd)))
        errors.append(run_in_cgroup(cgroup, lambda: open_node(node, device_program.READ | device_program.WRITE)))
    (program_id,) = bpf.list_program_ids(fd)
    return {"programs": counts, "open": errors, "same": bpf.dump_program(bpf.open_program(program_id)) == old}


if __name__ == "__main__":
    main()
