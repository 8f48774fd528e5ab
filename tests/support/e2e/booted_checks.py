"""What tests/e2e/booted-systemd prepares in its root before the boot, and checks after it. Standard library only.

    booted_checks.py prepare ROOT     on the outside
    booted_checks.py check            in the booted root

A container's GPU is judged by opening its node: the machine has no driver, so ENXIO means allowed and EPERM denied.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
ALLOWED = "No such device or address"
DENIED = "Operation not permitted"
CDI_FILE = Path("/run/cdi/nvidia.com-gpu.yaml")

# An engine that starts at boot: it notes whether the CDI file is there.
ENGINE_UNIT = """[Unit]
Description=Stands in for an engine
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'if test -e /run/cdi/nvidia.com-gpu.yaml; then echo file; else echo none; fi >/run/engine-saw'
[Install]
WantedBy=multi-user.target
"""

# A low-level runtime without the limits for which this machine's cgroup v2 tree may have no controllers.
LOW_LEVEL = """#!/usr/bin/python3
import json, os, sys
LIMITS = ("memory", "cpu", "pids", "blockIO", "hugepageLimits")
def drop_limits(path, *keys):
    data = json.load(open(path))
    resources = data
    for key in keys:
        resources = resources.get(key) or {}
    for limit in LIMITS:
        resources.pop(limit, None)
    with open(path, "w") as file:
        json.dump(data, file)
words = sys.argv[1:]
for word, following in zip(words, [*words[1:], ""]):
    if word in ("--bundle", "-b"):
        drop_limits(following + "/config.json", "linux", "resources")
    if word.startswith("--resources"):
        drop_limits(word.partition("=")[2] or following)
if "update" in words:
    open("/run/updated", "a").write(" ".join(words) + "\\n")
os.environ["LD_PRELOAD"] = "/opt/forgiving.so"
os.execv("/usr/bin/NAME" if os.path.exists("/usr/bin/NAME") else "/usr/sbin/NAME", ["NAME", *words])
"""

HOOKS_DIR = Path("/etc/gpu-oci-hook/hooks.d")
HOOK = {
    "path": "/usr/local/bin/gpu-oci-hook",
    "args": ["gpu-oci-hook", "prestart"],
    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
}

CONTAINERS_CONF = """[engine]
cgroup_manager = "systemd"
events_logger = "file"
[containers]
pids_limit = 0
netns = "none"
default_ulimits = []
default_sysctls = []
[engine.runtimes]
gpu-runc = ["/opt/gpu-runc"]
gpu-crun = ["/opt/gpu-crun"]
plain-runc = ["/opt/runc"]
plain-crun = ["/opt/crun"]
"""


def prepare_root(root: Path) -> None:
    """Write the units, the engine's configuration and an image below the root."""
    units = root / "etc/systemd/system"
    (units / "docker.service").write_text(ENGINE_UNIT)
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "docker.service").symlink_to("/etc/systemd/system/docker.service")
    for name in ("service", "path", "timer"):
        directory = {"service": "multi-user", "path": "paths", "timer": "timers"}[name]
        link = units / f"{directory}.target.wants/gpu-oci-hook-cdi.{name}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"/etc/systemd/system/gpu-oci-hook-cdi.{name}")
    for target in ("default.target",):
        (units / target).symlink_to("/lib/systemd/system/multi-user.target")
    (root / "etc/gpu-oci-hook").mkdir(exist_ok=True)
    for name in ("runc", "crun"):
        write_program(root / f"opt/{name}", LOW_LEVEL.replace("NAME", name))
        (root / f"etc/gpu-oci-hook/{name}.toml").write_text(
            f'[host]\ndriver-root = "/gpu-host"\nload-modules = false\n[runtime]\nlow-level = ["/opt/{name}"]\n'
        )
        command = f'GPU_OCI_HOOK_CONFIG=/etc/gpu-oci-hook/{name}.toml exec /usr/local/bin/gpu-oci-runtime "$@"'
        write_program(root / f"opt/gpu-{name}", f"#!/bin/sh\n{command}\n")
    (root / "etc/gpu-oci-hook/config.toml").write_text('[host]\ndriver-root = "/gpu-host"\nload-modules = false\n')
    (root / "etc/gpu-oci-hook/cdi-refresh.env").write_text("OPTIONS=--target podman-4.3\n")
    hooks = root / HOOKS_DIR.relative_to("/")
    hooks.mkdir()
    entry = {"version": "1.0.0", "hook": HOOK, "when": {"always": True}, "stages": ["prestart"]}
    (hooks / "gpu.json").write_text(json.dumps(entry))
    (root / "etc/containers").mkdir(exist_ok=True)
    (root / "etc/containers/containers.conf").write_text(CONTAINERS_CONF)
    (root / "etc/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    image = root / "image"
    for name in ("bin", "etc/ld.so.conf.d", "proc", "dev", "sys", "run", "tmp", "usr/lib/x86_64-linux-gnu"):
        (image / name).mkdir(parents=True)
    (image / "bin/busybox").write_bytes(
        (root / "usr/bin/busybox").read_bytes()
        if (root / "usr/bin/busybox").exists()
        else (root / "bin/busybox").read_bytes()
    )
    (image / "bin/busybox").chmod(0o755)
    for name in ("sh", "sleep"):
        (image / "bin" / name).symlink_to("busybox")


def write_program(path: Path, text: str) -> None:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)


def run(*argv: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command; an AssertionError quotes everything."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def show(unit: str, *names: str) -> dict[str, str]:
    """Return properties of a unit."""
    lines = run("systemctl", "show", unit, *(f"--property={name}" for name in names)).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def is_booted() -> bool:
    """Tell whether systemd has finished its start."""
    return run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")


def check_boot_order() -> None:
    """The CDI file was there before the engine started, with the options of the environment file."""
    assert Path("/run/engine-saw").read_text() == "file\n", "the engine started before the CDI file was written"
    assert "--target podman-4.3" in CDI_FILE.read_text()
    assert show("gpu-oci-hook-cdi.service", "Result", "ActiveState")["Result"] == "success"


def check_quiet_watch() -> None:
    """Programs that close nodes start nothing, and a driver package's many ldconfig runs fail nothing."""

    def list_starts() -> str:
        return show("gpu-oci-hook-cdi.service", "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"]

    wait_for(lambda: show("gpu-oci-hook-cdi.service", "ActiveState")["ActiveState"] == "inactive", "end of the service")
    before = list_starts()
    for _ in range(2000):
        Path("/dev/null").write_bytes(b"x")
    time.sleep(3)
    assert list_starts() == before, "writing to /dev/null started the service"
    for _ in range(12):
        run("ldconfig")
        time.sleep(0.25)
    wait_for(lambda: list_starts() != before, "a start after ldconfig")
    for unit in ("gpu-oci-hook-cdi.path", "gpu-oci-hook-cdi.service"):
        found = show(unit, "ActiveState", "Result")
        assert found["ActiveState"] != "failed" and found["Result"] == "success", f"{unit}: {found}"


def check_lost_file() -> None:
    """What the file was written with survives a start of the service without options."""
    before = CDI_FILE.read_text()
    Path("/etc/gpu-oci-hook/cdi-refresh.env").unlink()
    CDI_FILE.write_text(before + "\n")
    run("systemctl", "start", "gpu-oci-hook-cdi.service")
    assert CDI_FILE.read_text() == before


def open_nodes(*enter: str) -> dict[str, str]:
    """Open each node in a container; return what happened by its path.

    Arguments:
        enter: the command that runs another one in the container.
    """
    script = "for node in $*; do (exec 3<>$node) 2>&1 || true; done"
    text = run(*enter, "/bin/sh", "-c", script, "sh", *NODES).stdout
    answers = {}
    for node in NODES:
        line = next((line for line in text.splitlines() if f" {node}:" in line), "")
        answers[node] = line.rpartition(": ")[2] or "opened"
    return answers


def check_told(scope: str) -> None:
    """systemd was told to allow every node."""
    told = run("systemctl", "show", scope, "--property=DeviceAllow").stdout.splitlines()
    for node in NODES:
        status = os.stat(node)
        line = f"DeviceAllow=/dev/char/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)} rw"
        assert line in told or f"{line}m" in told, f"{scope}: {node}: {told}"


def check_kept(name: str, scope: str, *enter: str) -> Callable[[str], None]:
    """A container keeps its nodes over everything that makes systemd apply the rules that it knows.

    Returns:
        What checks that they can be opened, after what its argument says.
    """

    def check(after: str) -> None:
        found = open_nodes(*enter)
        assert found == dict.fromkeys(NODES, ALLOWED), f"{name} after {after}: {found}"
        print(f"{name}: every node can be opened after {after}", flush=True)

    check("its start")
    run("systemctl", "daemon-reload")
    check("systemctl daemon-reload")
    run("systemctl", "daemon-reexec")
    wait_for(is_booted, "systemd after daemon-reexec")
    check("systemctl daemon-reexec")
    run("systemctl", "set-property", "--runtime", scope, "CPUWeight=50")
    run("systemctl", "daemon-reload")
    check("systemctl set-property")
    return check


def check_container(runtime: str, *options: str) -> None:
    """A container of podman keeps its nodes."""
    hooks = ("--hooks-dir", str(HOOKS_DIR)) if "--device" not in options and runtime.startswith("plain") else ()
    name = f"{runtime}-{'hook' if hooks else 'cdi' if '--device' in options else 'env'}"
    argv = ["podman", *hooks, "--runtime", runtime, "run", "--detach", "--name", name, "--cgroups", "enabled", *options]
    run(*argv, "--rootfs", "/image:O", "/bin/sleep", "10000")
    identifier = run("podman", "inspect", "--format", "{{.Id}}", name).stdout.strip()
    scope = f"libpod-{identifier}.scope"
    if runtime.endswith("runc"):  # crun up to 1.21 tells systemd nothing and attaches a filter of its own
        check_told(scope)
    check = check_kept(name, scope, "podman", "exec", name)
    Path("/run/updated").unlink(missing_ok=True)
    if runtime != "plain-crun":  # crun itself closes every device when podman 5 asks it for an update
        done = run("podman", "update", "--memory", "256m", name, check=False)
        if "healthcheck" in done.stderr:  # podman 5.8 checks what a container of --rootfs does not have
            done = run("podman", "update", "--no-healthcheck", "--memory", "256m", name, check=False)
        assert done.returncode == 0, done.stderr
        assert Path("/run/updated").exists()
        check("podman update")
        run("systemctl", "daemon-reload")
        check("podman update and systemctl daemon-reload")
    run("podman", "rm", "--force", "--time", "0", name)


def check_bundle_with_hook() -> None:
    """A container of runc alone, in a scope of systemd, keeps the nodes that our prestart hook has given it."""
    bundle = Path("/run/byhand")
    bundle.mkdir()
    run("runc", "spec", "--bundle", str(bundle))
    spec = json.loads((bundle / "config.json").read_text())
    spec["root"] = {"path": "/image", "readonly": False}
    spec["process"].update(terminal=False, args=["/bin/sleep", "10000"])
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    spec["linux"]["cgroupsPath"] = "system.slice:gpu:byhand"
    spec["hooks"] = {"prestart": [{key: HOOK[key] for key in ("path", "args", "env")}]}
    (bundle / "config.json").write_text(json.dumps(spec))
    start = f"exec /opt/runc --systemd-cgroup run --detach --bundle {bundle} byhand >{bundle}/log 2>&1"
    done = run("sh", "-c", start, check=False)  # the container's process keeps the standard output
    assert done.returncode == 0, (bundle / "log").read_text()
    check_told("gpu-byhand.scope")
    check_kept("runc with the hook", "gpu-byhand.scope", "runc", "exec", "byhand")
    check_changed_rules("gpu-byhand.scope")
    run("runc", "delete", "--force", "byhand")


CHANGE_RULES = """
import os, sys
from gpu_oci_hook.live import bpf
from gpu_oci_hook.live.device_cgroup import allow_devices, deny_devices, find_device_cgroup
cgroup = find_device_cgroup(int(sys.argv[1]))
devices = [(os.major(number), os.minor(number)) for number in (os.stat(path).st_rdev for path in sys.argv[3:])]
for word in sys.argv[2].split(","):
    notes = (allow_devices if word == "allow" else deny_devices)(cgroup, devices)
    assert notes == [], notes
fd = bpf.open_cgroup(cgroup.paths[0])
print(sorted(len(bpf.dump_program(bpf.open_program(number))) for number in bpf.list_program_ids(fd)))
"""


def check_changed_rules(scope: str) -> None:
    """What is denied and allowed while the container runs stays so, and nothing grows."""
    pid = json.loads(run("runc", "state", "byhand").stdout)["pid"]

    def change(words: str) -> str:
        return run("/opt/gpu-oci-hook/bin/python", "-c", CHANGE_RULES, str(pid), words, NODES[0]).stdout

    def check(answer: str, after: str) -> None:
        for moment in (after, f"{after} and systemctl daemon-reload"):
            found = open_nodes("runc", "exec", "byhand")
            assert found == {**dict.fromkeys(NODES, ALLOWED), NODES[0]: answer}, f"after {moment}: {found}"
            print(f"runc with the hook: {NODES[0]}: {answer} after {moment}", flush=True)
            run("systemctl", "daemon-reload")

    denied = change("deny")
    check(DENIED, "it was denied")
    allowed = change("allow")
    check(ALLOWED, "it was allowed again")
    told = sorted(run("systemctl", "show", scope, "--property=DeviceAllow").stdout.splitlines())
    assert change(",".join(["deny", "allow"] * 50)) == allowed
    assert change("deny") == denied, "nothing grows"
    assert change("allow") == allowed
    assert sorted(run("systemctl", "show", scope, "--property=DeviceAllow").stdout.splitlines()) == told


def check_control() -> None:
    """Without the links, runc 1.1.3 to 1.1.6 loses the nodes: what the other checks call kept can be lost here."""
    version = run("runc", "--version").stdout.split()[2].partition("+")[0]
    if version not in ("1.1.3", "1.1.4", "1.1.5", "1.1.6"):
        return
    for link in Path("/dev/char").glob("*"):
        link.unlink()
    device = ("--device", "nvidia.com/gpu=all", "--rootfs", "/image:O", "/bin/sleep", "10000")
    run("podman", "--runtime", "plain-runc", "run", "--detach", "--name", "control", *device)
    assert set(open_nodes("podman", "exec", "control").values()) == {ALLOWED}
    run("systemctl", "daemon-reload")
    found = set(open_nodes("podman", "exec", "control").values())
    assert found == {DENIED}, f"after systemctl daemon-reload: {found}"
    run("podman", "rm", "--force", "--time", "0", "control")
    run("systemctl", "start", "gpu-oci-hook-cdi.service")
    assert sorted(Path("/dev/char").glob("195:*")), "the service makes the links again"


def main() -> None:
    """Prepare or check, as the command line says."""
    if sys.argv[1] == "prepare":
        prepare_root(Path(sys.argv[2]))
        return
    wait_for(is_booted, "the boot")
    failed = []
    checks: list[tuple[str, Callable[[], None]]] = [
        ("the CDI file before the engines", check_boot_order),
        ("units that do not start for nothing, and do not fail", check_quiet_watch),
        ("options that are remembered", check_lost_file),
        ("a container that loses its nodes without links", check_control),
        ("the prestart hook in a bundle of runc", check_bundle_with_hook),
    ]
    for low_level in ("runc", "crun"):
        env = ("--env", "NVIDIA_VISIBLE_DEVICES=all")
        for title, prefix in (("gpu-oci-runtime", "gpu"), ("the prestart hook", "plain")):
            checks.append(
                (f"{title} with {low_level}", lambda name=f"{prefix}-{low_level}", env=env: check_container(name, *env))
            )
        device = ("--device", "nvidia.com/gpu=all")
        checks.append(
            (
                f"the CDI file with {low_level}",
                lambda name=low_level, device=device: check_container(f"plain-{name}", *device),
            )
        )
    print(
        run("runc", "--version").stdout.splitlines()[0], run("systemctl", "--version").stdout.splitlines()[0], sep=", "
    )
    for title, check in checks:
        try:
            check()
        except (AssertionError, subprocess.SubprocessError, OSError, LookupError) as error:
            failed.append(title)
            print(f"FAILED: {title}: {error}", flush=True)
        else:
            print(f"passed: {title}", flush=True)
    if run("udevadm", "--help", check=False).stdout.find("verify") >= 0:
        run("udevadm", "verify", *map(str, Path("/etc/udev/rules.d").iterdir()))
    print(json.dumps({"failed": failed}))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
