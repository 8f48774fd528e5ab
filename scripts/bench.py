"""The start-up budgets, measured: every row is a ratio against bare runc (or bare Python) in the same run.

Each round takes every row once, in an order of its own, so that a change of the machine's mood hits all alike.
Containers get a fresh overlay on one image each time, as an engine gives them, and a config.json as dockerd writes
it (bench_bundle.json: seccomp, masked paths, device rules). Bundles and our memory lie on a tmpfs, as /run does on a
real machine; the container's layer lies on a disk.
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gpu_oci_hook.simulate import host_tree  # noqa: E402
from support.e2e import images  # noqa: E402
from support.nvml_double import NvmlDouble  # noqa: E402

STATE = Path("/run/gpu-oci-hook")

# name, budget, what it is a ratio of
ROWS = {
    "pass-through --version": (1.3, "time over runc / python3 -IS -c pass"),
    "pass-through features": (1.3, "time over runc / python3 -IS -c pass"),
    "pass-through state": (1.3, "time over runc / python3 -IS -c pass"),
    "create, no GPU asked": (1.3, "shim / runc create"),
    "create, 8 GPUs, all capabilities, warm": (1.45, "shim / runc create of the same edited bundle"),
    "create, 8 GPUs, first after boot": (2.0, "shim / runc create of the same edited bundle"),
    "create, 1 of 16 x 7 MIG devices, NVML hangs": (1.45, "shim / runc create of the same edited bundle"),
    "create, 16 x 7 MIG devices, NVML hangs": (1.45, "shim / runc create of the same edited bundle"),
    "create through one CDI hook (no shim)": (1.8, "runc create / the same create without the hook"),
    "cdi generate, 16 GPUs x 7 MIG devices": (3.0, "cdi generate / the same for one GPU"),
    "cdi refresh, nothing changed": (1.5, "cdi refresh / list --no-nvml"),
}


def through_cdi(plain: bytes, file: dict[str, Any], name: str) -> dict[str, Any]:
    """A config.json as an engine makes it of a CDI file: for our own files, which need no more of CDI than this."""
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
    """The bundles, the simulated host and the stop-watch."""

    def __init__(self, place: Path, runc: str) -> None:
        self.place = place
        self.runc = runc
        self.python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        self.image = images.build_glibc_image(place / "image")
        host_tree.build_host(place / "host", gpus=8, layout="debian")
        (place / "config.toml").write_text(f'[host]\nroot = "{place}/host"\n[runtime]\nlow-level = ["{runc}"]\n')
        os.environ["GPU_OCI_HOOK_CONFIG"] = str(place / "config.toml")
        subprocess.run(
            [Path(sys.executable).parent / "gpu-oci-hook", "install", "--prefix", place / "prefix"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.shim = str(place / "prefix/bin/gpu-oci-runtime")
        self.bundle = place / "bundle"
        for directory in (STATE, self.bundle):
            directory.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory], check=True)
        (self.bundle / "rootfs").mkdir()
        self.plain = (ROOT / "scripts/bench_bundle.json").read_bytes()
        spec = json.loads(self.plain)
        spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
        self.asking = json.dumps(spec).encode()
        self.count = 0
        self.edited = b""
        self.create(self.shim, self.asking)
        self.edited = (self.bundle / "config.json").read_bytes()
        assert self.edited != self.asking, "the shim has not injected"
        # One MIG device of very many, by its UUID. NVML is asked once, and hangs from then on.
        report = host_tree.build_host(place / "divided", gpus=16, layout="debian", mig=["7"])
        self.double = NvmlDouble(report)
        (place / "divided.toml").write_text(f'[host]\nroot = "{place}/divided"\n[runtime]\nlow-level = ["{runc}"]\n')
        self.asking_part, self.edited_part = {}, {}
        for which, word in (("part", report.gpus[11].mig[4].uuid), ("parts", "all")):
            spec = json.loads(self.plain)
            spec["process"]["env"] += [f"NVIDIA_VISIBLE_DEVICES={word}", "NVIDIA_DRIVER_CAPABILITIES=all"]
            self.asking_part[which] = json.dumps(spec).encode()
            self.part(which)
            self.edited_part[which] = (self.bundle / "config.json").read_bytes()
            assert self.edited_part[which] != self.asking_part[which], "the shim has not injected"
        self.double.set("sleep")
        # CDI: a host with one GPU to compare with, and what an engine makes of the file for eight.
        host_tree.build_host(place / "single", gpus=1, layout="debian")
        self.hook = str(place / "prefix/bin/gpu-oci-hook")
        self.refreshed()
        self.cdi("generate", "host", "--output", str(place / "cdi.json"))
        file = json.loads((place / "cdi.json").read_text())
        with_hook = through_cdi(self.plain, file, "all")
        without = {key: value for key, value in with_hook.items() if key != "hooks"}
        self.hooked, self.unhooked = json.dumps(with_hook).encode(), json.dumps(without).encode()

    def cdi(self, command: str, host: str, *words: str) -> float:
        """Seconds of one of the commands of `cdi`."""
        return self.run(self.hook, "cdi", command, "--root", str(self.place / host), "--hook", self.hook, *words)

    def refresh(self, host: str) -> float:
        """Seconds of a refresh; the driver's files are remembered afterwards."""
        return self.cdi("refresh", host, "--output", str(self.place / f"cdi-{host}/gpu.yaml"))

    def refreshed(self) -> None:
        """Has everything remembered that generating a file looks for."""
        for host in ("single", "divided"):
            self.refresh(host)

    def run(self, *words: str) -> float:
        """Seconds that a command takes; its output goes nowhere, since a container would keep a pipe open."""
        before = time.perf_counter()
        with open(self.place / "errors", "wb") as errors:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, check=False
            ).returncode
        took = time.perf_counter() - before
        if code:
            raise SystemExit(f"{' '.join(words)} ended with {code}: {(self.place / 'errors').read_text()}")
        return took

    def create(self, runtime: str, config: bytes) -> float:
        """Seconds of one create on a fresh root file system; the container is deleted afterwards."""
        self.count += 1
        name = f"gpu-oci-hook-bench-{os.getpid()}-{self.count}"
        layer = self.place / "layer"
        shutil.rmtree(layer, ignore_errors=True)
        shutil.rmtree(self.bundle / "gpu-oci-hook", ignore_errors=True)
        for part in ("upper", "work"):
            (layer / part).mkdir(parents=True)
        rootfs = self.bundle / "rootfs"
        options = f"lowerdir={self.image},upperdir={layer}/upper,workdir={layer}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, rootfs], check=True)
        try:
            (self.bundle / "config.json").write_bytes(config)
            took = self.run(runtime, "create", "--bundle", str(self.bundle), name)
            self.run(self.runc, "delete", "--force", name)
        finally:
            subprocess.run(["umount", "--lazy", rootfs], check=True)
        # The kernel takes a dead container's mounts apart behind our back; the next row must not pay for it.
        time.sleep(0.1)
        return took

    def cold(self) -> float:
        """Seconds of the first create after boot: nothing of ours is remembered."""
        for entry in STATE.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        return self.create(self.shim, self.asking)

    def part(self, which: str) -> float:
        """Seconds of a create with MIG devices whose UUIDs are known; NVML would hang if it were asked."""
        os.environ["GPU_OCI_HOOK_CONFIG"] = str(self.place / "divided.toml")
        try:
            return self.create(self.shim, self.asking_part[which])
        finally:
            os.environ["GPU_OCI_HOOK_CONFIG"] = str(self.place / "config.toml")

    def learn(self) -> None:
        """What NVML has to say about the MIG devices, into our memory."""
        self.double.set("normal")
        self.part("part")
        self.refreshed()
        self.double.set("sleep")

    def take(self, rounds: int) -> dict[str, float]:
        """One run: the ratio of each row, from medians over the rounds."""
        name = f"gpu-oci-hook-bench-{os.getpid()}-idle"
        (self.bundle / "config.json").write_bytes(self.plain)
        rootfs = self.bundle / "rootfs"
        subprocess.run(["mount", "--bind", self.image, rootfs], check=True)
        try:
            self.run(self.runc, "create", "--bundle", str(self.bundle), name)
        finally:
            subprocess.run(["umount", "--lazy", rootfs], check=True)
        words = {"--version": ["--version"], "features": ["features"], "state": ["state", name]}
        times: dict[str, list[float]] = {}

        def note(key: str, action: Callable[[], float]) -> None:
            times.setdefault(key, []).append(action())

        rows: list[tuple[str, Callable[[], float]]] = [
            ("python", lambda: self.run(self.python, "-IS", "-c", "pass")),
            ("runc plain", lambda: self.create(self.runc, self.plain)),
            ("shim plain", lambda: self.create(self.shim, self.plain)),
            ("runc edited", lambda: self.create(self.runc, self.edited)),
            ("shim asking", lambda: self.create(self.shim, self.asking)),
            ("cdi hooked", lambda: self.create(self.runc, self.hooked)),
            ("cdi unhooked", lambda: self.create(self.runc, self.unhooked)),
            ("cdi many", lambda: self.cdi("generate", "divided")),
            ("cdi one", lambda: self.cdi("generate", "single")),
            ("cdi refresh", lambda: self.refresh("single")),
            ("cdi list", lambda: self.run(self.hook, "list", "--no-nvml", "--root", str(self.place / "single"))),
        ]
        for word, line in words.items():
            rows.append((f"runc {word}", partial(self.run, self.runc, *line)))
            rows.append((f"shim {word}", partial(self.run, self.shim, *line)))
        for which in self.edited_part:
            rows.append((f"runc {which}", partial(self.create, self.runc, self.edited_part[which])))
            rows.append((f"shim {which}", partial(self.part, which)))
        try:
            for number in range(rounds):
                # Each row pays a little for what went before it: in every round for something else.
                random.Random(number).shuffle(rows)
                for key, action in rows:
                    note(key, action)
                note("shim cold", self.cold)
                self.learn()  # what is cold has forgotten
        finally:
            self.run(self.runc, "delete", "--force", name)
        m = {key: statistics.median(found) for key, found in times.items()}
        ratios = {f"pass-through {word}": (m[f"shim {word}"] - m[f"runc {word}"]) / m["python"] for word in words}
        ratios["create, no GPU asked"] = m["shim plain"] / m["runc plain"]
        ratios["create, 8 GPUs, all capabilities, warm"] = m["shim asking"] / m["runc edited"]
        ratios["create, 8 GPUs, first after boot"] = m["shim cold"] / m["runc edited"]
        ratios["create, 1 of 16 x 7 MIG devices, NVML hangs"] = m["shim part"] / m["runc part"]
        ratios["create, 16 x 7 MIG devices, NVML hangs"] = m["shim parts"] / m["runc parts"]
        ratios["create through one CDI hook (no shim)"] = m["cdi hooked"] / m["cdi unhooked"]
        ratios["cdi generate, 16 GPUs x 7 MIG devices"] = m["cdi many"] / m["cdi one"]
        ratios["cdi refresh, nothing changed"] = m["cdi refresh"] / m["cdi list"]
        print(
            "  medians in ms: "
            + ", ".join(f"{key} {1e3 * m[key]:.1f}" for key in m if key.partition(" ")[2] not in words),
            flush=True,
        )
        return ratios


def main() -> int:
    """Runs the bench and prints its table; 1 when a budget does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs a run (default 15)")
    parser.add_argument("--runs", type=int, default=3, help="runs (default 3)")
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
            bench = Bench(Path(name), runtime)
            for number in range(options.runs):
                print(f"run {number + 1} of {options.runs}, {options.rounds} rounds", flush=True)
                runs.append(bench.take(options.rounds))
        finally:
            subprocess.run(["umount", "--lazy", f"{name}/bundle"], check=False)
    print(f"\n{'row':44}{'budget':>7}{'median':>8}   runs")
    late = []
    for row, (budget, meaning) in ROWS.items():
        found = [run[row] for run in runs]
        middle = statistics.median(found)
        if middle > budget:
            late.append(row)
        each = " ".join(f"{ratio:.2f}" for ratio in found)
        print(f"{row:44}{budget:7.2f}{middle:8.2f}   {each}   {'OVER' if middle > budget else 'holds'}: {meaning}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
