"""Load device programs into the kernel and open device nodes below them; run in a mount namespace of its own.

python kernel_judge.py DIRECTORY         cases as JSON on stdin: per name a program, and accesses
python kernel_judge.py DIRECTORY SCENE   one program on stdin, whose rules are changed; see SCENES
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

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import bpf, device_program
from gpu_oci_hook.live.cgroup_programs import change_cgroup_programs
from gpu_oci_hook.live.device_access import query_device_access
from gpu_oci_hook.live.device_cgroup import DeviceCgroup
from gpu_oci_hook.live.device_program import READ, WRITE

GPU, NULL = (195, 0), (1, 3)
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
        if len(sys.argv) > 2:
            print(json.dumps(SCENES[sys.argv[2]](Scene(cgroup, fd, nodes, bytes.fromhex(sys.stdin.read())))))
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


class Scene:
    """A cgroup whose rules are changed, and two nodes: a GPU's, and /dev/null's.

    Attributes:
        program: what a runtime would attach.
    """

    def __init__(self, cgroup: Path, fd: int, nodes: Path, program: bytes) -> None:
        self.cgroup, self.fd, self.program = cgroup, fd, program
        self.nodes = {GPU: nodes / "nvidia0", NULL: nodes / "null"}
        for (major, minor), path in self.nodes.items():
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def attach(self, program: bytes) -> None:
        """Attach a program to the cgroup."""
        bpf.attach_program(self.fd, bpf.load_program(program))

    def attach_by_link(self, program: bytes) -> int:
        """Attach a program by a BPF link, as systemd's newer features do; return the link."""
        attributes = bpf._pack_attributes("=IIII", bpf.load_program(program), self.fd, 6, 0)
        return bpf._call_bpf(28, attributes)  # BPF_LINK_CREATE

    def change(self, **rules: list[tuple[int, int]]) -> str:
        """Change the rules; return the fault, "" if there is none."""
        try:
            change_cgroup_programs([str(self.cgroup)], allow=rules.get("allow", []), deny=rules.get("deny", []))
        except Fault as fault:
            return str(fault)
        return ""

    def observe(self) -> list[object]:
        """Return the errno of opening each node, and the programs: "old" stands for the runtime's."""
        errors = run_in_cgroup(self.cgroup, lambda: [open_node(path, READ | WRITE) for path in self.nodes.values()])
        programs = [bpf.dump_program(bpf.open_program(number)) for number in bpf.list_program_ids(self.fd)]
        return [*errors, ["old" if program == self.program else len(program) for program in programs]]


def change_rules(scene: Scene) -> object:
    """Allow and deny the GPU and /dev/null; report what can be opened after each change."""
    scene.attach(scene.program)
    seen = [scene.observe()]
    for rules in ({"allow": [GPU]}, {"deny": [NULL]}, {"deny": [GPU]}, {"allow": [NULL, GPU]}, {"deny": [GPU]}):
        assert scene.change(**rules) == ""
        seen.append(scene.observe())
    return seen


def change_rules_often(scene: Scene) -> object:
    """Allow and deny 200 times; report what is left, and how many descriptors are open."""
    scene.attach(scene.program)
    before = os.listdir("/proc/self/fd")
    for _ in range(200):
        scene.change(allow=[GPU], deny=[NULL])
        scene.change(allow=[NULL], deny=[GPU])
    left = len(os.listdir("/proc/self/fd")) - len(before)
    return [*scene.observe(), left]


def deny_without_a_program(scene: Scene) -> object:
    """Deny where nothing is denied, and take it back."""
    seen = [scene.observe()]
    for rules in ({"allow": [GPU]}, {"deny": [GPU]}, {"deny": [GPU]}, {"allow": [GPU]}):
        assert scene.change(**rules) == ""
        seen.append(scene.observe())
    return seen


def change_a_linked_program(scene: Scene) -> object:
    """Change two programs of which a link holds the second: neither may be changed."""
    scene.attach(scene.program)
    link = scene.attach_by_link(device_program.change_device_rules(scene.program, allow=[(1, 9)]))
    before = scene.observe()
    return [scene.change(allow=[GPU]), before == scene.observe(), len(before[2]), os.close(link)]  # type: ignore[arg-type]


def race(scene: Scene) -> object:
    """Change the rules while another process does: no change of either may be lost."""
    scene.attach(scene.program)
    child = os.fork()
    device = NULL if child == 0 else GPU
    faults = {scene.change(**{word: [device]}) for _ in range(300) for word in ("deny", "allow")}
    if child == 0:
        os._exit(faults != {""})
    status = os.waitpid(child, 0)[1]
    return [sorted(faults), status, len(bpf.list_program_ids(scene.fd))]


def query_rules(scene: Scene) -> object:
    """Compare what opening says with what `query_device_access` says, also in a cgroup below."""
    inner = scene.cgroup / "inner"
    inner.mkdir()
    found = []
    try:
        for rules in ({}, {"allow": [GPU]}, {"deny": [NULL]}, {"allow": [NULL]}, {"deny": [GPU, NULL]}):
            if not rules:
                scene.attach(scene.program)
            assert scene.change(**rules) == ""
            for cgroup in (scene.cgroup, inner):
                opened = run_in_cgroup(
                    cgroup, lambda: [open_node(path, READ | WRITE) != errno.EPERM for path in scene.nodes.values()]
                )
                accesses = [(*device, "rw") for device in scene.nodes]
                answers = query_device_access(DeviceCgroup(2, [str(cgroup)]), accesses)
                found.append([opened, [answer.allowed for answer in answers]])
    finally:
        inner.rmdir()
    return found


SCENES = {
    scene.__name__: scene
    for scene in (change_rules, change_rules_often, deny_without_a_program, change_a_linked_program, race, query_rules)
}


if __name__ == "__main__":
    main()
