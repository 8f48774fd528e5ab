"""packaging/: engine snippets that the engines read, and systemd units."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.bundles import skip_or_fail

ROOT = Path(__file__).parents[1]
RUNTIME = "/usr/local/bin/gpu-oci-runtime"
SNIPPETS = {
    "docker/daemon.json": ("runtimes", "gpu-oci", "path"),
    "docker/daemon-default.json": ("runtimes", "gpu-oci", "path"),
    "containerd/config-v2.toml": (
        "plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "gpu-oci", "options", "BinaryName",
    ),
    "containerd/config-v3.toml": (
        "plugins", "io.containerd.cri.v1.runtime", "containerd", "runtimes", "gpu-oci", "options", "BinaryName",
    ),
    "crio/99-gpu-oci.conf": ("crio", "runtime", "runtimes", "gpu-oci", "runtime_path"),
    "podman/gpu-oci.conf": ("engine", "runtimes", "gpu-oci"),
}  # fmt: skip


def parsed(name: str) -> dict[str, Any]:
    text = (ROOT / "packaging" / name).read_text()
    loaded: dict[str, Any] = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    return loaded


def only_path(value: object, keys: tuple[str, ...]) -> object:
    """The value under the keys; fails if there is another table beside one of them on the way."""
    for key in keys:
        assert isinstance(value, dict)
        tables = {name for name, below in value.items() if isinstance(below, dict)}
        # A list of runtimes replaces containerd's own, so it repeats runc.
        own_runc = {"runc"} if value.get("runc") == {"runtime_type": "io.containerd.runc.v2"} else set()
        assert tables - own_runc <= {key}, f"other tables beside {key}: {tables}"
        value = value[key]
    return value


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_names_our_runtime_and_touches_nothing_else(name: str) -> None:
    assert only_path(parsed(name), SNIPPETS[name]) in (RUNTIME, [RUNTIME])


def test_containerd_snippets_have_their_versions_keys_and_a_runtime_type() -> None:
    for version in (2, 3):
        document = parsed(f"containerd/config-v{version}.toml")
        (plugin,) = document["plugins"].values()
        assert plugin["containerd"]["runtimes"]["gpu-oci"]["runtime_type"] == "io.containerd.runc.v2"
        assert plugin["containerd"]["runtimes"]["gpu-oci"]["options"]["SystemdCgroup"] is False


def test_the_default_runtime_of_docker_is_the_one_that_the_file_defines() -> None:
    document = parsed("docker/daemon-default.json")
    assert document["default-runtime"] in document["runtimes"]


def test_podman_gets_json_errors_under_both_names() -> None:
    names = parsed("podman/gpu-oci.conf")["engine"]["runtime_supports_json"]
    assert {"runc", "crun", "gpu-oci", "gpu-oci-runtime"} <= set(names)


def test_the_runtime_class_names_the_handler_of_the_snippets() -> None:
    assert parsed("kubernetes/runtimeclass.json")["handler"] == "gpu-oci"


@pytest.mark.skipif(not shutil.which("containerd"), reason="containerd is not installed")
def test_containerd_itself_reads_the_snippet_and_keeps_runc(tmp_path: Path) -> None:
    default = subprocess.run(["containerd", "config", "default"], capture_output=True, text=True, check=True).stdout
    version = tomllib.loads(default)["version"]
    whole = tmp_path / "config.toml"
    snippet = (ROOT / f"packaging/containerd/config-v{version}.toml").read_text()
    if version == 2:  # its comment says so: this file has a runc table
        start = snippet.index("[plugins")
        snippet = snippet[:start] + snippet[snippet.index("[plugins", start + 1) :]
    whole.write_text(default + snippet)
    run = subprocess.run(["containerd", "--config", whole, "config", "dump"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    plugin = "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime"
    containerd = tomllib.loads(run.stdout)["plugins"][plugin]["containerd"]
    assert containerd["runtimes"]["gpu-oci"]["options"]["BinaryName"] == RUNTIME
    assert containerd["default_runtime_name"] == "runc" and "runc" in containerd["runtimes"]


@pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")
def test_podman_itself_reads_the_snippet(tmp_path: Path) -> None:
    shim = tmp_path / "gpu-oci-runtime"
    shim.write_text("#!/bin/sh\necho some-runtime version 7\n")
    shim.chmod(0o755)
    file = tmp_path / "containers.conf"
    file.write_text((ROOT / "packaging/podman/gpu-oci.conf").read_text().replace(RUNTIME, str(shim)))
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # podman takes a runroot of 50 characters
        argv = ["podman", "--root", f"{short}/s", "--runroot", f"{short}/r", "--storage-driver", "vfs"]
        argv += ["--runtime", "gpu-oci", "info", "--format", "{{json .Host.OCIRuntime}}"]
        run = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "CONTAINERS_CONF": str(file)})
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["name"] == "gpu-oci" and told["path"] == str(shim)


UNITS = sorted((ROOT / "packaging/systemd").iterdir())


def unit(path: Path) -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text())
    return found


def test_the_units_belong_together_and_call_a_command_that_there_is() -> None:
    stem = "gpu-oci-hook-cdi"
    units = [path for path in UNITS if path.stem == stem]
    assert [path.name for path in units] == [f"{stem}.path", f"{stem}.service", f"{stem}.timer"]
    path, service, timer = (unit(one) for one in units)
    program, *words = service["Service"]["ExecStart"].split()
    assert program == RUNTIME.replace("runtime", "hook")
    command = importlib.import_module("gpu_oci_hook.cli.cdi_command").cdi
    assert words[0] == "cdi" and command.get_command(None, words[1]) is not None and words[2:] == ["$OPTIONS"]
    assert service["Service"]["Type"] == "oneshot"
    # Enabling the service enables all three.
    assert set(service["Install"]["Also"].split()) == {path.name for path in units} - {f"{stem}.service"}
    wanted = [one["Install"]["WantedBy"] for one in (service, timer, path)]
    assert wanted == ["multi-user.target", "timers.target", "paths.target"]


def test_the_caches_are_filled_before_engines_restart_their_containers() -> None:
    (path,) = [path for path in UNITS if path.stem == "gpu-oci-hook-warm"]
    service = unit(path)
    program, *words = service["Service"]["ExecStart"].split()
    assert (program, words) == (RUNTIME.replace("runtime", "hook"), ["warm"])
    assert importlib.import_module("gpu_oci_hook.cli.root_command").root_command.get_command(None, words[0]) is not None
    engines = {"docker", "containerd", "crio", "podman-restart", "kubelet"}
    assert {f"{name}.service" for name in engines} <= set(service["Unit"]["Before"].split())
    assert service["Install"]["WantedBy"] == "multi-user.target"


def test_the_timer_of_repair_calls_a_command_that_there_is() -> None:
    service, timer = (unit(path) for path in UNITS if path.stem == "gpu-oci-hook-repair")
    program, command, *options = service["Service"]["ExecStart"].split()
    assert program == RUNTIME.replace("runtime", "hook")
    loaded = importlib.import_module(f"gpu_oci_hook.cli.{command}_command").repair
    assert loaded.make_context(command, options).params["repair_all"] is True
    assert timer["Install"]["WantedBy"] == "timers.target" and "Install" not in service


def test_the_file_is_there_before_engines_restart_their_containers() -> None:
    service = unit(ROOT / "packaging/systemd/gpu-oci-hook-cdi.service")["Unit"]
    engines = {"docker", "containerd", "crio", "podman-restart", "kubelet"}
    assert {f"{name}.service" for name in engines} <= set(service["Before"].split())
    assert not set(service["Before"].split()) & set(service["After"].split())


def test_no_unit_watches_a_directory_that_changes_when_nothing_has() -> None:
    """A watch of /dev fires whenever a program closes a node, and the start limit then fails the units."""
    lines = (ROOT / "packaging/systemd/gpu-oci-hook-cdi.path").read_text().splitlines()
    watched = [line.partition("=")[2] for line in lines if line.startswith("Path")]
    assert watched and not [path for path in watched if path.startswith(("/dev", "/run", "/proc", "/sys"))]
    service = unit(ROOT / "packaging/systemd/gpu-oci-hook-cdi.service")["Unit"]
    assert service["StartLimitIntervalSec"] == "0", "one apt run changes the loader cache more often than five times"


def test_udev_starts_the_service_for_modules_of_the_driver_and_for_gpus() -> None:
    (file,) = (ROOT / "packaging/udev").iterdir()
    rules = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all(rule.endswith('RUN+="/usr/bin/systemctl --no-block start gpu-oci-hook-cdi.service"') for rule in rules)
    keys = [dict(re.findall(r'([A-Z]+(?:\{\w+\})?)=="([^"]*)"', rule)) for rule in rules]
    assert [key["SUBSYSTEM"] for key in keys] == ["module", "pci"]
    assert {"nvidia", "nvidia_uvm"} <= set(keys[0]["KERNEL"].split("|"))
    # tests/e2e/booted-systemd has udev read the file.


def test_the_units_options_come_from_a_file_that_may_be_missing_and_are_options_of_the_command() -> None:
    text = next(one for one in UNITS if one.suffix == ".service").read_text()
    service = unit(next(one for one in UNITS if one.suffix == ".service"))["Service"]
    assert service["Environment"] == "OPTIONS=", "systemd complains of a variable that is not set at all"
    assert service["EnvironmentFile"].startswith("-/etc/gpu-oci-hook/")
    assert service["EnvironmentFile"][1:] in text.partition("[Unit]")[0]
    (example,) = re.findall(r"#     OPTIONS=(.*)", text)
    refresh = importlib.import_module("gpu_oci_hook.cli.cdi_command").cdi.get_command(None, "refresh")
    assert refresh.make_context("refresh", example.split()).params["target"] == "podman-4.3"


def test_systemd_itself_reads_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        skip_or_fail("systemd's units by systemd itself; it is not installed")
    for path in UNITS:
        text = path.read_text().replace(RUNTIME.replace("runtime", "hook"), "/bin/true")
        (tmp_path / path.name).write_text(text)
    run = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.iterdir())], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
