"""A bundle that is started again with another request or driver: what we added goes, what the user has stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_oci_hook.container.injection_record import RECORD_NAME
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    PROC,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    read_spec,
    write_spec,
)
from support.command_line import Command
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

ALL = "NVIDIA_DRIVER_CAPABILITIES=all"


def ask(*env: str) -> list[str]:
    return ["PATH=/bin", *env]


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2)


def list_gpu_nodes(spec: Spec) -> set[str]:
    return {path for path in list_device_numbers(spec) if path.removeprefix("/dev/nvidia").isdigit()}


def fresh(tmp_path: Path, spec: Spec, host: Path, **config: object) -> Spec:
    """What the same request gets in a new bundle at the same path."""
    kept = tmp_path / "bundle"
    kept.rename(tmp_path / "kept")
    made = make_bundle(kept, spec)
    result = inject_in_process(made, host_config(host, **config))
    made.rename(tmp_path / "fresh")
    (tmp_path / "kept").rename(kept)
    return result


REQUESTS = {
    "another GPU": ask("NVIDIA_VISIBLE_DEVICES=1", ALL),
    "all GPUs": ask("NVIDIA_VISIBLE_DEVICES=all", ALL),
    "fewer capabilities": ask("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"),
    "the driver without a GPU": ask("NVIDIA_VISIBLE_DEVICES=none", ALL),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_kept_bundle_with_another_request_gets_what_a_new_one_gets(
    request_name: str, tmp_path: Path, host: Path
) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC]))
    changed = inject_in_process(made, host_config(host))
    changed["process"]["env"] = [*REQUESTS[request_name]]
    write_spec(made, changed)
    expected = fresh(tmp_path, container_spec(*REQUESTS[request_name][1:], mounts=[PROC]), host)
    after = inject_in_process(made, host_config(host))
    if not after["process"]["user"]["additionalGids"]:
        del after["process"]["user"]["additionalGids"]  # an empty list is as good as none
    assert after == expected


@pytest.mark.parametrize("env", [["NVIDIA_VISIBLE_DEVICES=void"], ["NVIDIA_VISIBLE_DEVICES="], []])
def test_a_kept_bundle_that_requests_nothing_any_more_loses_what_was_added(
    env: list[str], tmp_path: Path, host: Path
) -> None:
    original = container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC])
    made = make_bundle(tmp_path / "bundle", original)
    changed = inject_in_process(made, host_config(host))
    changed["process"]["env"] = ask(*env)
    write_spec(made, changed)
    after = inject_in_process(made, host_config(host))
    assert after["mounts"] == [PROC]
    assert list_device_numbers(after) == {} and list_allowed_numbers(after) == []
    assert not [hook for stage in after.get("hooks", {}).values() for hook in stage]


def test_after_a_driver_upgrade_a_kept_bundle_gets_what_a_new_one_gets(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", driver="535.183.06")
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC]))
    inject_in_process(made, host_config(tmp_path / "host"))
    (tmp_path / "host").rename(tmp_path / "old-host")
    host_tree.build_host(tmp_path / "host", driver="550.163.01")
    expected = fresh(tmp_path, container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC]), tmp_path / "host")
    after = inject_in_process(made, host_config(tmp_path / "host"))
    assert after == expected
    assert "535.183.06" not in json.dumps(after)


def test_entries_of_the_user_stay_even_if_they_look_like_ours(tmp_path: Path, host: Path) -> None:
    original = container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC])
    example = inject_in_process(make_bundle(tmp_path / "example", original), host_config(host))
    firmware = next(mount for mount in example["mounts"] if "firmware" in mount["destination"])
    node = next(node for node in example["linux"]["devices"] if node["major"] == 195)
    rule = next(rule for rule in example["linux"]["resources"]["devices"] if rule.get("minor") == node["minor"])
    own = container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC, firmware])
    own["linux"]["devices"] = [node]
    own["linux"]["resources"]["devices"].append(rule)
    made = make_bundle(tmp_path / "bundle", own)
    changed = inject_in_process(made, host_config(host))
    changed["process"]["env"] = ask("NVIDIA_VISIBLE_DEVICES=void")
    write_spec(made, changed)
    after = inject_in_process(made, host_config(host))
    assert after["mounts"] == [PROC, firmware]
    assert after["linux"]["devices"] == [node]
    assert after["linux"]["resources"]["devices"] == own["linux"]["resources"]["devices"]


def test_what_a_user_adds_between_two_starts_stays(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC]))
    changed = inject_in_process(made, host_config(host))
    added = {"destination": "/data", "type": "bind", "source": "/srv", "options": ["rbind"]}
    changed["mounts"].append(added)
    changed["process"]["env"] = ask("NVIDIA_VISIBLE_DEVICES=1", ALL)
    write_spec(made, changed)
    after = inject_in_process(made, host_config(host))
    assert added in after["mounts"]
    assert list_gpu_nodes(after) and list_gpu_nodes(after).isdisjoint(list_gpu_nodes(changed))
    again = inject_in_process(made, host_config(host))
    assert again == after


def test_a_library_directory_never_hides_the_libraries_in_it(tmp_path: Path, host: Path) -> None:
    """The mount of the directory has to come before those of its libraries, whatever was there before."""
    made = make_bundle(
        tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
    )
    changed = inject_in_process(made, host_config(host))
    (made / "gpu-oci-hook/injected.json").unlink()  # a bundle of an earlier version
    changed["process"]["env"] = ask("NVIDIA_VISIBLE_DEVICES=0", ALL)
    write_spec(made, changed)
    destinations = list_mount_destinations(inject_in_process(made, host_config(host)))
    directory = destinations.index("/usr/local/nvidia/lib64")
    libraries = [n for n, path in enumerate(destinations) if path.startswith("/usr/local/nvidia/lib64/")]
    assert libraries and directory < min(libraries)


def test_explain_names_what_goes_away(tmp_path: Path, host: Path, command: Command) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC]))
    changed = inject_in_process(made, host_config(host))
    changed["process"]["env"] = ask("NVIDIA_VISIBLE_DEVICES=1", ALL)
    write_spec(made, changed)
    (node,) = list_gpu_nodes(changed)
    result = command("explain", "--bundle", str(made), "--root", str(host))
    assert f"linux.devices: {node}" in result.out, result
    assert "left from an earlier injection" in result.out
    after = inject_in_process(made, host_config(host))
    assert node not in list_device_numbers(after)
    assert "left from" not in command("explain", "--bundle", str(made), "--root", str(host)).out


@pytest.mark.parametrize(
    "content",
    [b"[]", b"[{}, {}]", b"[[], []]", b"[1, 2, 3]", b"{", b'{"mounts": 1}', b'{"mounts": ["x"]}', b"\0" * 100],
)
def test_a_spoilt_record_counts_as_none(content: bytes, tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", ALL, mounts=[PROC]))
    before = inject_in_process(made, host_config(host))
    (made / "gpu-oci-hook/injected.json").write_bytes(content)
    assert inject_in_process(made, host_config(host)) == before
    assert read_spec(made) == before


@pytest.mark.root
@pytest.mark.parametrize("place", ["the record", "its directory", "a directory that others write", "a link"])
def test_a_record_that_another_user_could_have_written_is_not_believed(tmp_path: Path, host: Path, place: str) -> None:
    """What an injection has removed comes back, so such a record would be a way to a mount of any path."""
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0", mounts=[PROC]))
    spec = read_spec(made)
    every = {"destination": "/host", "type": "bind", "source": "/", "options": ["rbind"]}
    record = [{"root": spec["root"], "mounts": [every]}, {"root": spec["root"], "mounts": [PROC]}]
    directory = made / GENERATED_DIR
    if place == "a link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir()
    path = directory / RECORD_NAME
    path.write_text(json.dumps(record))
    if place == "the record":
        os.chown(path, 4807, 4807)
    elif place == "its directory":
        os.chown(directory, 4807, 4807)
    elif place == "a directory that others write":
        directory.chmod(0o777)
    after = inject_in_process(made, host_config(host))
    assert "/host" not in list_mount_destinations(after)


@pytest.mark.root
def test_nothing_is_written_through_a_link_in_place_of_the_bundles_directory(tmp_path: Path, host: Path) -> None:
    mounts = [PROC, {"destination": "/proc/driver", "type": "tmpfs", "source": "tmpfs"}]
    spec = container_spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all", mounts=mounts)
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}  # its library directory is in the bundle
    made = make_bundle(tmp_path / "bundle", spec)
    target = tmp_path / "elsewhere"
    target.mkdir()
    (made / GENERATED_DIR).symlink_to(target)
    with pytest.raises(Fault, match="this user may not write there"):
        inject_in_process(made, host_config(host))
    assert list(target.iterdir()) == []
