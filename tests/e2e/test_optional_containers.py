"""IMEX channels, features, MPS and added files in real containers: what was asked for opens, its neighbour does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.simulate import host_tree
from support.e2e import engines, machine
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.host import InstalledRuntime
from support.e2e.requirements import require_programs

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
GPU = "NVIDIA_VISIBLE_DEVICES=0"
CONFIG = """
[inject]
mps-pipe-directory = "/srv/mps/pipe"
mps-shm = "/srv/mps/shm"
[[inject.extra]]
path = "/opt/site.conf"
container = "/etc/site/site.conf"
"""


@pytest.fixture(scope="module")
def host(workspace: Path) -> Path:
    """A host with everything beside its GPU."""
    root = workspace / "beside"
    host_tree.build_host(root, imex=3, features=("gdrcopy", "gds"))
    for name in ("pipe", "shm"):
        (root / "srv/mps" / name).mkdir(parents=True)
        (root / "srv/mps" / name / f"{name}-of-the-host").write_text(name)
    (root / "opt").mkdir(exist_ok=True)
    (root / "opt/site.conf").write_text("of the site")
    return root


@pytest.fixture(scope="module", params=[("runc", "v1"), ("runc", "v2"), ("crun", "v1")], ids="-".join)
def bare_runtime(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    image: Path,
    runtime: InstalledRuntime,
    host: Path,
) -> Iterator[BareRuntime]:
    low_level, cgroup = request.param
    require_programs("runc", low_level)
    bare_runtime = BareRuntime(low_level, cgroup, "run")
    place = tmp_path_factory.mktemp("beside")
    bare_runtime.start(
        engines.EngineHome(place, image, lambda name: runtime.wrapper(name, host, extra=CONFIG, name="beside"))
    )
    yield bare_runtime
    bare_runtime.stop()
    machine.remove_tree(place)


def test_a_container_opens_its_own_channel_and_no_other(bare_runtime: BareRuntime) -> None:
    words = ["/probe"]
    for number in range(3):
        words += ["--node", f"{CHANNEL}{number}", "--make", f"234:{number}"]
    answer = json.loads(bare_runtime.run(ContainerRequest(words, [GPU, "NVIDIA_IMEX_CHANNELS=1"])).check().stdout)
    assert answer["nodes"] == {f"{CHANNEL}0": "ENOENT", f"{CHANNEL}1": "ENXIO", f"{CHANNEL}2": "ENOENT"}
    assert answer["made"] == {"234:0": "EPERM", "234:1": "ENXIO", "234:2": "EPERM"}


def test_a_feature_opens_for_who_asks_and_for_nobody_else(bare_runtime: BareRuntime) -> None:
    words = ["/probe", "--node", "/dev/gdrdrv", "--make", "508:0"]
    for env, node, made in (([GPU], "ENOENT", "EPERM"), ([GPU, "NVIDIA_GDRCOPY=enabled"], "ENXIO", "ENXIO")):
        answer = json.loads(bare_runtime.run(ContainerRequest(words, env)).check().stdout)
        assert (answer["nodes"]["/dev/gdrdrv"], answer["made"]["508:0"]) == (node, made)


def test_what_is_not_on_the_host_is_one_line_for_the_engine(bare_runtime: BareRuntime) -> None:
    for word, said in (
        ("NVIDIA_IMEX_CHANNELS=7", "Channels that exist: 0 to 2"),
        ("NVIDIA_MOFED=enabled", "gdrcopy (/dev/"),
    ):
        done = bare_runtime.run(ContainerRequest(["/probe"], [GPU, word]))
        assert done.status != 0 and said in done.text and "Traceback" not in done.text


def test_directories_and_files_are_there_and_udevs_data_cannot_be_written(bare_runtime: BareRuntime) -> None:
    script = (
        "cat /tmp/nvidia-mps/pipe-of-the-host /dev/shm/shm-of-the-host /etc/site/site.conf; echo; "
        "echo x > /tmp/nvidia-mps/new && echo x > /dev/shm/new && echo written; "
        "ls /run/udev/data; echo x > /run/udev/new || echo read-only"
    )
    done = bare_runtime.run(ContainerRequest(["/bin/sh", "-c", script], [GPU, "NVIDIA_GDS=enabled"])).check()
    assert done.stdout.split("\n")[:4] == ["pipeshmof the site", "written", "b259:0", "read-only"]


def test_a_management_container_needs_the_capability(bare_runtime: BareRuntime) -> None:
    done = bare_runtime.run(ContainerRequest(["/probe"], ["NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all"]))
    assert done.status != 0 and "lacks CAP_SYS_ADMIN" in done.text
