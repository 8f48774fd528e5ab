"""What containers share, none of them can change; and a choice of GPUs leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.inject import gather
from support.bundles import DEV, container_spec, host_config, inject_in_process, make_bundle, user_namespace_param
from support.fixtures import SharedHost

ALL = "NVIDIA_DRIVER_CAPABILITIES=all"
CAPABILITIES = ["CAP_CHOWN", "CAP_SYS_ADMIN"]
USER = {"type": "user"}


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=8)


def mapped(*rows: tuple[int, int], **more: Any) -> dict[str, Any]:
    """The changes of a spec for a container with a user namespace; rows are (host id, size)."""
    spec = container_spec()
    linux = spec["linux"]
    linux["namespaces"] = [*linux["namespaces"], {**USER, **more}]
    linux["uidMappings"] = [{"containerID": 0, "hostID": first, "size": size} for first, size in rows]
    return {"linux": linux}


def privileged(name: str) -> dict[str, Any]:
    process = container_spec("NVIDIA_VISIBLE_DEVICES=none", ALL)["process"]
    return {"process": {**process, "capabilities": {name: CAPABILITIES}}}


KINDS: dict[str, tuple[dict[str, Any], bool]] = {
    "ordinary": ({}, True),
    "without the capability": (
        {"process": {**privileged("bounding")["process"], "capabilities": {"bounding": ["CAP_MKNOD"]}}},
        True,
    ),
    "privileged": (privileged("bounding"), False),
    "with the capability in one set only": (privileged("effective"), False),
    "with the capability as crun also reads it": (
        {"process": {**privileged("bounding")["process"], "capabilities": {"bounding": ["cap_sys_admin"]}}},
        False,
    ),
    "remapped": (mapped((100000, 65536)), True),
    "remapped to this user": (mapped((100000, 65536), (os.geteuid(), 1)), False),
    "its own user namespace with the same numbers": (mapped((0, 4294967295)), False),
    "somebody's user namespace": (mapped((100000, 65536), path="/proc/1/ns/user"), False),
    "a user namespace without mappings": (mapped(), False),
}


def list_own_sources(spec: dict[str, Any], directories: Iterable[Path]) -> set[Path]:
    return {
        directory
        for directory in directories
        for mount in spec["mounts"]
        if str(mount["source"]).startswith(f"{directory}/")
    }


@pytest.mark.parametrize("kind", [user_namespace_param(kind) for kind in KINDS])
def test_the_libraries_directory_is_shared_only_where_no_container_could_change_it(
    kind: str, tmp_path: Path, host: Path, isolated_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, shared = KINDS[kind]
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=none", ALL, **changes))
    after = inject_in_process(made, host_config(host))
    places = list_own_sources(after, (isolated_state, made / "gpu-oci-hook"))
    assert places == {isolated_state if shared else made / "gpu-oci-hook"}


def test_a_rootless_engines_containers_share_nothing(
    tmp_path: Path, host: Path, isolated_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rootless docker's containers have no user namespace in their spec: the engine itself runs in one."""
    monkeypatch.setattr(gather, "is_process_in_user_namespace", lambda: True)
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=none", ALL))
    after = inject_in_process(made, host_config(host))
    assert list_own_sources(after, (isolated_state, made / "gpu-oci-hook")) == {made / "gpu-oci-hook"}


def test_a_choice_of_gpus_leaves_nothing_in_the_state_directory(
    tmp_path: Path, host: Path, isolated_state: Path
) -> None:
    for number, selector in enumerate(("0", "1", "0,1", "2,3", "4-6", "7", "all")):
        spec = container_spec(f"NVIDIA_VISIBLE_DEVICES={selector}", ALL, mounts=[DEV])
        inject_in_process(make_bundle(tmp_path / str(number), spec), host_config(host))
        if not number:
            first = sorted(os.listdir(isolated_state))
    assert sorted(os.listdir(isolated_state)) == first
