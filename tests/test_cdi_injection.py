"""CDI names all the way: a host with CDI files, a bundle that asks, and the config.json afterwards; then the same
through the shim as engines call it.
"""

from __future__ import annotations

import copy
import json
import marshal
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi import translate
from gpu_oci_hook.cdi.registry import registry, spec_dirs, staleness
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container import spec_edits
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    PROC,
    Shim,
    Spec,
    container_spec,
    host_config,
    inject_in_process,
    list_allowed_numbers,
    list_device_numbers,
    list_mount_destinations,
    make_bundle,
    read_spec,
    snapshot_tree,
)

DRIVER = "555.42.02"
NIC = "NVIDIA_VISIBLE_DEVICES=vendor.com/nic=n"
NOTE = "cdi.k8s.io/plugin"
FILE: Spec = {
    "cdiVersion": "0.5.0",
    "kind": "vendor.com/nic",
    "containerEdits": {"env": ["NIC=1"]},
    "devices": [
        {
            "name": "n",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/nic0", "type": "c", "major": 60, "minor": 1}],
                "mounts": [{"hostPath": "/etc/nic", "containerPath": "/etc/nic", "options": ["ro", "bind"]}],
            },
        }
    ],
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")

pytestmark = pytest.mark.usefixtures("isolated_state")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Two GPUs, and another vendor's network card with its CDI file."""
    host_tree.build_host(tmp_path / "host", gpus=2, driver=DRIVER)
    (tmp_path / "host/etc/nic").write_text("")
    put(tmp_path / "host", "etc/cdi/nic.json", FILE)
    return tmp_path / "host"


def put(host: Path, path: str, content: Spec | str) -> Path:
    place = host / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content if isinstance(content, str) else json.dumps(content))
    return place


def own_file(version: str, name: str = "0", **more: Any) -> Spec:
    """A file of our own kind for a driver."""
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}"
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
        "containerEdits": {
            "mounts": [{"hostPath": library, "containerPath": library, "options": ["ro", "nosuid", "nodev", "bind"]}],
            **more,
        },
    }


def outcome(made: Path, config: Config) -> Outcome:
    return pipeline.prepare_injection(read_spec(made), config, str(made), state_dir.StateCache())


def refused(made: Path, config: Config) -> str:
    before = snapshot_tree(made)
    with pytest.raises(Fault) as caught:
        inject_in_process(made, config)
    assert snapshot_tree(made) == before, "a refused container was changed"
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- other vendors' devices --------------------------------------------------------------------------


def test_another_vendors_device_alone_brings_its_edits_and_nothing_of_ours(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(NIC, mounts=[PROC]))
    image = snapshot_tree(made / "rootfs")
    after = inject_in_process(made, host_config(host))
    assert list_device_numbers(after) == {"/dev/nic0": (60, 1)}
    assert list_allowed_numbers(after) == [(60, 1)]
    assert after["process"]["env"] == ["PATH=/bin", NIC, "NIC=1"]
    assert after["mounts"] == [
        PROC, {"destination": "/etc/nic", "source": f"{host}/etc/nic", "options": ["ro", "bind"]}
    ]  # fmt: skip
    assert snapshot_tree(made / "rootfs") == image, "another vendor's device needs nothing in the image"


def test_it_needs_no_driver_on_the_host(tmp_path: Path, host: Path) -> None:
    for path in (host / "proc/driver/nvidia/version", host / "proc/devices"):
        path.unlink()
    made = make_bundle(tmp_path / "b", container_spec(NIC))
    assert list_device_numbers(inject_in_process(made, host_config(host))) == {"/dev/nic0": (60, 1)}


@pytest.mark.parametrize("asks", ["env", "mounts", "annotations", "mixed"])
@needs_root
def test_ours_and_another_vendors_go_together(tmp_path: Path, host: Path, asks: str) -> None:
    made: Spec = {
        "env": container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,vendor.com/nic=n", mounts=[PROC]),
        "mounts": container_spec(
            mounts=[
                PROC,
                *(
                    {"destination": f"/var/run/nvidia-container-devices/{name}", "source": "/dev/null", "type": "bind"}
                    for name in ("cdi/vendor.com/nic/n", "cdi/nvidia.com/gpu=0")
                ),
            ]
        ),
        "annotations": container_spec(mounts=[PROC], annotations={NOTE: "vendor.com/nic=n,nvidia.com/gpu=0"}),
        "mixed": container_spec("NVIDIA_VISIBLE_DEVICES=0", mounts=[PROC], annotations={NOTE: "vendor.com/nic=n"}),
    }[asks]
    place = make_bundle(tmp_path / "b", made)
    after = inject_in_process(place, host_config(host))
    nodes = list_device_numbers(after)
    assert set(nodes) == {"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nic0"}
    assert list(nodes)[-1] == "/dev/nic0", "ours come first"
    assert {"/etc/nic", f"/usr/local/nvidia/lib64/libcuda.so.{DRIVER}"} <= set(list_mount_destinations(after))
    before = snapshot_tree(place)
    inject_in_process(place, host_config(host))
    assert snapshot_tree(place) == before, "a second time changes something"


@needs_root
def test_neither_hides_the_others_files(tmp_path: Path, host: Path) -> None:
    """A file that mounts where we have the driver's libraries: these go elsewhere, and stay there."""
    file = copy.deepcopy(FILE)
    file["devices"][0]["containerEdits"]["mounts"][0]["containerPath"] = "/usr/local/nvidia/lib64"
    put(host, "etc/cdi/nic.json", file)
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0,vendor.com/nic=n", mounts=[PROC]))
    after = inject_in_process(made, host_config(host))
    sources = {mount["destination"]: mount["source"] for mount in after["mounts"]}
    assert sources["/usr/local/nvidia/lib64"] == f"{host}/etc/nic"
    (libcuda,) = [place for place in sources if place.endswith(f"/libcuda.so.{DRIVER}")]
    assert not libcuda.startswith("/usr/local/nvidia/")
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before


def test_a_container_that_may_not_ask_starts_without_and_is_told(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(NIC))
    before = snapshot_tree(made)
    config = host_config(host, env="never")
    inject_in_process(made, config)
    assert snapshot_tree(made) == before
    found = outcome(made, config)
    assert found.plan.state == "nothing"
    assert 'env is "never"' in found.plan.warnings[0]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("vendor.com/nic=m", ["vendor.com/nic=m is unresolvable", "/etc/cdi/nic.json", "Use vendor.com/nic=n"]),
        ("vendor.com/nic=m,vendor.com/nic=l", ["vendor.com/nic=m is unresolvable (1 more is not resolved either)"]),
        ("vendor.com/nic=n,other.com/x=y", ["other.com/x=y is unresolvable", "no CDI file defines it"]),
        ("0,other.com/x=y", ["other.com/x=y is unresolvable"]),
    ],
)
@needs_root
def test_a_name_that_cannot_be_resolved_is_one_sentence(tmp_path: Path, host: Path, env: str, words: list[str]) -> None:
    made = make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={env}"))
    text = refused(made, host_config(host))
    assert text.startswith("NVIDIA_VISIBLE_DEVICES=")
    for word in words:
        assert word in text


def test_a_file_that_does_not_fit_is_refused_with_its_name_and_the_command(tmp_path: Path, host: Path) -> None:
    (host / "etc/nic").unlink()
    text = refused(make_bundle(tmp_path / "b", container_spec(NIC)), host_config(host))
    assert text.startswith(f"{host}/etc/cdi/nic.json: vendor.com/nic=n: the CDI file does not fit this host")
    assert "1 missing path: /etc/nic" in text
    assert "the tool that wrote it" in text


def test_a_neighbours_stale_device_harms_nothing_else(tmp_path: Path, host: Path) -> None:
    file = copy.deepcopy(FILE)
    file["devices"].append({"name": "gone", "containerEdits": {"deviceNodes": [{"path": "/dev/gone"}]}})
    put(host, "etc/cdi/nic.json", file)
    assert "/dev/nic0" in list_device_numbers(
        inject_in_process(make_bundle(tmp_path / "b", container_spec(NIC)), host_config(host))
    )


@needs_root
def test_in_a_user_namespace_nodes_are_bound(tmp_path: Path, host: Path) -> None:
    os.mknod(host / "dev/nic0", 0o020666, os.makedev(60, 1))
    linux = {"namespaces": [{"type": "user"}, {"type": "mount"}]}
    after = inject_in_process(make_bundle(tmp_path / "b", container_spec(NIC, linux=linux)), host_config(host))
    assert "devices" not in after["linux"]
    (mount,) = [mount for mount in after["mounts"] if mount["destination"] == "/dev/nic0"]
    assert (mount["type"], mount["source"]) == ("bind", f"{host}/dev/nic0")


# --- our own kinds ------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("name", ["nvidia.com/gpu=0", "nvidia.com/gpu=gpu0", "runtime.nvidia.com/gpu=0"])
def test_our_kind_needs_no_file_and_is_planned_as_the_plain_word(tmp_path: Path, host: Path, name: str) -> None:
    plain = inject_in_process(
        make_bundle(tmp_path / "a", container_spec("NVIDIA_VISIBLE_DEVICES=0")), host_config(host)
    )
    named = inject_in_process(
        make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={name}")), host_config(host)
    )
    plain["process"]["env"] = named["process"]["env"] = []
    assert named == plain


@needs_root
def test_a_stale_file_of_our_kind_is_replaced_by_the_plan_in_memory(tmp_path: Path, host: Path) -> None:
    path = put(host, "etc/cdi/nvidia.yaml", own_file("550.54.14"))
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"))
    found = outcome(made, host_config(host))
    (text,) = [warning for warning in found.plan.warnings if str(path) in warning]
    assert f"written for driver 550.54.14, and the host below {host} runs {DRIVER}, 1 missing path" in text
    assert f"gpu-oci-hook cdi generate --output {path}" in text
    after = inject_in_process(made, host_config(host))
    assert f"/usr/local/nvidia/lib64/libcuda.so.{DRIVER}" in list_mount_destinations(after)
    assert not [place for place in list_mount_destinations(after) if "550.54.14" in place]


def test_a_stale_file_that_has_to_be_used_is_refused(tmp_path: Path, host: Path) -> None:
    """A name of our kind that this machine does not know comes from the file that defines it."""
    path = put(host, "etc/cdi/nvidia.yaml", own_file("550.54.14", "special"))
    text = refused(
        make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=special")), host_config(host)
    )
    assert f"written for driver 550.54.14, and the host below {host} runs {DRIVER}, 1 missing path" in text
    assert f"{path}" in text and f"gpu-oci-hook cdi generate --output {path}" in text


@needs_root
def test_a_name_of_our_kind_that_only_a_file_knows_comes_from_the_file(tmp_path: Path, host: Path) -> None:
    put(host, "etc/cdi/nvidia.yaml", own_file(DRIVER, "special", env=["NVIDIA_VISIBLE_DEVICES=void"]))
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=special"))
    after = inject_in_process(made, host_config(host))
    assert list_device_numbers(after) == {"/dev/nvidia0": (195, 0)}
    assert after["process"]["env"] == ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]
    before = snapshot_tree(made)
    inject_in_process(made, host_config(host))
    assert snapshot_tree(made) == before


@needs_root
def test_a_file_of_our_kind_serves_a_machine_without_a_driver(tmp_path: Path, host: Path) -> None:
    for path in (host / "proc/driver/nvidia").rglob("*"):
        if path.is_file():
            path.unlink()
    put(host, "etc/cdi/nvidia.yaml", own_file(DRIVER, "all"))
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"))
    assert list_device_numbers(inject_in_process(made, host_config(host))) == {"/dev/nvidia0": (195, 0)}


def test_a_name_that_neither_the_machine_nor_a_file_knows_says_what_there_is(tmp_path: Path, host: Path) -> None:
    text = refused(
        make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=7")), host_config(host)
    )
    assert "there is no GPU 7" in text


@needs_root
@pytest.mark.parametrize(
    "name",
    ["GPU-99999999-417b-5351-9f9b-fc184b5f19e7", "gpu-99999999-417b-5351-9f9b-fc184b5f19e7", "7", "gpu7", "0:1",
     "mig0:1", "MIG-99999999-417b-5351-9f9b-fc184b5f19e7", "0000:99:00.0"],
)  # fmt: skip
def test_a_gpu_that_is_gone_is_not_given_as_another_one_by_an_old_file(tmp_path: Path, host: Path, name: str) -> None:
    """The file has the node of the GPU that was there; by now it is another GPU's."""
    put(host, "etc/cdi/nvidia.yaml", own_file(DRIVER, name))
    asked = make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={name}"))
    valid = "or request a whole GPU: 0 to " if name.endswith("0:1") else "This host has"
    assert valid in refused(asked, host_config(host))


def test_one_name_thousands_of_times_costs_as_much_as_once(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(host, "etc/cdi/nvidia.yaml", own_file("550.54.14"))
    looks = 0
    look_at = staleness.find_spec_mismatch

    def counted(*arguments: Any) -> staleness.SpecMismatch:
        nonlocal looks
        looks += 1
        return look_at(*arguments)

    monkeypatch.setattr(staleness, "find_spec_mismatch", counted)
    words = ",".join(["nvidia.com/gpu=0", "nvidia.com/gpu=1"] * 3000)
    found = outcome(make_bundle(tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={words}")), host_config(host))
    assert looks == 1
    assert len([text for text in found.plan.warnings if "550.54.14" in text]) == 1


def test_a_major_of_another_module_is_never_given(tmp_path: Path, host: Path) -> None:
    names = (host / "proc/devices").read_text()
    majors = {line.split()[1]: int(line.split()[0]) for line in names.splitlines() if "nvidia" in line}
    wrong = majors["nvidia-uvm"] + 90
    node = {"path": "/dev/nvidia-uvm", "type": "c", "major": wrong, "minor": 0}
    put(host, "etc/cdi/nvidia.yaml", own_file(DRIVER, "special", deviceNodes=[node]))
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=special"))
    assert f"the CDI file says {wrong}, the kernel says {majors['nvidia-uvm']}" in refused(made, host_config(host))


@needs_root
def test_requirements_hold_for_gpus_that_a_file_of_another_kind_brings(tmp_path: Path, host: Path) -> None:
    """A device plugin's file: the container names no GPU of ours, and its image asks for a newer driver."""
    nodes = [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidiactl"}]
    devices = [{"name": "x", "containerEdits": {"deviceNodes": nodes}}]
    put(host, "etc/cdi/plugin.json", {**FILE, "kind": "k8s.device-plugin.nvidia.com/gpu", "devices": devices})
    name = "NVIDIA_VISIBLE_DEVICES=k8s.device-plugin.nvidia.com/gpu=x"
    for number, constraint in enumerate(("cuda>=99", "brand=geforce", "driver>=999")):
        made = make_bundle(tmp_path / f"b{number}", container_spec(name, f"NVIDIA_REQUIRE_CUDA={constraint}"))
        assert "NVIDIA_REQUIRE_CUDA" in refused(made, host_config(host)), constraint
    met = make_bundle(tmp_path / "met", container_spec(name, "NVIDIA_REQUIRE_CUDA=cuda>=11.0 brand=tesla"))
    assert len(list_device_numbers(inject_in_process(met, host_config(host)))) == 2
    off = container_spec(name, "NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1")
    inject_in_process(make_bundle(tmp_path / "off", off), host_config(host))
    # Another vendor's device has nothing to do with it.
    inject_in_process(
        make_bundle(tmp_path / "nic", container_spec(NIC, "NVIDIA_REQUIRE_CUDA=cuda>=99")), host_config(host)
    )


@needs_root
def test_requirements_hold_for_names_too(tmp_path: Path, host: Path) -> None:
    put(host, "etc/cdi/nvidia.yaml", own_file(DRIVER, "special"))
    for number, name in enumerate(("0", "special")):
        asks = container_spec(f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={name}", "NVIDIA_REQUIRE_CUDA=cuda>=99")
        made = make_bundle(tmp_path / f"b{number}", asks)
        assert "NVIDIA_REQUIRE_CUDA" in refused(made, host_config(host))


@needs_root
def test_mig_devices_by_name(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "host", gpus=1, driver=DRIVER, mig=("2",))
    results = []
    for number, word in enumerate(("0:1", "nvidia.com/gpu=0:1", "nvidia.com/gpu=mig0:1")):
        made = make_bundle(tmp_path / f"b{number}", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"))
        results.append(inject_in_process(made, host_config(tmp_path / "host")))
        results[-1]["process"]["env"] = []
    assert results[0] == results[1] == results[2]
    assert any("nvidia-caps" in path for path in list_device_numbers(results[0]))


# --- who has injected already --------------------------------------------------------------------------

HOOK = {"path": "/usr/local/bin/gpu-oci-hook", "args": ["gpu-oci-hook", "hook", "create-container", "--folder", "/x"]}


@pytest.mark.parametrize(
    ("hook", "done"),
    [
        (HOOK, True),
        ({**HOOK, "args": ["gpu-oci-hook", "hook", "update-ldcache"]}, False),
        ({**HOOK, "args": ["gpu-oci-hook", "prestart"]}, False),
        ({**HOOK, "path": "/usr/bin/other"}, False),
        ({"path": "/usr/bin/nvidia-cdi-hook"}, True),
    ],
)
@needs_root
def test_a_container_that_an_engine_has_given_our_file_is_done(
    tmp_path: Path, host: Path, hook: Spec, done: bool
) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0", hooks={"createContainer": [hook]}))
    assert (outcome(made, host_config(host)).plan.state == "done") == done


@needs_root
def test_a_done_container_gets_another_vendors_device_besides(tmp_path: Path, host: Path) -> None:
    made = make_bundle(
        tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0,vendor.com/nic=n", hooks={"createContainer": [HOOK]})
    )
    assert list_device_numbers(inject_in_process(made, host_config(host))) == {"/dev/nic0": (60, 1)}


@needs_root
def test_an_annotation_that_the_engine_has_resolved_is_not_resolved_again(tmp_path: Path, host: Path) -> None:
    """As containerd leaves it where the runtime is told of it, too. The file has neither a hook nor void."""
    put(host, "etc/cdi/nvidia.json", own_file(DRIVER))
    notes = {NOTE: "nvidia.com/gpu=0"}
    config = host_config(host)
    engines = container_spec(mounts=[PROC], annotations=notes)
    found = registry.Registry(Host(str(host)), config.spec_dirs, state_dir.StateCache())
    spec_edits.apply_to_spec(
        engines,
        translate.translate_cdi_edits(
            found.resolve_devices(["nvidia.com/gpu=0"]), engines, Host(str(host)), process_in_user_namespace=False
        ),
    )
    made = make_bundle(tmp_path / "b", engines)
    before = snapshot_tree(made)
    assert outcome(made, config).plan.state == "done"
    inject_in_process(made, config)
    assert snapshot_tree(made) == before
    # Without the edits the annotation is for us.
    unresolved = make_bundle(tmp_path / "c", container_spec(mounts=[PROC], annotations=notes))
    assert f"/usr/local/nvidia/lib64/libcuda.so.{DRIVER}" in list_mount_destinations(
        inject_in_process(unresolved, config)
    )
    # With a part of them, too: an engine makes all or none.
    engines["mounts"] = [mount for mount in engines["mounts"] if "libcuda" not in mount["destination"]]
    partly = make_bundle(tmp_path / "d", engines)
    assert f"/usr/local/nvidia/lib64/libcuda.so.{DRIVER}" in list_mount_destinations(inject_in_process(partly, config))


def test_what_the_engine_has_resolved_of_another_vendors_stays_as_it_is(tmp_path: Path, host: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec(mounts=[PROC], annotations={NOTE: "vendor.com/nic=n"}))
    after = inject_in_process(made, host_config(host))
    before = snapshot_tree(made)
    assert inject_in_process(made, host_config(host)) == after
    assert snapshot_tree(made) == before


# --- the shim ------------------------------------------------------------------------------------------


@pytest.fixture
def shim(tmp_path: Path, host: Path) -> Shim:
    return Shim(tmp_path / "shim", host)


@pytest.mark.parametrize("asks", ["env", "mount", "annotation"])
def test_the_shim_gives_what_is_asked_for_by_name(tmp_path: Path, shim: Shim, asks: str) -> None:
    null = {"destination": "/run/nvidia-container-devices/cdi/vendor.com/nic/n", "source": "/dev/null", "type": "bind"}
    made = make_bundle(
        tmp_path / "b",
        {
            "env": container_spec(NIC),
            "mount": container_spec(mounts=[null]),
            "annotation": container_spec(annotations={NOTE: "vendor.com/nic=n"}),
        }[asks],
    )
    done = shim.create(made)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list_device_numbers(shim.spec()) == {"/dev/nic0": (60, 1)}


def test_the_shim_looks_for_the_configured_annotations_alone(tmp_path: Path, host: Path) -> None:
    shim = Shim(tmp_path / "other", host, '[cdi]\nannotation-prefixes = ["example.org/"]\n')
    for key, counts in (("example.org/x", True), (NOTE, False)):
        made = make_bundle(tmp_path / key.partition("/")[0], container_spec(annotations={key: "vendor.com/nic=n"}))
        before = snapshot_tree(made)
        assert shim.create(made).returncode == 0
        assert ("devices" in shim.spec()["linux"]) == counts
        assert (snapshot_tree(made) == before) == (not counts)
    # The configuration changes: so does what is looked for.
    shim.config.write_text(shim.config.read_text().replace("example.org/", "cdi.k8s.io/"))
    assert (
        shim.create(make_bundle(tmp_path / "again", container_spec(annotations={NOTE: "vendor.com/nic=n"}))).returncode
        == 0
    )
    assert "devices" in shim.spec()["linux"]


def test_a_container_of_a_configuration_that_cannot_be_read_is_refused_if_it_asks_by_name(
    tmp_path: Path, shim: Shim
) -> None:
    shim.config.write_text("[cdi\n")
    shim.env["PATH"] = f"{tmp_path}/bin:/usr/bin:/bin"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/runc").write_text(shim.stub.read_text())
    (tmp_path / "bin/runc").chmod(0o755)
    assert shim.create(make_bundle(tmp_path / "a", container_spec())).returncode == 0
    for name, made in (("b", container_spec(NIC)), ("c", container_spec(annotations={NOTE: "vendor.com/nic=n"}))):
        done = shim.create(make_bundle(tmp_path / name, made))
        assert done.returncode == 1
        assert str(shim.config) in done.stderr


def test_the_reason_reaches_the_engine(tmp_path: Path, shim: Shim) -> None:
    log = tmp_path / "log.json"
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=vendor.com/nic=x"))
    done = shim.create(made, "--log", str(log), "--log-format", "json")
    assert done.returncode == 1
    message = json.loads(log.read_text())["msg"]
    assert "vendor.com/nic=x is unresolvable" in message and message in done.stderr
    for text in ("no such file or directory", "executable file not found", "Traceback"):
        assert text not in message


@pytest.mark.parametrize("command", ["restore", "checkpoint", "start"])
def test_a_restored_bundles_request_is_ignored(tmp_path: Path, shim: Shim, command: str) -> None:
    """What a checkpoint's metadata ask for is nobody's word of today (CVE-2026-53492)."""
    made = make_bundle(tmp_path / "b", container_spec(NIC, annotations={NOTE: "nvidia.com/gpu=all"}))
    before = snapshot_tree(made)
    done = subprocess.run(
        [shim.path, command, "--bundle", made, "id"], env=shim.env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert snapshot_tree(made) == before


def test_a_warm_start_reads_no_cdi_file(tmp_path: Path, shim: Shim, host: Path) -> None:
    time.sleep(0.1)  # a file of this very moment is not cached
    assert shim.create(make_bundle(tmp_path / "a", container_spec(NIC))).returncode == 0
    file = host / "etc/cdi/nic.json"
    status = file.stat()
    cached_files = sorted((tmp_path / "shim/state").glob("cdi-*"))
    assert len(cached_files) == 1
    # The same size and times: a start that read it would stumble. (The inode's ctime gives it away, so it is put back
    # by hand in the cache: only a test can.)
    data = cached_files[0].read_bytes()
    file.write_text("x" * status.st_size)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    key, *rest = marshal.loads(data[16:])
    after = spec_dirs.read_spec_dir_signatures(Host(str(host)), ("/etc/cdi", "/var/run/cdi"))
    fresh = marshal.dumps(((*key[:-1], after), *rest))
    cached_files[0].write_bytes(state_dir._make_checksum(fresh) + fresh)
    assert shim.create(make_bundle(tmp_path / "b", container_spec(NIC))).returncode == 0
    assert list_device_numbers(shim.spec()) == {"/dev/nic0": (60, 1)}


def test_thousands_of_names_in_the_variable_cost_bounded_time(tmp_path: Path, host: Path) -> None:
    words = ",".join(f"v/c={number}" for number in range(12000))
    made = make_bundle(
        tmp_path / "b", container_spec(f"NVIDIA_VISIBLE_DEVICES={words[: 120 << 10].rpartition(',')[0]}")
    )
    begin = time.monotonic()
    assert "more are not resolved either" in refused(made, host_config(host))
    assert time.monotonic() - begin < 5


# --- hostile directories ---------------------------------------------------------------------------------


def test_odd_things_in_a_spec_directory_do_not_keep_a_container_from_its_device(
    tmp_path: Path, shim: Shim, host: Path
) -> None:
    directory = host / "etc/cdi"
    os.mkfifo(directory / "a.json")
    (directory / "b.json").symlink_to("b.json")
    (directory / "c.yaml").symlink_to("/proc/kmsg")
    (directory / "d.json").mkdir()
    with (directory / "e.json").open("wb") as file:
        file.truncate(1 << 30)
    (directory / "f.yaml").write_bytes(b"\xff\xfe\0" * 100)
    (directory / "g.yaml").write_text("a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n" + "c: [*b,*b,*b,*b,*b,*b]\n" * 99)
    begin = time.monotonic()
    done = shim.create(make_bundle(tmp_path / "b", container_spec(NIC)))
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begin < 20
    assert list_device_numbers(shim.spec()) == {"/dev/nic0": (60, 1)}


def test_a_directory_with_very_many_files_costs_bounded_time(tmp_path: Path, host: Path) -> None:
    directory = host / "run/cdi"  # /var/run is a link to /run, which would leave the host
    directory.mkdir()
    text = json.dumps({**FILE, "kind": "other.com/x"}).replace('"n"', '"{}"')
    for number in range(1000):
        (directory / f"{number}.json").write_text(text.replace("{}", f"d{number}"))
    for number in range(20000):
        (directory / f"{number}.txt").touch()
    begin = time.monotonic()
    inject_in_process(make_bundle(tmp_path / "a", container_spec(NIC)), host_config(host))
    cold = time.monotonic() - begin
    time.sleep(0.1)
    inject_in_process(make_bundle(tmp_path / "b", container_spec(NIC)), host_config(host))
    begin = time.monotonic()
    inject_in_process(make_bundle(tmp_path / "c", container_spec(NIC)), host_config(host))
    warm = time.monotonic() - begin
    assert warm < cold < 60  # the files are looked at, but not read again
