"""Measure the start-up budgets: every row is a ratio against bare runc (or bare Python) in the same run.

Each round runs every action once, in a random order, so that a slower moment of the machine affects all alike.
Containers get a fresh overlay on one image each time, as from an engine, and a config.json as dockerd writes it
(bench_bundle.json: seccomp, masked paths, device rules). Bundles and our state lie on a tmpfs, as /run does on a real
machine. The container's layer lies on a disk. NVML does not answer while MIG devices are measured: their UUIDs are
cached.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench_crowd import Crowd  # noqa: E402

from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR  # noqa: E402
from gpu_oci_hook.simulate import host_tree  # noqa: E402
from support.e2e import images  # noqa: E402
from support.nvml_double import NvmlDouble  # noqa: E402

STATE = Path("/run/gpu-oci-hook")
CROWD, CROWD_ROUNDS = 64, 3
DEVNULL = Path(os.devnull)

Medians = dict[str, float]


class Row(NamedTuple):
    """One budget: a ratio of median times, which must not be above `budget`.

    Arguments:
        name: as the table prints it.
        meaning: what is divided by what.
        ratio: computes it from median seconds by the names in `Bench.list_actions`.
    """

    name: str
    budget: float
    meaning: str
    ratio: Callable[[Medians], float]


def pass_through(command: str) -> Row:
    """The budget of a command that the shim hands on to runc."""
    return Row(
        f"runc {command} through the shim", 1.35, "shim / runc", lambda m: m[f"shim {command}"] / m[f"runc {command}"]
    )


def hook_cost(command: str, m: Medians) -> float:
    """The cost of a hook for a container that requests no GPU, in starts of the interpreter."""
    return m[f"{command}, no GPU"] / m["python"]


COMMANDS = ("--version", "features", "state")
EDITED = "shim / runc create of the same edited bundle"
ROWS = [
    *[pass_through(command) for command in COMMANDS],
    Row("create without a GPU", 1.06, "shim / runc create", lambda m: m["shim, no GPU"] / m["runc, no GPU"]),
    Row("create with 8 GPUs, cached", 1.25, EDITED, lambda m: m["shim, 8 GPUs"] / m["runc, 8 GPUs"]),
    Row("create with 8 GPUs, first after boot", 1.5, EDITED, lambda m: m["shim, nothing cached"] / m["runc, 8 GPUs"]),
    Row("the same after warm", 1.3, EDITED, lambda m: m["shim, warmed"] / m["runc, 8 GPUs"]),
    Row("create with 1 of 112 MIG devices", 1.45, EDITED, lambda m: m["shim, 1 MIG"] / m["runc, 1 MIG"]),
    Row("create with 112 MIG devices", 1.3, EDITED, lambda m: m["shim, all MIG"] / m["runc, all MIG"]),
    Row(
        "create with our CDI hook, no shim", 1.8, "runc create / the same without the hook",
        lambda m: m["runc, CDI hook"] / m["runc, CDI without hook"],
    ),
    Row(
        "create with our prestart hook, no shim", 2.0, "runc create / the same without the hook",
        lambda m: m["runc, prestart hook"] / m["runc, hook not called"],
    ),
    Row(
        "precreate hook, then create", 1.0, "precreate and runc create / shim create",
        lambda m: m["precreate, 8 GPUs"] / m["shim, 8 GPUs"],
    ),
    *[
        Row(f"{command} hook without a request", 1.2, "hook / python3 -IS -c pass", partial(hook_cost, command))
        for command in ("prestart", "precreate")
    ],
    Row(
        "cdi generate, 16 GPUs with 112 MIG devices", 3.0, "cdi generate / the same for one GPU",
        lambda m: m["generate, 112 MIG"] / m["generate, 1 GPU"],
    ),
    Row(
        "64 creates at once, 8 GPUs each", 1.33, "shim / runc create of the same edited bundles, until all exist",
        lambda m: m["shim, crowd"] / m["runc, crowd"],
    ),
    Row(
        "64 creates at once, 99th percentile", 1.33, "shim / runc, end of the 63rd create",
        lambda m: m["shim, crowd p99"] / m["runc, crowd p99"],
    ),
    Row(
        "memory of a call that passes through", 0.5, "peak of our program / that of python3 -IS -c pass",
        lambda m: m["memory, pass-through"] / m["memory, python"],
    ),
    Row(
        "memory of a create with 8 GPUs", 2.0, "peak of our program / that of python3 -IS -c pass",
        lambda m: m["memory, 8 GPUs"] / m["memory, python"],
    ),
    Row("cdi refresh, nothing changed", 1.5, "cdi refresh / list --no-nvml", lambda m: m["refresh"] / m["list"]),
]  # fmt: skip


# Another runtime wrapper in the same rounds: its rows have no budget. What it makes of the request is its own affair.
NO_BUDGET = float("inf")
AGAINST_ROWS = [
    *[
        Row(
            f"other: runc {command}", NO_BUDGET, "other / runc",
            partial(lambda command, m: m[f"against {command}"] / m[f"runc {command}"], command),
        )
        for command in COMMANDS
    ],
    Row("other: create without a GPU", NO_BUDGET, "other / runc", lambda m: m["against, no GPU"] / m["runc, no GPU"]),
    Row("other: create with 8 GPUs", NO_BUDGET, "other / runc create of the bundle that our shim has edited",
        lambda m: m["against, 8 GPUs"] / m["runc, 8 GPUs"]),
]  # fmt: skip


def apply_cdi_file(plain: bytes, file: dict[str, Any], name: str) -> dict[str, Any]:
    """Build the config.json that an engine makes of a CDI file; enough of CDI for the files that we write."""
    spec: dict[str, Any] = json.loads(plain)
    device = next(one["containerEdits"] for one in file["devices"] if one["name"] == name)
    for edits in (file["containerEdits"], device):
        spec["process"]["env"] += edits.get("env", [])
        spec["mounts"] += [
            {"source": mount["hostPath"], "destination": mount["containerPath"], "options": mount["options"]}
            for mount in edits.get("mounts", [])
        ]
        for node in edits.get("deviceNodes", []):
            number = os.stat(node.get("hostPath", node["path"])).st_rdev
            numbers = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
            owner = {key: node[key] for key in ("path", "fileMode", "uid", "gid")}
            spec["linux"].setdefault("devices", []).append({**owner, **numbers})
            spec["linux"]["resources"]["devices"].append({"allow": True, **numbers, "access": node["permissions"]})
        for hook in edits.get("hooks", []):
            words = {key: hook[key] for key in ("path", "args", "env")}
            spec.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(words)
    spec["mounts"].sort(key=lambda mount: mount["destination"].rstrip("/").count("/"))
    return spec


class Bench:
    """The bundles, the simulated hosts and the timed actions."""

    def __init__(self, directory: Path, runc: str, against: str = "") -> None:
        self.directory = directory
        self.runc = runc
        self.against = against
        self.rows = [*ROWS, *(AGAINST_ROWS if against else [])]
        self.python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        self.image = images.build_glibc_image(directory / "image")
        host_tree.build_host(directory / "host", gpus=8, layout="debian")
        (directory / "config.toml").write_text(
            f'[host]\nroot = "{directory}/host"\n[runtime]\nlow-level = ["{runc}"]\n'
        )
        os.environ["GPU_OCI_HOOK_CONFIG"] = str(directory / "config.toml")
        subprocess.run(
            [Path(sys.executable).parent / "gpu-oci-hook", "install", "--prefix", directory / "prefix"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.shim = str(directory / "prefix/bin/gpu-oci-runtime")
        self.bundle = directory / "bundle"
        for mount_point in (STATE, self.bundle):
            mount_point.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", mount_point], check=True)
        (self.bundle / "rootfs").mkdir()
        self.plain = (ROOT / "scripts/bench_bundle.json").read_bytes()
        spec = json.loads(self.plain)
        spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
        self.requesting = json.dumps(spec).encode()
        self.count = 0
        self.generated: dict[bytes, Path] = {}
        self.create(self.shim, self.requesting)
        self.edited = self.keep_edited_bundle()
        assert self.edited != self.requesting, "the shim has not injected"
        # MIG devices: NVML is asked once, and does not answer from then on.
        report = host_tree.build_host(directory / "divided", gpus=16, layout="debian", mig=["7"])
        self.nvml = NvmlDouble(report)
        (directory / "divided.toml").write_text(
            f'[host]\nroot = "{directory}/divided"\n[runtime]\nlow-level = ["{runc}"]\n'
        )
        self.mig_requests, self.mig_edited = {}, {}
        for devices, value in (("1 MIG", report.gpus[11].mig[4].uuid), ("all MIG", "all")):
            spec = json.loads(self.plain)
            spec["process"]["env"] += [f"NVIDIA_VISIBLE_DEVICES={value}", "NVIDIA_DRIVER_CAPABILITIES=all"]
            self.mig_requests[devices] = json.dumps(spec).encode()
            self.create_mig(devices)
            self.mig_edited[devices] = self.keep_edited_bundle()
            assert self.mig_edited[devices] != self.mig_requests[devices], "the shim has not injected"
        self.nvml.set_mode("sleep")
        # CDI: a host with one GPU to compare with, and what an engine makes of the file for eight.
        host_tree.build_host(directory / "single", gpus=1, layout="debian")
        self.hook = str(directory / "prefix/bin/gpu-oci-hook")
        self.fill_caches()
        self.cdi("generate", "host", "--output", str(directory / "cdi.json"))
        file = json.loads((directory / "cdi.json").read_text())
        with_hook = apply_cdi_file(self.plain, file, "all")
        without = {key: value for key, value in with_hook.items() if key != "hooks"}
        self.cdi_with_hook, self.cdi_without_hook = json.dumps(with_hook).encode(), json.dumps(without).encode()
        # Our OCI hooks, as engines call them: from config.json, and before it is written.
        spec = json.loads(self.requesting)
        env = [f"GPU_OCI_HOOK_CONFIG={directory}/config.toml", f"PATH={os.environ['PATH']}"]
        spec["hooks"] = {"prestart": [{"path": self.hook, "args": ["gpu-oci-hook", "prestart"], "env": env}]}
        self.with_prestart_hook = json.dumps(spec).encode()
        time.sleep(0.2)  # a configuration that has just been written is not cached
        self.create(self.runc, self.with_prestart_hook)
        self.plain_file = directory / "plain.json"
        self.plain_file.write_bytes(self.plain)
        spec = json.loads(self.requesting)
        spec["root"]["path"] = str(self.bundle / "rootfs")  # as podman and CRI-O write it
        self.requesting_absolute = json.dumps(spec).encode()
        self.state = directory / "state.json"
        self.state.write_text(
            json.dumps({"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": str(self.bundle)})
        )

    def keep_edited_bundle(self) -> bytes:
        """Return the config.json that the shim has written, and keep the files in the bundle that it mounts."""
        config = (self.bundle / "config.json").read_bytes()
        self.generated[config] = self.directory / f"generated-{len(self.generated)}"
        shutil.copytree(self.bundle / GENERATED_DIR, self.generated[config], symlinks=True)
        return config

    def cdi(self, command: str, host: str, *words: str) -> float:
        """Return the seconds of one of the commands of `cdi`."""
        return self.run(self.hook, "cdi", command, "--root", str(self.directory / host), "--hook", self.hook, *words)

    def refresh(self, host: str) -> float:
        """Return the seconds of a refresh, which also caches the driver's files."""
        return self.cdi("refresh", host, "--output", str(self.directory / f"cdi-{host}/gpu.yaml"))

    def fill_caches(self) -> None:
        """Cache everything that generating a file looks for."""
        for host in ("single", "divided"):
            self.refresh(host)

    def run(self, *words: str, stdin: Path = DEVNULL, stdout: Path = DEVNULL) -> float:
        """Return the seconds that a command takes; its output is dropped, since a container would keep a pipe open."""
        before = time.perf_counter()
        with open(self.directory / "errors", "wb") as errors, open(stdin, "rb") as source, open(stdout, "wb") as sink:
            code = subprocess.run(words, stdin=source, stdout=sink, stderr=errors, check=False).returncode
        took = time.perf_counter() - before
        if code:
            raise SystemExit(f"{' '.join(words)} ended with {code}: {(self.directory / 'errors').read_text()}")
        return took

    def create(self, runtime: str, config: bytes, *, precreate: bool = False) -> float:
        """Return the seconds of one create on a fresh root file system; the container is deleted afterwards.

        Arguments:
            precreate: call our precreate hook first, and count its time too.
        """
        self.count += 1
        name = f"gpu-oci-hook-bench-{os.getpid()}-{self.count}"
        layer = self.directory / "layer"
        shutil.rmtree(layer, ignore_errors=True)
        shutil.rmtree(self.bundle / GENERATED_DIR, ignore_errors=True)
        if config in self.generated:
            shutil.copytree(self.generated[config], self.bundle / GENERATED_DIR, symlinks=True)
        for part in ("upper", "work"):
            (layer / part).mkdir(parents=True)
        rootfs = self.bundle / "rootfs"
        options = f"lowerdir={self.image},upperdir={layer}/upper,workdir={layer}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, rootfs], check=True)
        try:
            (self.bundle / "config.json").write_bytes(config)
            took = 0.0
            if precreate:
                written = self.directory / "written.json"
                written.write_bytes(config)
                took = self.run(self.hook, "precreate", stdin=written, stdout=self.bundle / "config.json")
            took += self.run(runtime, "create", "--bundle", str(self.bundle), name)
            self.run(self.runc, "delete", "--force", name)
        finally:
            subprocess.run(["umount", "--lazy", rootfs], check=True)
        # The kernel takes a dead container's mounts apart behind our back; the next row must not pay for it.
        time.sleep(0.1)
        return took

    def call_idle_hook(self, command: str, stdin: Path) -> float:
        """Return the seconds of a hook that is called for a container without a request."""
        (self.bundle / "config.json").write_bytes(self.plain)
        return self.run(self.hook, command, stdin=stdin)

    def create_uncached(self, *, warm: bool = False) -> float:
        """Return the seconds of the first create after boot: our state directory is empty.

        Arguments:
            warm: call `gpu-oci-hook warm` before, as our unit does at boot.
        """
        self.clear_caches()
        if warm:
            self.run(self.hook, "warm")
        return self.create(self.shim, self.requesting)

    def clear_caches(self) -> None:
        """Empty our state directory, as a boot does."""
        for entry in STATE.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def measure_crowd(self) -> dict[str, float]:
        """Return the seconds until CROWD containers with 8 GPUs exist that are created at once, and 99 % of them."""
        directory = self.directory / "crowd"
        crowd = Crowd(directory, self.image, self.runc, CROWD)
        none: list[Path | None] = [None] * CROWD
        times: dict[str, list[float]] = {}
        try:
            crowd.create(self.shim, [self.requesting] * CROWD, none)
            edited, generated = crowd.keep_generated(directory / "generated")
            for _ in range(CROWD_ROUNDS):
                for key, took in (
                    ("shim, crowd", crowd.create(self.shim, [self.requesting] * CROWD, none)),
                    ("runc, crowd", crowd.create(self.runc, edited, [*generated])),
                ):
                    times.setdefault(key, []).append(took[-1])
                    times.setdefault(f"{key} p99", []).append(took[CROWD * 99 // 100 - 1])
        finally:
            crowd.close()
        return {key: statistics.median(seconds) for key, seconds in times.items()}

    def measure_memory(self) -> dict[str, float]:
        """Return the peak resident memory in KiB of our programs, with a low-level runtime that does nothing."""
        config = self.directory / "true.toml"
        config.write_text(f'[host]\nroot = "{self.directory}/host"\n[runtime]\nlow-level = ["/bin/true"]\n')
        os.environ["GPU_OCI_HOOK_CONFIG"] = str(config)
        self.clear_caches()  # the launcher leaves calls to Python while containers of another runtime may live
        try:
            (self.bundle / "config.json").write_bytes(self.requesting)
            create = (self.shim, "create", "--bundle", str(self.bundle), "x")
            self._read_peak_memory(*create)
            (self.bundle / "config.json").write_bytes(self.requesting)
            return {
                "memory, python": self._read_peak_memory(self.python, "-IS", "-c", "pass"),
                "memory, pass-through": self._read_peak_memory(self.shim, "state", "x"),
                "memory, 8 GPUs": self._read_peak_memory(*create),
            }
        finally:
            os.environ["GPU_OCI_HOOK_CONFIG"] = str(self.directory / "config.toml")
            self.clear_caches()
            self.ask_nvml()

    def _read_peak_memory(self, *words: str) -> float:
        """Return the peak memory of a program. A small program starts it, since a parent's memory counts as well."""
        meter = self.directory / "bench_memory"
        if not meter.exists():
            subprocess.run(["gcc", "-O1", "-static", ROOT / "scripts/bench_memory.c", "-o", meter], check=True)
        return float(subprocess.run([meter, *words], capture_output=True, check=True).stdout)

    def create_mig(self, devices: str) -> float:
        """Return the seconds of a create with MIG devices whose UUIDs are cached; NVML would hang if it were asked."""
        os.environ["GPU_OCI_HOOK_CONFIG"] = str(self.directory / "divided.toml")
        try:
            return self.create(self.shim, self.mig_requests[devices])
        finally:
            os.environ["GPU_OCI_HOOK_CONFIG"] = str(self.directory / "config.toml")

    def ask_nvml(self) -> None:
        """Let NVML answer once, so that the UUIDs of MIG devices are cached, and fill all other caches too."""
        self.nvml.set_mode("normal")
        self.create_mig("1 MIG")
        self.fill_caches()
        self.create(self.runc, self.with_prestart_hook)
        self.nvml.set_mode("sleep")

    def list_actions(self, running: str) -> list[tuple[str, Callable[[], float]]]:
        """What is measured, by name; `running` is a container for `runc state`."""
        words = {"--version": ["--version"], "features": ["features"], "state": ["state", running]}
        actions: list[tuple[str, Callable[[], float]]] = [
            ("python", lambda: self.run(self.python, "-IS", "-c", "pass")),
            ("runc, no GPU", lambda: self.create(self.runc, self.plain)),
            ("shim, no GPU", lambda: self.create(self.shim, self.plain)),
            ("runc, 8 GPUs", lambda: self.create(self.runc, self.edited)),
            ("shim, 8 GPUs", lambda: self.create(self.shim, self.requesting)),
            ("runc, CDI hook", lambda: self.create(self.runc, self.cdi_with_hook)),
            ("runc, CDI without hook", lambda: self.create(self.runc, self.cdi_without_hook)),
            ("runc, prestart hook", lambda: self.create(self.runc, self.with_prestart_hook)),
            ("runc, hook not called", lambda: self.create(self.runc, self.requesting)),
            ("precreate, 8 GPUs", lambda: self.create(self.runc, self.requesting_absolute, precreate=True)),
            ("prestart, no GPU", lambda: self.call_idle_hook("prestart", self.state)),
            ("precreate, no GPU", lambda: self.call_idle_hook("precreate", self.plain_file)),
            ("generate, 112 MIG", lambda: self.cdi("generate", "divided")),
            ("generate, 1 GPU", lambda: self.cdi("generate", "single")),
            ("refresh", lambda: self.refresh("single")),
            ("list", lambda: self.run(self.hook, "list", "--no-nvml", "--root", str(self.directory / "single"))),
        ]
        for command in COMMANDS:
            actions.append((f"runc {command}", partial(self.run, self.runc, *words[command])))
            actions.append((f"shim {command}", partial(self.run, self.shim, *words[command])))
        if self.against:
            actions += [
                ("against, no GPU", lambda: self.create(self.against, self.plain)),
                ("against, 8 GPUs", lambda: self.create(self.against, self.requesting)),
                *((f"against {command}", partial(self.run, self.against, *words[command])) for command in COMMANDS),
            ]
        for devices in self.mig_edited:
            actions.append((f"runc, {devices}", partial(self.create, self.runc, self.mig_edited[devices])))
            actions.append((f"shim, {devices}", partial(self.create_mig, devices)))
        return actions

    def measure(self, rounds: int) -> dict[str, float]:
        """One run: the ratio of each row, from medians over the rounds."""
        name = f"gpu-oci-hook-bench-{os.getpid()}-idle"
        (self.bundle / "config.json").write_bytes(self.plain)
        rootfs = self.bundle / "rootfs"
        subprocess.run(["mount", "--bind", self.image, rootfs], check=True)
        try:
            self.run(self.runc, "create", "--bundle", str(self.bundle), name)
        finally:
            subprocess.run(["umount", "--lazy", rootfs], check=True)
        times: dict[str, list[float]] = {}
        actions = self.list_actions(name)
        try:
            for number in range(rounds):
                # Each action pays a little for what went before it: in every round for something else.
                random.Random(number).shuffle(actions)
                for key, action in actions:
                    times.setdefault(key, []).append(action())
                times.setdefault("shim, nothing cached", []).append(self.create_uncached())
                times.setdefault("shim, warmed", []).append(self.create_uncached(warm=True))
                self.ask_nvml()  # the caches are empty now
        finally:
            self.run(self.runc, "delete", "--force", name)
        medians = {key: statistics.median(seconds) for key, seconds in times.items()}
        medians |= self.measure_crowd()
        shown = [key for key in medians if key.partition(" ")[2] not in COMMANDS]
        print("  medians in ms: " + "; ".join(f"{key} {1e3 * medians[key]:.1f}" for key in shown), flush=True)
        memory = self.measure_memory()
        print("  peak memory in KiB: " + "; ".join(f"{key} {value:.0f}" for key, value in memory.items()), flush=True)
        return {row.name: row.ratio(medians | memory) for row in self.rows}


def find_wrapper(program: str) -> str:
    """Return the path of the program for --against; "" if none is given."""
    if not program:
        return ""
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"--against {program}: there is no such program")
    return os.path.abspath(path)


def main() -> int:
    """Run the bench and print its table; return 1 when a budget does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs a run (default 15)")
    parser.add_argument("--runs", type=int, default=3, help="runs (default 3)")
    parser.add_argument("--against", metavar="PROGRAM", default="", help="another runtime wrapper, in the same rounds")
    parser.add_argument("--runtime", default="runc", help="the low-level runtime (default runc)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("scripts/bench makes containers and needs root")
    runtime = shutil.which(options.runtime, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if runtime is None:
        raise SystemExit(f"{options.runtime} is not installed")
    with tempfile.TemporaryDirectory(prefix="gpu-oci-hook-bench-") as name:
        runs = []
        try:
            bench = Bench(Path(name), runtime, find_wrapper(options.against))
            for number in range(options.runs):
                print(f"run {number + 1} of {options.runs}, {options.rounds} rounds", flush=True)
                runs.append(bench.measure(options.rounds))
        finally:
            subprocess.run(["umount", "--lazy", f"{name}/bundle"], check=False)
    print(f"\n{'row':44}{'budget':>7}{'median':>8}   runs")
    late = []
    for row in bench.rows:
        ratios = [run[row.name] for run in runs]
        median = statistics.median(ratios)
        if median > row.budget:
            late.append(row.name)
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        verdict = "" if row.budget == NO_BUDGET else "OVER: " if median > row.budget else "holds: "
        budget = "-" if row.budget == NO_BUDGET else f"{row.budget:.2f}"
        print(f"{row.name:44}{budget:>7}{median:8.2f}   {each}   {verdict}{row.meaning}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
