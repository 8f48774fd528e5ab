"""CDI files generated for simulated hosts, and what they contain."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi.own_kinds import ContentOptions
from gpu_oci_hook.cdi.spec import validation
from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.generate.recipe import BuiltSpec, SpecRecipe, build_spec
from gpu_oci_hook.generate.spec_planner import PlannedSpec, plan_spec
from gpu_oci_hook.hook import arguments
from support.bundles import host_config

DRIVER_VERSION = "550.163.01"
DRIVER_LIBRARY_DIR = "/usr/local/nvidia/lib64"
VOID_VARIABLE = "NVIDIA_VISIBLE_DEVICES=void"

needs_device_nodes = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")

Spec = dict[str, Any]


def plan_host_spec(host: Path, config: Config | None = None, **options: Any) -> PlannedSpec:
    """Plan a CDI file for a host."""
    return plan_spec(config or host_config(host), ContentOptions(**options), ReadOnlyCache())


def build_host_spec(
    host: Path, config: Config | None = None, *, recipe: dict[str, Any] | None = None, **options: Any
) -> BuiltSpec:
    """Build the CDI file for a host; check that it is valid without a warning."""
    found = build_spec(
        SpecRecipe(ContentOptions(**options), **(recipe or {})), config or host_config(host), ReadOnlyCache()
    )
    assert [str(one) for one in validation.validate_spec(found.spec, "made.yaml")] == []
    check_main_rules(found.spec)
    return found


def check_main_rules(spec: Spec) -> None:
    """Check the most important rules again, without our schema."""
    assert list(spec)[:2] == ["cdiVersion", "kind"]
    assert spec["devices"]
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names)
    everything = [spec.get("containerEdits", {}), *[device["containerEdits"] for device in spec["devices"]]]
    assert all(everything[1:]), "a device without any edits is refused by the reference library"
    hooks = [hook for edits in everything for hook in edits.get("hooks", [])]
    assert len(hooks) <= 1
    for hook in hooks:
        assert hook["path"].startswith("/") and hook["env"] and hook["hookName"] == "createContainer"
        assert hook["args"][:3] == ["gpu-oci-hook", "hook", "create-container"]
        arguments.parse_hook_arguments(hook["args"][3:])
    for edits in everything:
        paths = [node["path"] for node in edits.get("deviceNodes", [])]
        places = [mount["containerPath"] for mount in edits.get("mounts", [])]
        assert len(set(paths)) == len(paths) and len(set(places)) == len(places)
        for mount in edits.get("mounts", []):
            assert mount["hostPath"].startswith("/") and os.path.lexists(mount["hostPath"])
            assert "type" not in mount and "rbind" in mount["options"]
        for node in edits.get("deviceNodes", []):
            assert node["type"] == "c" and node["permissions"] == "rw" and node["uid"] >= 0 and node["gid"] >= 0
            assert ("major" in node) == ("minor" in node) == (node.get("major") in (195, 226))


def index_devices(spec: Spec) -> dict[str, Spec]:
    """Return the edits of each device by its name."""
    return {device["name"]: device["containerEdits"] for device in spec["devices"]}


def list_node_paths(edits: Spec) -> list[str]:
    """Return the paths of device nodes."""
    return [node["path"] for node in edits.get("deviceNodes", [])]


def index_mount_sources(spec: Spec) -> dict[str, str]:
    """Return the common mounts: path in the container to path on the host."""
    return {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"].get("mounts", [])}


def read_hook_arguments(spec: Spec) -> arguments.HookArguments:
    """Parse the arguments of the file's hook."""
    (hook,) = spec["containerEdits"]["hooks"]
    return arguments.parse_hook_arguments(hook["args"][3:])
