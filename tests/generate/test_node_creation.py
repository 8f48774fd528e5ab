"""Missing device nodes of loaded modules: nvidia-modprobe creates them before a CDI file is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import kernel_modules
from gpu_oci_hook.simulate import host_tree
from support.bundles import container_spec, host_config, inject_in_process, make_bundle
from support.generated_specs import DRIVER_VERSION, build_host_spec, needs_device_nodes, plan_host_spec

pytestmark = [needs_device_nodes, pytest.mark.usefixtures("isolated_state")]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A host with two GPUs."""
    host_tree.build_host(tmp_path / "own", gpus=2, driver=DRIVER_VERSION)
    return tmp_path / "own"


def install_modprobe(host: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-modprobe that creates the nodes of the simulated host; returns the file with its calls."""
    monkeypatch.setattr(kernel_modules, "is_process_in_user_namespace", lambda **_: False)
    calls = host.parent / "calls"
    program = host / "usr/bin/nvidia-modprobe"
    program.parent.chmod(0o755)
    program.unlink(missing_ok=True)
    program.write_text(
        f"#!/bin/sh\necho $* >>{calls}\ncd {host}/dev\nmake() {{ rm -f $1; mknod -m 666 $1 c $2 $3; }}\n"
        'for word in "$@"; do case $word in\n'
        "-u) make nvidia-uvm 510 0; make nvidia-uvm-tools 510 1 ;;\n"
        "-m) make nvidia-modeset 195 254 ;;\n"
        "-c=255) make nvidiactl 195 255 ;;\n"
        "-c=[1-9]) make nvidia${word#-c=} 195 ${word#-c=} ;;\n"
        "-c=0) [ $# = 2 ] || make nvidia0 195 0 ;;\nesac; done\n"
    )
    program.chmod(0o755)
    return calls


def test_the_nodes_of_loaded_modules_are_created_as_after_a_boot(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_host_spec(own).data
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        (own / "dev" / name).unlink()
    calls = install_modprobe(own, monkeypatch)
    assert build_host_spec(own, host_config(own, load_modules=True)).data == before
    assert calls.read_text() == "-c=255 -c=1 -c=0\n-u -c=0\n-m\n"
    assert build_host_spec(own, host_config(own, load_modules=True)).data == before
    assert len(calls.read_text().splitlines()) == 3, "a host with its nodes runs nothing"


def test_a_node_of_an_earlier_boot_is_created_again(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_host_spec(own).data
    (own / "dev/nvidia-uvm").unlink()
    os.mknod(own / "dev/nvidia-uvm", 0o666 | stat.S_IFCHR, os.makedev(509, 0))
    calls = install_modprobe(own, monkeypatch)
    assert build_host_spec(own, host_config(own, load_modules=True)).data == before
    assert calls.read_text() == "-u -c=0\n"


def test_no_node_is_created_where_the_configuration_forbids_it_or_none_is_needed(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install_modprobe(own, monkeypatch)
    (own / "dev/nvidia-uvm").unlink()
    with pytest.raises(Fault, match="/dev/nvidia-uvm is required for compute"):
        plan_host_spec(own)
    build_host_spec(own, host_config(own, load_modules=True), capabilities=("utility",))
    assert not calls.exists()


def test_a_node_that_nvidia_modprobe_cannot_create_is_refused_with_its_words(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_modprobe(own, monkeypatch)
    program = own / "usr/bin/nvidia-modprobe"
    program.write_text("#!/bin/sh\necho 'no permission' >&2\nexit 1\n")
    (own / "dev/nvidia-uvm").unlink()
    with pytest.raises(Fault, match=f"{program} could not create /dev/nvidia-uvm: no permission"):
        plan_host_spec(own, host_config(own, load_modules=True))


def test_the_shim_creates_the_nodes_too(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "dev/nvidia-uvm").unlink()
    calls = install_modprobe(own, monkeypatch)
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=0"))
    inject_in_process(made, host_config(own, load_modules=True))
    assert calls.read_text() == "-u -c=0\n" and (own / "dev/nvidia-uvm").exists()
