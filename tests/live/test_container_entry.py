"""The way into a mount namespace whose root is another one, and back: what this process sees, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.bundles import skip_or_fail

pytestmark = pytest.mark.root

# Runs in a mount namespace of its own, and makes a "container", a process with another root. What is on its /dev is
# bound from outside. Prints a JSON object. Arguments: a directory, and how mounts below that /dev propagate.
SCRIPT = """
import errno, json, os, subprocess, sys
from pathlib import Path
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import mount_api
from gpu_oci_hook.live.container_entry import ContainerEntry
from gpu_oci_hook.live.missing_edits import find_missing_edits
from gpu_oci_hook.live.namespace_process import open_mount_namespace, run_with_deadline
from gpu_oci_hook.live.running_editor import RunningContainerEditor
from gpu_oci_hook.model.edits import AddDeviceNode, AddMount

top, propagation = Path(sys.argv[1]), sys.argv[2]
(top / "source").write_text("driver")
for name in ("root/bin", "root/usr", "root/lib", "root/lib64", "root/proc", "root/dev", "root/old", "shared"):
    (top / name).mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", top / "shared"], check=True)
subprocess.run(["mount", f"--make-{propagation}", top / "shared"], check=True)
binds = "".join(f"mount --bind /{name} {name};" for name in ("bin", "usr", "lib", "lib64"))
commands = f'''
mount --bind {top}/root {top}/root
cd {top}/root
mount --rbind /proc proc
mount --bind {top}/shared dev
{binds}
pivot_root . old
echo ready
exec sleep 100
'''
container = subprocess.Popen(
    ["unshare", "--mount", "--propagation", "unchanged", "sh", "-ec", commands], stdout=subprocess.PIPE, text=True
)
assert container.stdout.readline() == "ready\\n"
namespace = open_mount_namespace(container.pid)

def work():
    root = os.stat("/")
    entry = ContainerEntry(namespace, b"0 0 4294967295")
    entry.open_root(writable_layer=False)
    edits = [
        AddDeviceNode("/dev/nvidia0", 195, 0, 0o666, 0, 0, "a GPU"),
        AddMount(f"{top}/source", "/dev/driver", ("ro", "nosuid", "nodev", "rbind", "rprivate"), "a file"),
    ]
    result = {"missing": len(find_missing_edits(edits, entry.root, "/none"))}
    result["layer"] = sorted(entry.layer.list_names("/dev"))
    editor = RunningContainerEditor(entry, "/none", lambda path: "fresh" if path.startswith("/dev/") else "image")
    editor.clone_sources(edits, f"{top}/scratch")
    entry.enter()
    result["root"] = os.path.samestat(os.stat("/"), root) and (Path(sys.executable)).exists()
    try:
        editor.apply_edits(edits)
        result["fault"] = ""
    except Fault as fault:
        result["fault"] = fault.what
    result["left"] = len(find_missing_edits(edits, entry.root, "/none"))
    return result

try:
    result = run_with_deadline(work)
except Fault:
    container.kill()
    raise
inside = ["nsenter", f"--target={container.pid}", "--mount", "--root"]
result["content"] = subprocess.run([*inside, "cat", "/dev/driver"], capture_output=True, text=True).stdout
result["host"] = [line for line in open("/proc/self/mountinfo") if "/shared/driver" in line]
container.kill()
print(json.dumps(result))
"""


def run_script(directory: Path, propagation: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    enter = ["unshare", "--mount", "--propagation", "private"]
    command = [*enter, sys.executable, "-c", SCRIPT, str(directory), propagation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_edits_are_made_below_the_containers_root_and_this_process_keeps_the_hosts(tmp_path: Path) -> None:
    result = run_script(tmp_path, "private")
    assert result["root"] is True and result["fault"] == ""
    assert (result["missing"], result["left"]) == (2, 0)
    assert result["layer"] == []  # without the tmpfs on /dev
    assert result["content"] == "driver" and result["host"] == []


def test_a_mount_that_the_host_would_see_is_refused_and_the_node_taken_back(tmp_path: Path) -> None:
    result = run_script(tmp_path, "shared")
    assert "shares this mount with the host" in result["fault"]
    assert (result["missing"], result["left"]) == (2, 2)
    assert result["content"] == "" and result["host"] == []
