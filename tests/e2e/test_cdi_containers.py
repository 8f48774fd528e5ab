"""Another vendor's device by its CDI name, through our runtime and real low-level runtimes: its node opens, its file
and its variable are there, its hook has run, and our own GPU comes beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.cdi.spec import mount_options
from support.e2e import host, machine
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.hook_files import OK, PROBE, SPEC_MAKERS, HookProgram, build_spec_document
from support.e2e.host import InstalledRuntime

KIND = "vendor.com/nic"


@pytest.fixture(scope="module")
def with_file(workspace: Path) -> host.SimulatedHost:
    """A simulated host of its own with a CDI file; the card's node is the zero device under another name."""
    found = host.build_host(workspace / "cdi-host")
    (found.root / "etc/nic").write_text("of the host\n")
    hook = found.root / "hook"
    # It reads the container's state to its end: crun 1.8 fails with "Broken pipe" if a hook has ended before.
    hook.write_text('#!/bin/sh\ncat >/dev/null\necho "$FROM_FILE" >"$1"\n')
    hook.chmod(0o755)
    edits = {
        "env": ["NIC=yes"],
        "deviceNodes": [{"path": "/dev/nic0", "type": "c", "major": 1, "minor": 5, "fileMode": 0o666}],
        "mounts": [{"hostPath": "/etc/nic", "containerPath": "/etc/nic", "options": ["ro", "nosuid", "nodev", "bind"]}],
        "hooks": [
            {
                "hookName": "createRuntime",
                "path": "/hook",
                "args": ["hook", f"{found.root}/hook-has-run"],
                "env": ["FROM_FILE=1", "PATH=/usr/bin:/bin"],
            }
        ],
    }
    (found.root / "etc/cdi").mkdir()
    spec = {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": "n", "containerEdits": edits}]}
    (found.root / "etc/cdi/nic.json").write_text(json.dumps(spec))
    return found


@pytest.fixture(params=[("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")], ids="-".join)
def bare_runtime(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime: InstalledRuntime,
    with_file: host.SimulatedHost, tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BareRuntime]:  # fmt: skip
    low_level, cgroup = request.param
    engine = BareRuntime(low_level, cgroup, "create")
    directory = workspace / f"cdi-{low_level}-{cgroup}"
    directory.mkdir()
    kinds = f'[request]\nenv-kinds = ["{KIND}", "acme.com/gpu"]\n'
    engine.start(EngineHome(directory, image, lambda name: runtime.wrapper(name, with_file.root, extra=kinds)))
    yield engine
    engine.stop()
    machine.remove_tree(directory)


@pytest.mark.parametrize("more", ["", "nvidia.com/gpu=0,"], ids=["alone", "with-a-gpu"])
def test_a_vendors_device_by_name(bare_runtime: BareRuntime, with_file: host.SimulatedHost, more: str) -> None:
    witness = with_file.root / "hook-has-run"
    witness.unlink(missing_ok=True)
    script = (
        'echo "$NIC"; cat /etc/nic; head -c 4 /dev/nic0 >/dev/null && echo opened; '
        "touch /etc/nic 2>/dev/null && echo writable; "
        "ls /dev | grep nvidia | head -n 1"
    )
    done = bare_runtime.run(ContainerRequest(["/bin/sh", "-c", script], [f"NVIDIA_VISIBLE_DEVICES={more}{KIND}=n"]))
    assert done.status in (0, 1), done
    lines = done.stdout.split("\n")
    assert lines[:3] == ["yes", "of the host", "opened"], done
    assert "writable" not in lines
    assert any("nvidia" in line for line in lines) == bool(more)
    assert witness.read_text() == "1\n"


def test_a_name_that_nobody_has_is_told(bare_runtime: BareRuntime) -> None:
    done = bare_runtime.run(ContainerRequest(["/bin/true"], [f"NVIDIA_VISIBLE_DEVICES={KIND}=other"]))
    assert done.status != 0
    assert f"{KIND}=other is unresolvable" in done.text
    assert f"Use {KIND}=n" in done.text


def test_an_images_variable_gets_no_other_vendors_device(bare_runtime: BareRuntime) -> None:
    done = bare_runtime.run(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=site.org/scratch=admin"]))
    assert done.status != 0
    assert 'add "site.org/scratch" to [request] env-kinds' in done.text


@pytest.mark.parametrize("way", SPEC_MAKERS)
def test_a_file_of_a_generator_goes_through_our_resolver_and_its_hooks_through_our_program(
    bare_runtime: BareRuntime, with_file: host.SimulatedHost, runtime: InstalledRuntime, tmp_path: Path, way: str
) -> None:
    """The file as NVIDIA's generator writes it ("theirs"), of a kind that is not planned in memory."""
    program = HookProgram(tmp_path / "program", runtime, with_file)
    spec = build_spec_document(program, way, with_file.root / "dev/nvidia0", kind="acme.com/gpu")
    path = with_file.root / "etc/cdi/acme.json"
    path.write_text(json.dumps(spec))
    path.chmod(0o644)
    try:
        words = [*PROBE, "--node", "/dev/nvidia0", "--node", "/dev/nvidia1"]
        done = bare_runtime.run(ContainerRequest(words, ["NVIDIA_VISIBLE_DEVICES=acme.com/gpu=gpu0"]))
        answer = json.loads(done.check().stdout)
    finally:
        path.unlink()
    assert answer["libraries"] == OK
    assert answer["nodes"]["/dev/nvidia0"] == "ENXIO"
    assert answer["nodes"]["/dev/nvidia1"] != "ENXIO"


@pytest.mark.parametrize(
    ("more", "starts"),
    [
        ({}, False),
        ({"options": ["ro"]}, False),
        ({"type": "bind", "options": ["ro"]}, False),
        ({"type": "none"}, False),
        ({"options": ["bind"]}, True),
        ({"type": "none", "options": ["rbind"]}, True),
        ({"type": "tmpfs"}, True),
    ],
    ids=str,
)
def test_runtimes_make_a_mount_that_says_bind_in_its_options_and_no_other_of_the_hosts(
    bare_runtime: BareRuntime, more: dict[str, object], starts: bool
) -> None:
    """The runtime alone, without ours: what `apply.is_unmade` says of it."""
    bundle = bare_runtime.bundle(ContainerRequest(["/bin/true"]))
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    mount = {"destination": "/made", "source": str(bundle), **more}
    spec["mounts"].append(mount)
    path.write_text(json.dumps(spec))
    done = bare_runtime.start_bundle(bundle)
    assert (done.status == 0) == starts, done.text
    assert mount_options.is_missing_bind_option({"hostPath": str(bundle), "containerPath": "/made", **more}) == (
        not starts
    )
    machine.remove_tree(bundle)
