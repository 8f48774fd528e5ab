"""Check the product on a machine with a GPU: see scripts/gpu-check for what it does and needs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import demo_bundle  # noqa: E402

PROBE = "gpu_check_probe.py"
UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
NODE = re.compile(r"/dev/nvidia(\d+)")
PROC_FILES = ("driver/nvidia/**/*", "driver/nvidia-*/**/*", "devices", "modules")
COLLECTED_LIMIT = 1 << 18  # bytes of each file
GPU_MAJOR = 195  # Documentation/admin-guide/devices.txt of the kernel


class Row(NamedTuple):
    """One line of the table.

    Arguments:
        result: "ok", "WRONG" or "not run".
    """

    check: str
    result: str
    detail: str


def compare(check: str, ours: object, theirs: object) -> Row:
    """Compare two answers to one question."""
    if ours == theirs:
        return Row(check, "ok", f"{len(ours)} GPUs" if isinstance(ours, list) and len(str(ours)) > 80 else str(ours))
    return Row(check, "WRONG", f"ours {ours}, theirs {theirs}")


class Machine:
    """The machine's product, called as an operator calls it.

    Arguments:
        config: the configuration file to use, or None for the machine's own.
        work: a directory for temporary files.
    """

    def __init__(self, config: Path | None, work: Path) -> None:
        self.work = work
        self.environment = dict(os.environ)
        if config is not None:
            self.environment["GPU_OCI_HOOK_CONFIG"] = str(config)
        done = self.call_hook("install", "--prefix", str(work / "prefix"))
        if done.returncode != 0:
            sys.exit(f"gpu-oci-hook install failed: {done.stderr.strip()}")
        self.runtime = str(work / "prefix/bin/gpu-oci-runtime")
        self.hook = str(work / "prefix/bin/gpu-oci-hook")

    def call_hook(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run gpu-oci-hook."""
        command = [sys.executable, "-c", "from gpu_oci_hook.cli import main; main()", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300)

    def read_json(self, *arguments: str) -> Any:
        """Run gpu-oci-hook and return its JSON output, whatever the exit status."""
        done = self.call_hook(*arguments, "--format", "json")
        try:
            return json.loads(done.stdout)
        except ValueError:
            sys.exit(f"gpu-oci-hook {' '.join(arguments)} failed: {done.stderr.strip() or done.stdout.strip()}")


def check_nvidia_smi(gpus: list[dict[str, Any]], driver: str) -> Iterator[Row]:
    """Compare `list` with `nvidia-smi -q -x`."""
    try:
        done = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=120)
        log = ElementTree.fromstring(done.stdout)
    except (OSError, ElementTree.ParseError, subprocess.TimeoutExpired) as error:
        yield Row("list and nvidia-smi", "not run", f"nvidia-smi: {error}")
        return
    yield compare("list and nvidia-smi: driver version", driver, log.findtext("driver_version"))
    theirs = [
        (
            gpu.findtext("uuid"),
            normalize_pci(gpu.get("id", "")),
            gpu.findtext("minor_number"),
            gpu.findtext("product_name"),
        )
        for gpu in log.findall("gpu")
    ]
    ours = [(gpu["uuid"], gpu["pci"], str(gpu["minor"]), gpu["model"]) for gpu in gpus]
    yield compare("list and nvidia-smi: UUID, PCI address, minor and model of each GPU", ours, theirs)


def normalize_pci(address: str) -> str:
    """Return a PCI address as the kernel writes it: nvidia-smi has eight digits of the domain, and capitals."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def check_nvml(gpus: list[dict[str, Any]]) -> Iterator[Row]:
    """Compare `list` with NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # pynvml has many, and a missing module is one more
        yield Row("list and NVML", "not run", f"{type(error).__name__}: {error}")
        return
    theirs = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        minor = pynvml.nvmlDeviceGetMinorNumber(handle)
        theirs.append((index, pynvml.nvmlDeviceGetUUID(handle), minor))
    yield compare("list and NVML: index, UUID and minor", [(g["index"], g["uuid"], g["minor"]) for g in gpus], theirs)


def check_proc(proc: Path, gpus: list[dict[str, Any]]) -> Iterator[Row]:
    """Compare `list` with a plain reading of /proc/driver/nvidia."""
    theirs = []
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        lines = (line.partition(":") for line in path.read_text(errors="replace").splitlines())
        values = {name.strip(): value.strip() for name, _, value in lines}
        theirs.append((path.parent.name, values.get("GPU UUID"), values.get("Device Minor"), values.get("Model")))
    ours = [(gpu["pci"], gpu["uuid"], str(gpu["minor"]), gpu["model"]) for gpu in gpus]
    yield compare("list and /proc/driver/nvidia/gpus", ours, theirs)


def collect_proc(proc: Path, target: Path) -> Row:
    """Copy the driver's files in /proc, with each UUID replaced by one that counts up."""
    known: dict[str, str] = {}

    def replace_uuid(match: re.Match[str]) -> str:
        return known.setdefault(match[0], f"{match[1]}-00000000-0000-4000-8000-{len(known):012}")

    count = 0
    for pattern in PROC_FILES:
        for path in sorted(proc.glob(pattern)):
            if not path.is_file():
                continue
            try:
                with path.open(encoding="utf-8", errors="replace") as file:
                    text = file.read(COLLECTED_LIMIT)
            except OSError as error:
                text = f"unreadable: {error.strerror}\n"
            copy = target / path.relative_to(proc)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(UUID.sub(replace_uuid, text), encoding="utf-8")
            count += 1
    return Row("collect /proc files", "ok" if count else "WRONG", f"{count} files, {len(known)} UUIDs replaced")


def write_bundle(machine: Machine, gpus: list[dict[str, Any]], cgroup: str) -> Path:
    """Create a bundle from the machine's own files that requests the first GPU and runs the probe."""
    bundle = machine.work / "bundle"
    demo_bundle.build_image(bundle / "rootfs")
    shell = Path("/bin/sh").resolve()  # the simulated nvidia-smi is a shell script
    shutil.copy(shell, bundle / "rootfs/bin/sh")
    for library in demo_bundle.list_needed_libraries(shell):
        demo_bundle.copy_file(library, bundle / "rootfs")
    shutil.copy(ROOT / "scripts" / PROBE, bundle / "rootfs")
    forbidden = [f"{GPU_MAJOR}:{gpu['minor']}" for gpu in gpus[1:]] or [f"{GPU_MAJOR}:{gpus[0]['minor'] + 1}"]
    python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    capabilities = ["CAP_MKNOD", "CAP_DAC_OVERRIDE"]  # as docker gives them
    spec = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [python, "-I", f"/{PROBE}", *forbidden],
            "env": [
                "PATH=/usr/bin:/bin:/usr/sbin:/sbin",
                "NVIDIA_VISIBLE_DEVICES=0",
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            ],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]},
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "resources": {"devices": [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "access": "m"}]},
            "namespaces": [{"type": name} for name in ("pid", "mount", "ipc", "uts")],
        },
    }
    (bundle / "config.json").write_text(json.dumps(spec))
    return bundle


def check_explain(machine: Machine, bundle: Path, gpus: list[dict[str, Any]]) -> Iterator[Row]:
    """Check that `explain` gives the first GPU and no other."""
    answer = machine.read_json("explain", "--bundle", str(bundle))
    nodes = [edit["path"] for edit in answer["edits"] if NODE.fullmatch(edit.get("path", ""))]
    yield compare("explain: nodes of GPU 0 alone", nodes, [f"/dev/nvidia{gpus[0]['minor']}"])


def check_cdi(machine: Machine) -> Iterator[Row]:
    """Check that `cdi generate` writes a file that `cdi validate` accepts."""
    path = machine.work / "nvidia.yaml"
    done = machine.call_hook("cdi", "generate", "--hook", machine.hook, "--output", str(path))
    if done.returncode != 0:
        yield Row("cdi generate", "WRONG", done.stderr.strip())
        return
    yield Row("cdi generate", "ok", done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "written")
    done = machine.call_hook("cdi", "validate", str(path))
    detail = (done.stdout + done.stderr).strip().splitlines()
    yield Row("cdi validate", "WRONG" if done.returncode else "ok", detail[-1] if detail else "no finding")


class Runner:
    """Runs the bundle with plain runc and with gpu-oci-runtime in front of it.

    Arguments:
        runc: path of runc.
    """

    def __init__(self, machine: Machine, runc: str, bundle: Path, config: Path | None) -> None:
        self.machine = machine
        self.runc = runc
        self.bundle = bundle
        self.original = (bundle / "config.json").read_text()
        settings = machine.work / "config.toml"
        text = config.read_text() if config else ""
        if "low-level" not in text:
            head, table, rest = text.partition("[runtime]\n")
            text = f"{head}{table or '[runtime]' + chr(10)}low-level = [{json.dumps(runc)}]\n{rest}"
        settings.write_text(text)
        settings.chmod(0o600)
        machine.environment["GPU_OCI_HOOK_CONFIG"] = str(settings)

    def run_container(
        self, runtime: str, args: list[str] | None = None
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run the container in a fresh copy of the bundle. Return the result of the runtime, and its seconds."""
        with tempfile.TemporaryDirectory(dir=self.machine.work) as directory:
            copy = Path(directory) / "bundle"
            shutil.copytree(self.bundle, copy, symlinks=True)
            spec = json.loads(self.original)
            if args is not None:
                spec["process"]["args"] = args
            (copy / "config.json").write_text(json.dumps(spec))
            name = f"gpu-check-{os.getpid()}-{time.monotonic_ns()}"
            command = [runtime, "--root", str(self.machine.work / "state"), "run", "--bundle", str(copy), name]
            start = time.perf_counter()
            done = subprocess.run(
                command,
                env=self.machine.environment,
                capture_output=True,
                text=True,
                timeout=300,
                stdin=subprocess.DEVNULL,
            )
            return done, time.perf_counter() - start


def check_container(runner: Runner, gpus: list[dict[str, Any]], *, simulated: bool) -> Iterator[Row]:
    """Run the probe in a container and judge its report."""
    done, _ = runner.run_container(runner.machine.runtime)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        yield Row("container with GPU 0", "WRONG", (done.stderr or done.stdout).strip()[-500:])
        return
    opened = "ENXIO" if simulated else "opened"
    node = f"/dev/nvidia{gpus[0]['minor']}"
    yield compare("container: GPU nodes", [n for n in report["nodes"] if NODE.fullmatch(n)], [node])
    yield compare("container: result of opening its nodes", sorted(set(report["nodes"].values())), [opened])
    yield compare("container: another GPU is denied", sorted(set(report["forbidden"].values())), ["EPERM"])
    smi = report["nvidia_smi"]
    listed = re.findall(UUID, smi["output"])
    works = smi["status"] == 0 and (simulated or len(listed) == 1)
    yield Row("container: nvidia-smi -L", "ok" if works else "WRONG", smi["output"].replace("\n", "; ")[:200])
    cuda = report["cuda"]
    if simulated:
        yield Row("container: CUDA", "not run", f"simulated driver: {cuda['error']}")
    elif cuda["error"]:
        yield Row("container: CUDA", "WRONG", cuda["error"])
    else:
        yield compare("container: cuInit, device count, 1 MiB allocated", cuda["count"], 1)


def check_times(runner: Runner, rounds: int) -> Iterator[Row]:
    """Compare the time of a run with and without the GPU."""
    python = json.loads(runner.original)["process"]["args"][0]
    args = [python, "-ISc", "pass"]
    times: dict[str, list[float]] = {runner.runc: [], runner.machine.runtime: []}
    for _ in range(rounds):
        for runtime, measured in times.items():
            done, seconds = runner.run_container(runtime, args)
            if done.returncode != 0:
                yield Row("time of a run", "WRONG", (done.stderr or f"exit status {done.returncode}").strip()[-300:])
                return
            measured.append(seconds)
    plain, ours = (statistics.median(measured) for measured in times.values())
    detail = f"runc {plain * 1000:.1f} ms, gpu-oci-runtime with GPU 0 {ours * 1000:.1f} ms, ratio {ours / plain:.2f}"
    yield Row(f"time of a run, median of {rounds}", "ok", detail)


def find_plain_runc_problem(runner: Runner) -> str:
    """Return why plain runc cannot run a container here, or ""."""
    try:
        python = json.loads(runner.original)["process"]["args"][0]
        done, _ = runner.run_container(runner.runc, [python, "-ISc", "pass"])
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr or f"exit status {done.returncode}").strip()[-300:]


def print_table(rows: list[Row]) -> None:
    """Print the results."""
    width = max(len(row.check) for row in rows)
    for row in rows:
        print(f"{row.check:{width}}  {row.result:7}  {row.detail}")


def run_checks(arguments: argparse.Namespace, work: Path, add: Callable[[Row], None]) -> None:
    """Run every check and pass its rows on."""
    machine = Machine(arguments.config, work)
    listing = machine.read_json("list")
    gpus, root = listing["gpus"], Path(listing["root"])
    simulated = root != Path("/")
    if not gpus:
        add(Row("list", "WRONG", "no GPU on this machine"))
        return
    add(
        Row(
            "list",
            "ok",
            f"{len(gpus)} GPUs, driver {listing['driver']['module']}, platform {listing['platform']['name']}",
        )
    )
    compared = ("nvidia-smi", "NVML") if simulated else ()
    for name in compared:
        add(Row(f"list and {name}", "not run", "the GPUs are simulated"))
    if not simulated:
        for row in (*check_nvidia_smi(gpus, listing["driver"]["module"]), *check_nvml(gpus)):
            add(row)
    proc = root / "proc"
    for row in check_proc(proc, gpus):
        add(row)
    if arguments.collect:
        add(collect_proc(proc, arguments.collect))
    bundle = write_bundle(machine, gpus, f"/gpu-check/{os.getpid()}")
    for row in (*check_explain(machine, bundle, gpus), *check_cdi(machine)):
        add(row)
    runc = shutil.which(arguments.runc)
    if runc is None:
        add(Row("container", "not run", f"no {arguments.runc} on this machine; name one with --runc PATH"))
        return
    runner = Runner(machine, runc, bundle, arguments.config)
    problem = find_plain_runc_problem(runner)
    if problem:
        add(Row("container", "not run", f"plain runc cannot run here: {problem}"))
        return
    for row in (*check_container(runner, gpus, simulated=simulated), *check_times(runner, arguments.rounds)):
        add(row)


def main() -> int:
    """Check, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--runc", default="runc")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("scripts/gpu-check: starting a container with device nodes needs root; try: sudo scripts/gpu-check")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        os.chmod(directory, 0o755)
        run_checks(arguments, Path(directory), rows.append)
    print_table(rows)
    return 1 if any(row.result == "WRONG" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
