"""The whole way, in this process: a bundle, a simulated host, and what config.json and the image are afterwards."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cli.config_host_check import check_config_against_host
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import DEFAULT_PATH
from gpu_oci_hook.container import rootfs_edits
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject import gather, pipeline
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan import build
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    DEV,
    IMAGE_LIBRARY_DIR,
    PROC,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    make_debian_rootfs,
    read_spec,
    skip_or_fail,
    snapshot_tree,
    user_namespace_param,
    write_spec,
)
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

DRIVER = "550.163.01"
ALL = "NVIDIA_DRIVER_CAPABILITIES=all"
GPU0 = "NVIDIA_VISIBLE_DEVICES=0"


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    """Two GPUs; tests that change a host make their own."""
    return shared_host(gpus=2, driver=DRIVER)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A host that the test may change."""
    host_tree.build_host(tmp_path / "own", gpus=2, driver=DRIVER)
    return tmp_path / "own"


def refused(directory: Path, config: Config) -> str:
    """The sentence of a container that does not start, whose bundle is as it was."""
    before = snapshot_tree(directory)
    with pytest.raises(Fault) as caught:
        inject_in_process(directory, config)
    assert snapshot_tree(directory) == before, "a refused container was changed"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def prepared(directory: Path, config: Config) -> Outcome:
    path = directory / "config.json"
    return pipeline.prepare_injection(json.loads(path.read_text()), config, str(directory), state_dir.StateCache())


# --- layouts ---------------------------------------------------------------------------------------


def _edits(root: Path, layout: str) -> tuple[Any, ...]:
    """What a container gets, told without the host's paths."""
    report = host_tree.build_host(root / "host", gpus=2, driver=DRIVER, layout=layout)
    made = make_bundle(root / "bundle", container_spec(GPU0, ALL, mounts=[PROC]))
    after = inject_in_process(made, host_config(root / "host", driver_root=report.driver_root))
    mounts = sorted(
        (mount["destination"], tuple(mount["options"]))
        for mount in after["mounts"]
        if "bind" in mount["type"] and "i386" not in mount["source"]
    )
    links = {
        str(path.relative_to(made)): os.readlink(path) for path in (made / "rootfs").rglob("*") if path.is_symlink()
    }
    return mounts, list_device_numbers(after), list_allowed_numbers(after), after["process"]["env"], links


@pytest.mark.parametrize("layout", [name for name in host_tree.DESKTOP_LAYOUTS if name != "debian"])
def test_every_layout_gives_the_same_edits(layout: str, tmp_path: Path) -> None:
    """32-bit libraries apart: not every layout has any. File names follow the host's: some have no version in them."""
    mounts, *rest = _edits(tmp_path / "a", layout)
    like, *others = _edits(tmp_path / "b", "debian")

    def plain(found: list[tuple[str, tuple[str, ...]]]) -> set[tuple[str, tuple[str, ...]]]:
        names = set()
        for path, options in found:
            head, _, name = path.rpartition("/")
            if head.endswith("/nvidia/lib") or path.endswith("/nvidia/lib"):
                continue
            # A library's file has its version in its name or not; a Vulkan file may name its machine.
            name = name.partition(".so")[0].replace("nvidia_icd.x86_64", "nvidia_icd")
            names.add((f"{head}/{name}", options))
        return names

    assert plain(mounts) == plain(like)
    nodes = [found for found in rest if isinstance(found, dict) and any(key.startswith("/dev/") for key in found)]
    theirs = [found for found in others if isinstance(found, dict) and any(key.startswith("/dev/") for key in found)]
    assert nodes == theirs
    assert rest[1:3] == others[1:3]
    for name in ("libcuda.so.1", "libcuda.so"):
        assert [path for path in rest[3] if path.endswith(f"/{name}")] == [
            path for path in others[3] if path.endswith(f"/{name}")
        ]


def test_a_driver_root_apart_from_the_hosts_own(tmp_path: Path) -> None:
    report = host_tree.build_host(tmp_path / "host", gpus=1, driver=DRIVER, layout="driver-container")
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, mounts=[PROC]))
    after = inject_in_process(made, host_config(tmp_path / "host", driver_root=report.driver_root))
    sources = [mount["source"] for mount in after["mounts"] if "libcuda.so" in mount["destination"]]
    assert sources
    assert all(source.startswith(f"{tmp_path}/host{report.driver_root}/") for source in sources)
    assert "/dev/nvidia0" in list_device_numbers(after)


# --- idempotence --------------------------------------------------------------------------------------

KINDS: dict[str, Spec] = {
    "plain": container_spec(GPU0, mounts=[PROC]),
    "everything": container_spec("NVIDIA_VISIBLE_DEVICES=all", ALL, mounts=[PROC, DEV]),
    "user namespace": container_spec(
        GPU0,
        mounts=[PROC],
        linux={
            "namespaces": [{"type": "user"}, {"type": "mount"}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    ),
    "no device rules": container_spec(GPU0, linux={"namespaces": [{"type": "mount"}]}),
    "driver alone": container_spec("NVIDIA_VISIBLE_DEVICES=none"),
    "own library path": container_spec(GPU0, "LD_LIBRARY_PATH=/opt/x", mounts=[DEV]),
}


@pytest.fixture
def params(monkeypatch: pytest.MonkeyPatch, host: Path) -> None:
    """As on a machine with the driver: containers see the module's parameters."""
    monkeypatch.setattr(build, "DRIVER_PARAMS", "/proc/driver/nvidia/params")
    data = (host / "proc/driver/nvidia/params").read_bytes()
    monkeypatch.setattr(gather, "_read_visible_params", lambda _: data)


@pytest.mark.parametrize("kind", [user_namespace_param(kind) for kind in KINDS])
@pytest.mark.parametrize("writable", [True, False], ids=["writable", "read-only"])
def test_a_second_time_changes_nothing(
    kind: str, writable: bool, tmp_path: Path, host: Path, params: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = host_config(host)
    config_json = json.loads(json.dumps(KINDS[kind]))
    if not writable:
        if not any(mount["destination"] == "/dev" for mount in config_json["mounts"]):
            config_json["mounts"].append(DEV)
        monkeypatch.setattr("gpu_oci_hook.files.rootfs.Rootfs.is_writable", lambda _: False)
    made = make_bundle(tmp_path / "bundle", config_json)
    (made / "rootfs/etc/ld.so.cache").write_bytes(b"")
    inject_in_process(made, config)
    before = snapshot_tree(made)
    assert read_spec(made) != KINDS[kind]
    for _ in range(2):
        inject_in_process(made, config)
        assert snapshot_tree(made) == before
    assert pipeline.apply_plan(prepared(made, config), read_spec(made), str(made / "config.json"),
                            (made / "config.json").read_bytes()) == []  # fmt: skip


@pytest.mark.parametrize("kind", [user_namespace_param(kind) for kind in KINDS])
def test_killed_between_the_image_and_config_json_the_next_try_comes_to_the_same_end(
    kind: str, tmp_path: Path, host: Path, params: None
) -> None:
    config = host_config(host)
    made = make_bundle(tmp_path / "b/bundle", KINDS[kind])
    outcome = prepared(made, config)
    assert outcome.rootfs is not None
    rootfs_edits.apply_to_rootfs(outcome.rootfs, outcome.plan.edits, f"{outcome.bundle}/{rootfs_edits.GENERATED_DIR}")
    after = inject_in_process(made, config)
    image = snapshot_tree(made, times=False)
    os.rename(tmp_path / "b", tmp_path / "a")  # the second bundle has the same paths
    other = make_bundle(tmp_path / "b/bundle", KINDS[kind])
    assert inject_in_process(other, config) == after
    assert snapshot_tree(other, times=False) == image


def test_what_was_done_with_another_driver_is_brought_up_to_date_by_a_new_bundle(tmp_path: Path) -> None:
    """The image of a container that ran with an older driver: a commit, or a restart after an update."""
    host_tree.build_host(tmp_path / "old", driver="535.183.06")
    host_tree.build_host(tmp_path / "new", driver=DRIVER)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, mounts=[PROC]))
    inject_in_process(made, host_config(tmp_path / "old"))
    write_spec(made, container_spec(GPU0, mounts=[PROC]))
    after = inject_in_process(made, host_config(tmp_path / "new"))
    assert not [mount for mount in after["mounts"] if "535.183.06" in json.dumps(mount)]
    for path in (made / "rootfs").rglob("libcuda.so*"):
        assert "535" not in os.readlink(path)
    assert b"libcuda.so.535.183.06" not in (made / "rootfs/etc/ld.so.cache").read_bytes()


# --- config.json ---------------------------------------------------------------------------------------


def test_unknown_keys_survive_everywhere(tmp_path: Path, host: Path) -> None:
    odd = {"x": [1, 2.5, None, True, "\u20ac \U0001f600 \0"], "": {}}
    config_json = container_spec(GPU0, mounts=[{**PROC, "odd": odd}], odd=odd)
    config_json["process"]["odd"] = odd
    config_json["linux"]["odd"] = odd
    config_json["linux"]["resources"]["odd"] = odd
    config_json["linux"]["resources"]["devices"][0]["odd"] = odd
    config_json["hooks"] = {"odd": odd, "prestart": [{"path": "/bin/x", "odd": odd}]}
    made = make_bundle(tmp_path / "bundle", config_json)
    after = inject_in_process(made, host_config(host))
    assert list(after)[: len(config_json)] == list(config_json)

    def subset(before: Any, now: Any) -> None:
        if isinstance(before, dict):
            for key, value in before.items():
                subset(value, now[key])
        elif isinstance(before, list):
            for at, value in enumerate(before):
                subset(value, now[at])
        else:
            assert before == now

    subset(config_json, after)


def test_lone_surrogates_and_big_numbers_survive(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    path = made / "config.json"
    path.write_text(path.read_text().replace('"cwd"', '"odd":["\\ud800",123456789012345678901234567890],"cwd"'))
    inject_in_process(made, host_config(host))
    assert '"odd":["\\ud800",123456789012345678901234567890]' in path.read_text()


NOT_UTF8 = os.fsdecode(b"h\xff")


def test_a_host_root_that_config_json_cannot_name_is_refused(tmp_path: Path) -> None:
    """JSON is UTF-8: runc would look for a file whose name has U+FFFD in it."""
    top = tmp_path / NOT_UTF8
    host_tree.build_host(top, driver=DRIVER)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    said = refused(made, host_config(top))
    assert "libcuda.so" in said and "is required for capability compute" in said
    assert "h\\udcff" in said and "not UTF-8" in said and "Rename the directory, or bind-mount it" in said
    (tmp_path / "link").symlink_to(top)
    assert str(tmp_path / "link") in json.dumps(inject_in_process(made, host_config(tmp_path / "link")))


def test_an_optional_file_whose_path_is_not_utf8_is_withheld(tmp_path: Path, own: Path) -> None:
    (own / "usr/bin").rename(own / "usr" / NOT_UTF8)
    (own / "usr/bin").symlink_to(NOT_UTF8)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    outcome = pipeline.prepare_injection(read_spec(made), host_config(own), str(made), state_dir.StateCache())
    withheld = {item.name: item.reason for item in outcome.plan.withheld}
    source = own / "usr" / NOT_UTF8 / "nvidia-smi"
    assert (
        withheld["/usr/bin/nvidia-smi"] == f"its path on the host is not UTF-8, so config.json cannot name it: {source}"
    )
    inject_in_process(made, host_config(own))
    text = (made / "config.json").read_text()
    assert "libcuda.so" in text and "nvidia-smi" not in text and "udcff" not in text


def test_a_bundle_that_is_not_utf8_is_refused_when_something_in_it_is_mounted(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / NOT_UTF8, container_spec(GPU0))
    assert "udcff" not in json.dumps(inject_in_process(made, host_config(host)))
    own_library = {"destination": f"{IMAGE_LIBRARY_DIR}/libcuda.so.1", "type": "bind", "source": "/etc/hostname"}
    other = make_bundle(tmp_path / "other" / NOT_UTF8, container_spec(GPU0, mounts=[own_library]))
    said = refused(other, host_config(host))
    assert "h\\udcff/gpu-oci-hook/libraries-" in said and "the path is not UTF-8, so config.json cannot name it" in said


def test_links_of_an_image_to_names_that_are_not_utf8_get_no_mount(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    rootfs = made / "rootfs"
    (rootfs / "usr/bin").rmdir()
    (rootfs / "usr" / NOT_UTF8).mkdir()
    (rootfs / "usr/bin").symlink_to(NOT_UTF8)
    (rootfs / "usr/local").symlink_to(NOT_UTF8)
    outcome = pipeline.prepare_injection(read_spec(made), host_config(host), str(made), state_dir.StateCache())
    withheld = {item.name: item.reason for item in outcome.plan.withheld}
    said = f"a link of the image leads from /usr/bin/nvidia-smi to /usr/{NOT_UTF8}/nvidia-smi, which is not UTF-8"
    assert withheld["/usr/bin/nvidia-smi"] == said
    after = inject_in_process(made, host_config(host))
    assert "udcff" not in json.dumps(after)
    assert "/usr/lib/gpu-oci-hook/lib64" in list_mount_destinations(after)


def test_owner_and_mode_of_config_json_stay(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    path = made / "config.json"
    os.chmod(path, 0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    before = path.stat()
    inject_in_process(made, host_config(host))
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


def test_a_config_json_that_is_a_link_stays_one(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    os.rename(made / "config.json", tmp_path / "real.json")
    (made / "config.json").symlink_to("../real.json")
    inject_in_process(made, host_config(host))
    assert (made / "config.json").is_symlink()
    assert "/dev/nvidia1" in (tmp_path / "real.json").read_text()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("linux",), []),
        (("linux",), "x"),
        (("linux", "devices"), {}),
        (("linux", "resources"), 7),
        (("linux", "resources", "devices"), {"a": 1}),
        (("mounts",), {"a": 1}),
    ],
)
def test_something_else_than_the_specification_says_is_refused_before_anything_is_touched(
    where: tuple[str, ...], value: object, tmp_path: Path, host: Path
) -> None:
    config_json = container_spec(GPU0)
    inner: Any = config_json
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    text = refused(make_bundle(tmp_path / "bundle", config_json), host_config(host))
    assert f'"{where[-1]}" is not an ' in text


def test_a_number_that_json_cannot_say_is_refused_before_anything_is_touched(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    path = made / "config.json"
    path.write_text(path.read_text().replace('"cwd"', '"odd":1e999,"cwd"'))
    assert "cannot be written as JSON" in refused(made, host_config(host))


@pytest.mark.parametrize("root", [None, 7, "", {}, {"path": None}, {"path": ""}, {"path": "a\0b"}, {"path": "nowhere"},
                                  {"path": "\ud800"}, {"path": "config.json"}])  # fmt: skip
def test_a_root_that_cannot_be_is_refused(root: object, tmp_path: Path, host: Path) -> None:
    text = refused(make_bundle(tmp_path / "bundle", container_spec(GPU0, root=root)), host_config(host))
    assert "root" in text
    assert "no such file or directory" not in text.lower()


def test_the_machines_own_root_is_not_injected_into(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another directory plays the machine's root: a test that fails shall not harm the one it runs on.
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    truly = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: truly(made / "rootfs" if path == "/" else path, **more))
    assert "machine's own" in refused(made, host_config(host))


def test_a_rule_that_a_later_one_takes_back_is_not_taken_for_ours(tmp_path: Path, host: Path) -> None:
    config_json = container_spec(GPU0)
    allow = {"allow": True, "type": "c", "major": 195, "minor": 255, "access": "rwm"}
    config_json["linux"]["resources"]["devices"] = [allow, {"allow": False, "access": "rwm"}]
    after = inject_in_process(make_bundle(tmp_path / "bundle", config_json), host_config(host))
    assert list_allowed_numbers(after).count((195, 255)) == 2


def test_a_rule_of_the_engines_own_is_not_repeated(tmp_path: Path, host: Path) -> None:
    config_json = container_spec(GPU0)
    config_json["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": 255, "access": "rwm"}
    )
    after = inject_in_process(make_bundle(tmp_path / "bundle", config_json), host_config(host))
    assert list_allowed_numbers(after).count((195, 255)) == 1


def test_stale_numbers_in_the_spec_give_way_to_the_kernels(tmp_path: Path, host: Path) -> None:
    config_json = container_spec(GPU0)
    config_json["linux"]["devices"] = [
        {"path": "/dev/nvidia-uvm", "type": "c", "major": 235, "minor": 0},
        {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
    ]
    after = inject_in_process(make_bundle(tmp_path / "bundle", config_json), host_config(host))
    found = list_device_numbers(after)
    assert found["/dev/nvidia-uvm"] == (510, 0)
    assert found["/dev/fuse"] == (10, 229)
    assert [node["path"] for node in after["linux"]["devices"]].count("/dev/nvidia-uvm") == 1


def test_the_bundle_of_a_cdi_engine_is_left_alone(tmp_path: Path, host: Path) -> None:
    hook = {"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", "update-ldcache"]}
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, hooks={"createContainer": [hook]}))
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before
    outcome = prepared(made, host_config(host))
    assert outcome.plan.state == "done"
    assert any("nvidia-ctk" in warning for warning in outcome.plan.warnings)


def test_the_hook_of_nvidias_toolkit_is_taken_out(tmp_path: Path, host: Path) -> None:
    other = {"path": "/usr/bin/other"}
    nvidia = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
    after = inject_in_process(
        make_bundle(tmp_path / "bundle", container_spec(GPU0, hooks={"prestart": [nvidia, other, nvidia]})),
        host_config(host),
    )
    assert after["hooks"]["prestart"] == [other]


GPU_HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"], "env": ["PATH=/bin"]}


@pytest.mark.parametrize(
    ("env", "values"),
    [
        (["NVIDIA_VISIBLE_DEVICES=0"], {"env": "never"}),
        (["NVIDIA_VISIBLE_DEVICES=0"], {"env": "privileged"}),
        (["NVIDIA_VISIBLE_DEVICES=0"], {"root": "/nowhere", "missing_gpu": "warn"}),
        (["NVIDIA_VISIBLE_DEVICES=void"], {}),
        (["NVIDIA_VISIBLE_DEVICES="], {}),
        ([], {}),
    ],
)
def test_a_container_that_gets_nothing_loses_other_gpu_hooks_and_nothing_else(
    env: list[str], values: dict[str, str], tmp_path: Path, host: Path
) -> None:
    other = {"path": "/usr/bin/other"}
    config_json = container_spec(*env, hooks={"prestart": [GPU_HOOK, other], "createRuntime": [GPU_HOOK]})
    made = make_bundle(tmp_path / "bundle", config_json)
    image = snapshot_tree(made / "rootfs")
    after = inject_in_process(made, host_config(values.pop("root", host), **values))
    assert after == {**config_json, "hooks": {"prestart": [other], "createRuntime": []}}
    assert snapshot_tree(made / "rootfs") == image
    before = snapshot_tree(made)
    assert inject_in_process(made, host_config(host, env="never")) == after
    assert snapshot_tree(made) == before


def test_a_gpu_hook_goes_where_a_cdi_file_has_injected(tmp_path: Path, host: Path) -> None:
    ours = {"path": "/x/gpu-oci-hook", "args": ["gpu-oci-hook", "hook", "create-container"]}
    config_json = container_spec(GPU0, hooks={"prestart": [GPU_HOOK], "createContainer": [ours]})
    after = inject_in_process(make_bundle(tmp_path / "bundle", config_json), host_config(host))
    assert after == {**config_json, "hooks": {"prestart": [], "createContainer": [ours]}}


def test_a_gpu_hook_goes_where_the_configuration_cannot_be_read(tmp_path: Path, isolated_state: Path) -> None:
    (isolated_state.parent / "config.toml").write_text("[request\n")
    config_json = container_spec(hooks={"prestart": [GPU_HOOK]})
    made = make_bundle(tmp_path / "bundle", config_json)
    path = str(made / "config.json")
    pipeline.inject_gpus(path, Path(path).read_bytes(), str(made), None)
    assert read_spec(made) == {**config_json, "hooks": {"prestart": []}}


# --- what is asked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"env": "never"}, {"env": "privileged"}])
def test_who_may_not_ask_starts_without_a_gpu_and_untouched(config: dict[str, str], tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host, **config))
    assert snapshot_tree(made) == before


@pytest.mark.parametrize("words", ["0,0", "0,GPU-4", "0,0000:07:00.0", "0-0,0", " 0 , 0 ,"])
def test_a_gpu_by_two_names_is_one(words: str, tmp_path: Path, host: Path) -> None:
    uuid = host_tree.build_host(tmp_path / "again", gpus=2).gpus[0].uuid
    words = words.replace("GPU-4", uuid[:12])
    after = inject_in_process(
        make_bundle(tmp_path / "bundle", container_spec(f"NVIDIA_VISIBLE_DEVICES={words}")), host_config(host)
    )
    nodes = [node["path"] for node in after["linux"]["devices"]]
    assert len(nodes) == len(set(nodes)) == len(list_allowed_numbers(after)) == len(set(list_allowed_numbers(after)))
    assert [path for path in nodes if path[len("/dev/nvidia") :].isdigit()] == ["/dev/nvidia1"]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, host: Path) -> None:
    text = refused(make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=9")), host_config(host))
    assert "there is no GPU 9. This host has GPUs 0 to 1" in text


# --- what is there ---------------------------------------------------------------------------------------


def no_module(root: Path) -> None:
    for name in ("proc/driver/nvidia/version", "sys/module/nvidia/version"):
        (root / name).unlink()
    (root / "proc/devices").chmod(0o644)
    (root / "proc/devices").write_text("Character devices:\n  1 mem\n")


def no_gpu(root: Path) -> None:
    os.rename(root / "proc/driver/nvidia/gpus", root / "proc/driver/nvidia/gone")


def no_files(root: Path) -> None:
    no_module(root)
    os.rename(root / "usr", root / "gone")


def test_a_root_that_is_not_there_is_named_and_nothing_else(own: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    wrong = host_config(tmp_path / "none")
    assert f": [host] root = {tmp_path}/none is not a directory. Name" in refused(made, wrong)
    wrong = host_config(own, driver_root="/run/nvidia/none")
    assert refused(made, wrong).startswith(f"[host] driver-root = /run/nvidia/none is not a directory below {own}")
    (warning,) = prepared(made, host_config(tmp_path / "none", missing_gpu="warn")).plan.warnings
    assert warning == f"[host] root = {tmp_path}/none is not a directory; the container starts without a GPU"


def test_no_gpu_names_the_configuration_that_counted(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPU_OCI_HOOK_CONFIG")
    no_gpu(own)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    text = refused(made, host_config(own))
    assert f"for containers (default configuration, since there is no {DEFAULT_PATH}): " in text
    assert "set GPU_OCI_HOOK_CONFIG if the configuration is in another file" in text
    named = host_config(own)
    named.path = "/somewhere/config.toml"
    text = refused(made, named)
    assert "for containers (configuration /somewhere/config.toml): " in text and "GPU_OCI_HOOK_CONFIG" not in text


@pytest.mark.parametrize("driver_is_at", ["/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"])
@pytest.mark.parametrize("spoil", [None, no_module])
def test_a_driver_root_without_the_driver_is_corrected(
    driver_is_at: str, spoil: Any, own: Path, tmp_path: Path
) -> None:
    (own / "srv/driver").mkdir(parents=True)
    if driver_is_at != "/":
        (own / driver_is_at.lstrip("/")).mkdir(parents=True)
        os.rename(own / "usr", own / driver_is_at.lstrip("/") / "usr")
    if spoil:
        spoil(own)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    config = host_config(own, driver_root="/srv/driver")
    config.path = "/somewhere/config.toml"
    text = refused(made, config)
    assert (
        f'he driver\'s libraries are below {driver_is_at}: set driver-root = "{driver_is_at}" below [host] in '
        "/somewhere/config.toml" in text
    )
    assert "install and load" not in text and "nstall the driver" not in text
    assert f"has no driver libraries; the driver's libraries are below {driver_is_at}: set" in "\n".join(
        what for _, what, _ in check_config_against_host(config)
    )


def test_a_driver_root_without_libraries_is_no_matter_where_none_is_required(own: Path, tmp_path: Path) -> None:
    (own / "srv/driver").mkdir(parents=True)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=graphics"))
    assert prepared(made, host_config(own, driver_root="/srv/driver")).plan.state == "inject"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_module, ("nvidia is not loaded", "no nvidia in /proc/devices", "are installed. Load the driver, or ")),
        (no_gpu, (f"the kernel module {DRIVER} is loaded but has no GPU", "Look for the reason in the kernel's log")),
        (no_files, ("nvidia is not loaded", "no driver libraries are installed", "driver-root or library-paths")),
    ],
)
def test_a_machine_without_a_gpu(spoil: Any, said: tuple[str, ...], own: Path, tmp_path: Path) -> None:
    spoil(own)
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    text = refused(made, host_config(own))
    for part in (*said, "this machine has no NVIDIA GPU for containers", "missing-gpu"):
        assert part in text
    before = snapshot_tree(made)
    inject_in_process(made, host_config(own, missing_gpu="warn"))
    assert snapshot_tree(made) == before
    (warning,) = prepared(made, host_config(own, missing_gpu="warn")).plan.warnings
    assert warning.endswith("the container starts without a GPU")


def test_none_needs_no_gpu_but_the_module(own: Path, tmp_path: Path) -> None:
    no_gpu(own)
    after = inject_in_process(
        make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=none")), host_config(own)
    )
    assert list(list_device_numbers(after)) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


def test_libraries_of_another_version_than_the_module_are_refused(own: Path, tmp_path: Path) -> None:
    path = own / "proc/driver/nvidia/version"
    path.chmod(0o644)
    path.write_text(path.read_text().replace(DRIVER, "535.183.06"))
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    text = refused(made, host_config(own))
    assert f"kernel module is version 535.183.06, the driver libraries are version {DRIVER}" in text
    assert "reboot" in text
    after = inject_in_process(made, host_config(own, version_mismatch="warn"))
    assert any(f"libcuda.so.{DRIVER}" in mount["source"] for mount in after["mounts"])
    warnings = prepared(made, host_config(own, version_mismatch="warn")).plan.warnings
    assert any("version mismatch" in warning for warning in warnings)


def test_a_stale_node_costs_a_warning_and_the_kernels_numbers_win(own: Path, tmp_path: Path) -> None:
    node = own / "dev/nvidia-uvm"
    node.unlink(missing_ok=True)
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(235, 0))
    except PermissionError:
        node.touch()
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    config = host_config(own)
    assert any("nvidia-uvm" in text and "510:0" in text for text in prepared(made, config).plan.warnings)
    after = inject_in_process(made, config)
    assert list_device_numbers(after)["/dev/nvidia-uvm"] == (510, 0)
    assert (510, 0) in list_allowed_numbers(after)
    (found,) = [one for one in after["linux"]["devices"] if one["path"] == "/dev/nvidia-uvm"]
    assert found["fileMode"] == 0o666


def test_nodes_that_the_host_lacks_cost_nothing_while_the_module_is_loaded(own: Path, tmp_path: Path) -> None:
    """After boot the nodes do not exist yet."""
    for name in os.listdir(own / "dev"):
        if name.startswith("nvidia") and not (own / "dev" / name).is_dir():
            (own / "dev" / name).unlink()
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    after = inject_in_process(made, host_config(own))
    assert list_device_numbers(after) == {
        "/dev/nvidia1": (195, 1),
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (510, 0),
        "/dev/nvidia-uvm-tools": (510, 1),
    }
    assert not prepared(made, host_config(own)).plan.warnings


def test_a_module_that_is_not_loaded_is_named(own: Path, tmp_path: Path) -> None:
    path = own / "proc/devices"
    path.chmod(0o644)
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "nvidia-uvm" not in line))
    text = refused(make_bundle(tmp_path / "bundle", container_spec(GPU0)), host_config(own))
    assert "/dev/nvidia-uvm is required for compute" in text
    assert "nvidia_uvm is not loaded" in text
    made = make_bundle(tmp_path / "other", container_spec(GPU0, "NVIDIA_DRIVER_CAPABILITIES=utility"))
    assert "/dev/nvidia-uvm" not in list_device_numbers(inject_in_process(made, host_config(own)))


def test_a_group_of_the_nodes_becomes_the_processs(own: Path, tmp_path: Path) -> None:
    path = own / "proc/driver/nvidia/params"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("DeviceFileGID: 0", "DeviceFileGID: 44").replace("438", "432"))
    for name in os.listdir(own / "dev"):
        if not (own / "dev" / name).is_dir():
            (own / "dev" / name).unlink()
    config_json = container_spec(GPU0)
    config_json["process"]["user"]["additionalGids"] = [7]
    after = inject_in_process(make_bundle(tmp_path / "bundle", config_json), host_config(own))
    assert after["process"]["user"]["additionalGids"] == [7, 44]
    assert {(node["gid"], node["fileMode"]) for node in after["linux"]["devices"]} == {(44, 0o660)}


def test_an_excluded_gpu_is_not_used(own: Path, tmp_path: Path) -> None:
    name = sorted(os.listdir(own / "proc/driver/nvidia/gpus"))[0]
    path = own / "proc/driver/nvidia/gpus" / name / "information"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("GPU Excluded:\t No", "GPU Excluded:\t Yes"))
    after = inject_in_process(
        make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=all")), host_config(own)
    )
    assert "/dev/nvidia0" in list_device_numbers(after)
    assert "/dev/nvidia1" not in list_device_numbers(after)


# --- requirements ---------------------------------------------------------------------------------------


def asking(*env: str) -> Spec:
    return container_spec(GPU0, *env)


def test_a_requirement_that_is_met_changes_nothing(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", asking("NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=geforce,driver>=999"))
    plain = make_bundle(tmp_path / "plain", asking())
    config = host_config(host)
    assert list_mount_destinations(inject_in_process(made, config)) == list_mount_destinations(
        inject_in_process(plain, config)
    )


@pytest.mark.parametrize("off", ["NVIDIA_DISABLE_REQUIRE=1", "NVIDIA_DISABLE_REQUIRE=true"])
def test_a_requirement_can_be_switched_off(off: str, tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", asking("NVIDIA_REQUIRE_CUDA=cuda=>12", off))
    inject_in_process(made, host_config(host))
    assert any(
        "not checked" in warning and off in warning for warning in prepared(made, host_config(host)).plan.warnings
    )
    made = make_bundle(tmp_path / "other", asking("NVIDIA_REQUIRE_CUDA=cuda>=99"))
    inject_in_process(made, host_config(host, disable_require=True))
    assert "NVIDIA_REQUIRE_CUDA" in refused(made, host_config(host))


def test_several_requirements_must_all_hold(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", asking("NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_X=driver<500"))
    text = refused(made, host_config(host))
    assert text.startswith("NVIDIA_REQUIRE_X: ")
    assert DRIVER in text


def test_a_requirement_holds_for_a_container_without_a_gpu_of_its_own(tmp_path: Path, host: Path) -> None:
    made = make_bundle(
        tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_REQUIRE_CUDA=cuda>=99")
    )
    assert "this host has cuda 12.4" in refused(made, host_config(host))


def test_a_requirement_is_no_matter_where_nothing_is_asked(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec("CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=99"))
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before


# --- images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["etc/vulkan", "etc/OpenCL", "usr/bin", "lib/firmware", "tmp", "usr/local", "var", "run"]
)
@pytest.mark.parametrize("thing", ["file", "loop"])
def test_an_image_with_something_else_in_a_directorys_place_starts(
    place: str, thing: str, tmp_path: Path, host: Path
) -> None:
    """Optional things never stop a start: what cannot be reached is withheld by name."""
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, ALL, mounts=[PROC]))
    path = made / "rootfs" / place
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        os.rename(path, tmp_path / "gone")
    path.parent.mkdir(parents=True, exist_ok=True)
    if thing == "loop":
        path.symlink_to(path.name)
    else:
        path.write_text("")
    outcome = prepared(made, host_config(host))
    after = inject_in_process(made, host_config(host))
    assert not [name for name in list_mount_destinations(after) if name.startswith(f"/{place}/")]
    assert any("libcuda.so" in name for name in list_mount_destinations(after))
    names = [one.name for one in outcome.plan.withheld]
    if place in ("etc/vulkan", "etc/OpenCL", "usr/bin"):
        assert [name for name in names if name.startswith(f"/{place}/")]


def test_a_link_of_the_image_into_a_volume_of_the_users_gets_no_mount_point_there(tmp_path: Path, host: Path) -> None:
    made = make_bundle(
        tmp_path / "bundle",
        container_spec(
            GPU0, mounts=[{"destination": "/data", "type": "bind", "source": "/srv/data", "options": ["bind"]}]
        ),
    )
    for path in ("usr/bin", "usr/local"):
        if (made / "rootfs" / path).exists():
            os.rename(made / "rootfs" / path, tmp_path / path.replace("/", "-"))
        (made / "rootfs" / path).symlink_to(f"/data/{path}")
    after = inject_in_process(made, host_config(host))
    assert [name for name in list_mount_destinations(after) if name.startswith("/data")] == ["/data"]


def test_rich_leftovers_never_stop_a_start(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, ALL, mounts=[PROC]))
    first = inject_in_process(made, host_config(host))
    for number, path in enumerate(list_mount_destinations(first)[1:]):
        place = made / "rootfs" / path.lstrip("/")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # another leftover is in the way already
        if place.is_symlink() or place.exists():
            continue
        (place.touch, place.mkdir, lambda p=place: p.symlink_to("/nowhere"), lambda p=place: os.mkfifo(p))[number % 4]()
    write_spec(made, container_spec(GPU0, ALL, mounts=[PROC]))
    after = inject_in_process(made, host_config(host))
    assert list_device_numbers(after) == list_device_numbers(first)
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before


def test_what_is_written_below_the_root_belongs_to_the_directory_it_lands_in(tmp_path: Path, host: Path) -> None:
    if os.geteuid() != 0:
        skip_or_fail("only root can give files away")
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0, ALL, mounts=[PROC]))
    rootfs = made / "rootfs"
    before = {str(path) for path in rootfs.rglob("*")}
    for path in (rootfs, *rootfs.rglob("*")):
        os.chown(path, 100000, 100000, follow_symlinks=False)
    inject_in_process(made, host_config(host))
    new = [path for path in rootfs.rglob("*") if str(path) not in before]
    assert new
    for path in new:
        assert (path.lstat().st_uid, path.lstat().st_gid) == (100000, 100000), path


def test_a_musl_image(tmp_path: Path, host: Path) -> None:
    rootfs = tmp_path / "bundle/rootfs"
    for name in ("lib", "usr/lib", "etc"):
        (rootfs / name).mkdir(parents=True)
    (rootfs / "lib/ld-musl-x86_64.so.1").write_bytes(b"\x7fELF")
    inject_in_process(make_bundle(tmp_path / "bundle", container_spec(GPU0)), host_config(host))
    assert not (rootfs / "etc/ld.so.cache").exists()
    assert (rootfs / "etc/ld-musl-x86_64.path").read_text().endswith("/lib\n/usr/local/lib\n/usr/lib\n")


def test_debian_is_made_once(tmp_path: Path) -> None:
    """The helper itself: two bundles do not share an image."""
    make_debian_rootfs(tmp_path / "a")
    assert (tmp_path / "a/lib").is_symlink()


ALLOW_ALL = {"allow": True, "access": "rwm"}


@pytest.mark.parametrize("kind", ["nodes of everything", "right to create nodes", "--device"])
def test_a_privileged_container_is_warned_of_and_nothing_that_it_can_open_is_withheld(
    kind: str, host: Path, tmp_path: Path
) -> None:
    spec = container_spec(GPU0)
    spec["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}, ALLOW_ALL]
    if kind == "--device":
        spec["linux"]["resources"]["devices"][1] = {
            "allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"
        }  # fmt: skip
    if kind == "right to create nodes":
        spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN", "CAP_MKNOD"]}
    else:
        spec["linux"]["devices"] = [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]
    plan = prepared(make_bundle(tmp_path / "bundle", spec), host_config(host)).plan
    (warning,) = plan.warnings
    why = "allows it" if kind == "--device" else "allows every device, as in a privileged container"
    assert warning == (
        f"the container can also open GPU 1 (/dev/nvidia0), which it did not request: linux.resources.devices[1] {why}"
    )
    assert not [item.name for item in plan.withheld if item.name.startswith("/dev/nvidia0")]
    modeset = [item.name for item in plan.withheld if item.name == "/dev/nvidia-modeset"]
    assert bool(modeset) is (kind != "right to create nodes")


def test_no_rule_and_no_node_of_another_gpu_warns_of_nothing(host: Path, tmp_path: Path) -> None:
    spec = container_spec(GPU0)
    spec["process"]["capabilities"] = {"bounding": ["CAP_MKNOD"]}
    spec["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "m"},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
    ]
    plan = prepared(make_bundle(tmp_path / "bundle", spec), host_config(host)).plan
    assert not plan.warnings
    assert [item.name for item in plan.withheld if item.name.startswith("/dev/nvidia0")]


@pytest.mark.parametrize("value", [[], {}, None, "x", 195.0])
def test_device_rules_and_nodes_of_a_wrong_type_are_no_internal_error(value: Any, host: Path, tmp_path: Path) -> None:
    spec = container_spec(GPU0)
    spec["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": value, "minor": 0, "access": "rw"},
        {"allow": True, "type": "c", "major": 195, "minor": value, "access": "rw"},
    ]
    spec["linux"]["devices"] = [{"path": "/dev/x", "type": "c", "major": value, "minor": value}]
    assert prepared(make_bundle(tmp_path / "bundle", spec), host_config(host)).plan.state == "inject"
