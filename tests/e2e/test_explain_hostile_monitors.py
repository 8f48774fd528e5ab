"""`explain` joins the mount namespace of a container's monitor, and any process can have a monitor's name.

What `explain` runs after that comes from the files of that namespace. A container's files must never be among them, and
another user's must not get the terminal of the administrator.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.e2e import images, machine
from support.e2e.engines import ROOTLESS_ID
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.machine import find_program

WAITING_PROGRAM = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
# Modules that `explain` imports after it has joined a namespace.
LATE_MODULES = tuple(
    f"{name}.py" for name in ("formats/elf", "host/driver/libraries", "host/driver/search", "plan/compat")
)
ENTER_ROOT = """
mount --bind "$1" "$1" && cd "$1" && pivot_root . mnt && umount -l /mnt || exit 9
shift
exec "$@"
"""
ONE_GPU = '{"root": {"path": "/tmp"}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}'
# The terminal of whoever has called this program, by every way that leads to it.
REPORT_TERMINAL = """
import os
found = [fd for fd in range(64) if os.isatty(fd)]
try:
    os.open("/dev/tty", os.O_RDWR)
    found.append("/dev/tty")
except OSError:
    pass
with open({report!r}, "a") as report:
    report.write(f"{{os.getuid()}} {{found}}\\n")
"""


@pytest.fixture(scope="module")
def waiting_program(workspace: Path) -> Path:
    """A static program that waits."""
    path = workspace / "waiting"
    path.with_suffix(".c").write_text(WAITING_PROGRAM)
    machine.run_command([find_program("gcc"), "-static", "-o", str(path), str(path.with_suffix(".c"))]).check()
    return path


@contextlib.contextmanager
def running(command: Sequence[str], program: str) -> Iterator[int]:
    """Run a command until it has become a program of this name; yield its process."""
    process = subprocess.Popen([*command], stdin=subprocess.DEVNULL, start_new_session=True)
    cmdline = Path(f"/proc/{process.pid}/cmdline")
    try:
        machine.wait_for(lambda: cmdline.read_bytes().split(b"\0")[0].endswith(program.encode()), program)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("capabilities", ["of a container", "all"])
@pytest.mark.parametrize("kind", ["conmon", "containerd-shim-runc-v2"])
def test_a_process_in_a_container_that_has_a_monitors_name_is_not_followed(
    tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost, waiting_program: Path, kind: str,
    capabilities: str,
) -> None:  # fmt: skip
    root = images.copy_image(image, tmp_path / "root")
    shutil.copy(waiting_program, root / kind)
    (root / "bundle").mkdir()
    (root / "bundle/config.json").write_text(ONE_GPU)
    for name in LATE_MODULES:
        module = root / str(runtime.code / "gpu_oci_hook" / name).lstrip("/")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("open('/executed', 'w').close()\n")
    words = ["-c", "abcdef0", "-n", "web", "-b", "/bundle", "-namespace", "moby", "-id", "abcdef0"]
    command = [find_program("unshare"), "--mount", find_program("sh"), "-c", ENTER_ROOT, "sh", str(root)]
    if capabilities != "all":
        drop = ["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
        shutil.copy(find_program("setpriv"), root / "setpriv")
        library = root / "lib/x86_64-linux-gnu/libcap-ng.so.0"
        shutil.copy(Path("/lib/x86_64-linux-gnu/libcap-ng.so.0").resolve(), library)
        command += ["/setpriv", *drop]
    config = runtime.wrapper("runc", simulated.root).with_suffix(".toml")
    program = [str(runtime.shim.with_name("gpu-oci-hook")), "explain", "--config", str(config)]
    with running([*command, f"/{kind}", *words], kind) as pid:
        for reference in (["podman:web"], ["docker:abcdef0"], ["containerd:moby/abcdef0"], ["--pid", str(pid)]):
            answer = machine.run_command([*program, *reference])
            assert not (root / "executed").exists(), answer.text
            assert answer.status == 1 and answer.text.count("\n") == 1, answer.text


def test_code_of_another_user_gets_no_terminal(
    workspace: Path, runtime: InstalledRuntime, simulated: SimulatedHost, waiting_program: Path
) -> None:
    """A user's own namespace has the machine's root directory, with whatever the user mounts over its files."""
    home = Path(tempfile.mkdtemp(prefix="user-", dir=workspace))
    os.chown(home, ROOTLESS_ID, ROOTLESS_ID)
    shutil.copy(waiting_program, home / "conmon")
    (home / "conmon").chmod(0o755)
    (home / "config.json").write_text(ONE_GPU)
    report = home / "report"
    evil = home / "evil.py"
    evil.write_text(REPORT_TERMINAL.format(report=str(report)))
    mounts = "".join(f"mount --bind {evil} {runtime.code}/gpu_oci_hook/{name}\n" for name in LATE_MODULES)
    user = [find_program("setpriv"), f"--reuid={ROOTLESS_ID}", f"--regid={ROOTLESS_ID}", "--clear-groups"]
    script = f"{mounts}exec {home}/conmon -c abcdef0 -n web -b {home}\n"
    command = [
        *user,
        find_program("unshare"),
        "--user",
        "--map-root-user",
        "--mount",
        find_program("sh"),
        "-ec",
        script,
    ]
    config = runtime.wrapper("runc", simulated.root).with_suffix(".toml")
    program = str(runtime.shim.with_name("gpu-oci-hook"))
    with running(command, "conmon"):
        child, terminal = pty.fork()
        if child == 0:
            os.execv(program, [program, "explain", "podman:web", "--config", str(config)])
        output = b""
        with contextlib.suppress(OSError):  # EIO: it has ended
            while chunk := os.read(terminal, 4096):
                output += chunk
        os.waitpid(child, 0)
        os.close(terminal)
    assert report.exists(), output
    assert set(report.read_text().splitlines()) == {"0 []"}, output
