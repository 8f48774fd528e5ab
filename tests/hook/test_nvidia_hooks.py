"""NVIDIA's hooks in NVIDIA's spelling: names, flags, statuses, and what they leave in the image."""

from __future__ import annotations

import json
import os
import posix
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.formats import ldcache
from gpu_oci_hook.hook import nvidia_hooks
from support import cdi_edits
from support.bundles import IMAGE_LIBRARY_DIR as OWN
from support.bundles import read_spec, snapshot_tree, write_spec
from support.cdi_edits import VERSION, call_hook
from support.fixtures import SharedHost
from support.hook_scenes import COMPAT_DIR, DATACENTRE_HOST, DROP_IN, EGL_PROFILE, LD_CACHE, NvidiaHookScene


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(**DATACENTRE_HOST)


@pytest.fixture
def nvidia_scene(tmp_path: Path, host: Path) -> NvidiaHookScene:
    return NvidiaHookScene(tmp_path, host)


def test_the_chain_of_their_generator_does_what_ldconfig_would(nvidia_scene: NvidiaHookScene) -> None:
    nvidia_scene.nodes = {"/dev/nvidia0": (195, 0)}
    assert nvidia_scene.run_nvidia_hooks() == ""
    own = nvidia_scene.root / OWN[1:]
    links = {path.name: os.readlink(path) for path in own.iterdir() if path.is_symlink()}
    assert links == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        "libnvidia-ptxjitcompiler.so.1": f"libnvidia-ptxjitcompiler.so.{VERSION}",
    }
    assert nvidia_scene.read_ld_cache() == {
        name: f"{OWN}/{name}" for name in (*links, f"libnvidia-glcore.so.{VERSION}")
    }
    # A directory where the loader looks anyway gets no line: it would come before the image's others.
    assert OWN not in (nvidia_scene.root / DROP_IN).read_text().splitlines()
    assert ", 0x1]" in (nvidia_scene.root / EGL_PROFILE).read_text()
    before = snapshot_tree(nvidia_scene.bundle)
    assert nvidia_scene.run_nvidia_hooks() == ""
    assert snapshot_tree(nvidia_scene.bundle) == before


def test_nvidia_ctk_hook_and_our_own_name_are_the_same(nvidia_scene: NvidiaHookScene) -> None:
    ctk = nvidia_scene.bundle.parent / "nvidia-ctk"
    ctk.symlink_to("gpu-oci-hook")
    nvidia_scene.finish_bundle()
    said = json.dumps({"bundle": str(nvidia_scene.bundle)})
    for number, (program, before) in enumerate(
        [(ctk, ["hook"]), (ctk, ["--debug", "hook"]), (nvidia_scene.program, ["hook"]), (nvidia_scene.cdi_hook, ["-d"])]
    ):
        done = call_hook(program, [*before, "create-symlinks", f"--link=there::/opt/link{number}"], said)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert os.readlink(nvidia_scene.root / f"opt/link{number}") == "there"
    done = call_hook(ctk, ["cdi", "list"], "")
    assert done.returncode == 1 and "replaces only its hooks" in done.stderr


def test_links_are_made_as_their_text_says(nvidia_scene: NvidiaHookScene) -> None:
    words = ["--link", "a::/x/b", "--link=a::/x/b", "--link", "/c,d::/x/e,f", "--link", "g::x/h"]
    done = nvidia_scene.run_nvidia_hook("create-symlinks", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: os.readlink(path) for path in (nvidia_scene.root / "x").iterdir()}
    assert found == {"b": "a", "e,f": "/c,d", "h": "g"}


@pytest.mark.parametrize(
    "words",
    [
        ["update-ldcache", "--nope", "1"], ["create-symlinks", "--link"], ["create-symlinks", "--link", "a"],
        ["create-symlinks", "--link", "a::b::c"], ["chmod", "--path", "/x"], ["chmod", "--mode", "9", "--path", "/x"],
        ["chmod", "--mode", "-755"], ["chmod", "--mode", "77777"], ["noop", "--folder", "/x"], ["--nope", "noop"],
    ],
)  # fmt: skip
def test_a_known_hook_with_a_wrong_flag_fails(nvidia_scene: NvidiaHookScene, words: list[str]) -> None:
    done = nvidia_scene.run_nvidia_hook(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("words", [[], ["brand-new-hook", "--x", "y"], ["--brand-new-flag"], ["--debug"]])
def test_an_unknown_hook_is_said_and_passed_over(nvidia_scene: NvidiaHookScene, words: list[str]) -> None:
    before = snapshot_tree(nvidia_scene.bundle)
    done = call_hook(nvidia_scene.cdi_hook, words, "")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    problem = "skipped" if words[:1] == ["brand-new-hook"] else "no hook name was given; nothing was done"
    assert f"{problem}. Known hooks: chmod" in done.stderr
    assert snapshot_tree(nvidia_scene.bundle) == before


def test_version_and_help_are_for_people(nvidia_scene: NvidiaHookScene) -> None:
    from gpu_oci_hook import VERSION

    for words, text in (
        (["--version"], f"gpu-oci-hook version {VERSION}"), (["--help"], "update-ldcache"),
        (["chmod", "-h"], "--mode"),
    ):  # fmt: skip
        done = call_hook(nvidia_scene.cdi_hook, words, "")
        assert done.returncode == 0 and text in done.stdout and done.stderr == ""


def test_compat_without_a_version_reads_no_state(nvidia_scene: NvidiaHookScene) -> None:
    done = call_hook(nvidia_scene.cdi_hook, ["enable-cuda-compat"], "rubbish")
    assert (done.returncode, done.stderr) == (0, "")
    assert call_hook(nvidia_scene.cdi_hook, ["noop"], "rubbish").returncode == 0
    assert call_hook(nvidia_scene.cdi_hook, ["update-ldcache"], "rubbish").returncode == 1


@pytest.mark.parametrize("words", [["noop"], ["enable-cuda-compat"], ["of-tomorrow", "--flag"], []])
def test_a_hook_that_needs_no_state_takes_it_all_the_same(nvidia_scene: NvidiaHookScene, words: list[str]) -> None:
    """crun up to 1.8 fails a start whose hook ends without reading."""
    nvidia_scene.finish_bundle()
    with subprocess.Popen([nvidia_scene.cdi_hook, *words], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdin is not None
        running.stdin.write(b" " * (1 << 20))  # more than a pipe holds; who does not read breaks it
        running.stdin.close()
        assert running.wait(60) == 0


def test_compat_is_believed_from_config_json_alone(tmp_path: Path, host: Path) -> None:
    """What an image has under /etc/ld.so.conf.d, left by a commit or made to deceive, decides nothing."""
    scene = NvidiaHookScene(tmp_path, host)
    (scene.root / COMPAT_DIR).mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.999.1"):
        (scene.root / COMPAT_DIR / name).write_bytes(b"\x7fELF")
    (scene.root / "etc/ld.so.conf.d/00-compat-1.conf").write_text(f"/{COMPAT_DIR}\n")
    scene.finish_bundle()
    config = read_spec(scene.bundle)
    hooks = config["hooks"]["createContainer"]
    config["hooks"]["createContainer"] = [hook for hook in hooks if "enable-cuda-compat" not in hook["args"]]
    write_spec(scene.bundle, config)
    scene.run_nvidia_hooks()
    assert scene.read_ld_cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


def test_a_compat_directory_elsewhere_is_looked_at(tmp_path: Path, host: Path) -> None:
    """On an Orin the image has it under another name; its libraries' names tell no driver's version there."""
    scene = NvidiaHookScene(tmp_path, host)
    other = scene.root / "usr/local/cuda/compat_orin"
    other.mkdir(parents=True)
    (other / "libcuda.so.999.1").write_bytes(b"\x7fELF")
    (other / "libcuda.so.1").write_bytes(b"\x7fELF")
    scene.finish_bundle()
    config = read_spec(scene.bundle)
    args = next(hook["args"] for hook in config["hooks"]["createContainer"] if "enable-cuda-compat" in hook["args"])
    args += ["--cuda-compat-container-root", "/usr/local/cuda/compat_orin"]
    write_spec(scene.bundle, config)
    scene.run_nvidia_hooks()
    assert scene.read_ld_cache()["libcuda.so.1"] == "/usr/local/cuda/compat_orin/libcuda.so.1"
    args[2:3] = ["--host-cuda-version=12.2"]
    write_spec(scene.bundle, config)
    scene.run_nvidia_hooks()
    assert scene.read_ld_cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


@pytest.mark.parametrize(("board_cuda", "wins"), [("12.6", True), ("13.2", False)])
def test_compat_libraries_of_a_board_are_judged_by_their_directory(
    nvidia_scene: NvidiaHookScene, board_cuda: str, wins: bool
) -> None:
    scene = nvidia_scene
    place = scene.root / "usr/local/cuda-13.2/compat_orin"
    place.mkdir(parents=True)
    (scene.root / "usr/local/cuda").symlink_to("cuda-13.2")
    (place / "libcuda.so.1.1").write_bytes(b"\x7fELF")
    (place / "libcuda.so.1").symlink_to("libcuda.so.1.1")
    scene.finish_bundle()
    config = read_spec(scene.bundle)
    args = next(hook["args"] for hook in config["hooks"]["createContainer"] if "enable-cuda-compat" in hook["args"])
    args[2:] = [f"--host-cuda-version={board_cuda}", "--cuda-compat-container-root=/usr/local/cuda/compat_orin"]
    write_spec(scene.bundle, config)
    scene.run_nvidia_hooks()
    expected = "/usr/local/cuda-13.2/compat_orin" if wins else OWN
    assert scene.read_ld_cache()["libcuda.so.1"] == f"{expected}/libcuda.so.1"


def test_the_state_may_be_a_file(nvidia_scene: NvidiaHookScene, tmp_path: Path) -> None:
    (tmp_path / "state").write_text(json.dumps({"bundle": str(nvidia_scene.bundle)}))
    done = nvidia_scene.run_nvidia_hook(
        "create-symlinks", "--container-spec", str(tmp_path / "state"), "--link", "a::/b", said=""
    )
    assert done.returncode == 0 and os.readlink(nvidia_scene.root / "b") == "a"
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "nothing", tmp_path):
        done = nvidia_scene.run_nvidia_hook("create-symlinks", f"--container-spec={path}", "--link", "a::/b", said="")
        assert done.returncode == 1 and done.stderr.count("\n") == 1
    said = json.dumps({"bundle": str(nvidia_scene.bundle)})
    assert (
        nvidia_scene.run_nvidia_hook(
            "create-symlinks", "--container-spec", "-", "--link", "a::/c", said=said
        ).returncode
        == 0
    )


def test_quiet_is_quiet(nvidia_scene: NvidiaHookScene) -> None:
    config = read_spec(nvidia_scene.bundle)
    config["mounts"].append(cdi_edits.build_mount("/x", "/opt"))
    write_spec(nvidia_scene.bundle, config)
    assert (
        "skipped the link /opt/b: /opt lies below"
        in nvidia_scene.run_nvidia_hook("create-symlinks", "--link", "a::/opt/b").stderr
    )
    assert nvidia_scene.run_nvidia_hook("--quiet", "create-symlinks", "--link", "a::/opt/b").stderr == ""


def test_chmod_changes_what_is_in_the_image_and_nothing_else(nvidia_scene: NvidiaHookScene, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    inside = nvidia_scene.root / "opt/inside"
    inside.parent.mkdir()
    inside.touch(mode=0o600)
    (nvidia_scene.root / "opt/out").symlink_to(outside)
    (nvidia_scene.root / "opt/climb").symlink_to("../" * 40 + str(outside)[1:])
    (nvidia_scene.root / "opt/in").symlink_to("/opt/inside")
    config = read_spec(nvidia_scene.bundle)
    config["mounts"].append(cdi_edits.build_mount(str(outside), "/opt/mounted"))
    write_spec(nvidia_scene.bundle, config)
    words = ["chmod", "--mode", "644"]
    for name in ("out", "climb", "in", "missing", "mounted"):
        words += ["--path", f"/opt/{name}"]
    done = nvidia_scene.run_nvidia_hook(*words)
    assert done.returncode == 0
    assert "left the mode of /opt/mounted unchanged" in done.stderr and done.stderr.count("\n") == 1
    assert outside.stat().st_mode & 0o777 == 0o600
    assert inside.stat().st_mode & 0o777 == 0o644


def test_two_files_with_this_hook_do_not_undo_each_other(nvidia_scene: NvidiaHookScene) -> None:
    nvidia_scene.finish_bundle()
    config = read_spec(nvidia_scene.bundle)
    config["hooks"]["createContainer"].append(
        cdi_edits.build_hook(nvidia_scene.cdi_hook, ["update-ldcache", "--folder=/opt/lib", "--folder", "/opt/lib64"])
    )
    config["mounts"].append(
        cdi_edits.build_mount(f"{nvidia_scene.host}{OWN}/libcuda.so.{VERSION}", "/opt/lib/libcuda.so.7")
    )
    write_spec(nvidia_scene.bundle, config)
    nvidia_scene.run_nvidia_hooks()
    lines = (nvidia_scene.root / DROP_IN).read_text().splitlines()
    assert {"/opt/lib", "/opt/lib64", f"{OWN}/vdpau"} <= {*lines}
    assert nvidia_scene.read_ld_cache()["libnvidia-ml.so.1"] == f"{OWN}/libnvidia-ml.so.1"
    before = snapshot_tree(nvidia_scene.root)
    assert nvidia_scene.run_nvidia_hook("update-ldcache", "--folder=/opt/lib", "--folder", "/opt/lib64").stderr == ""
    assert snapshot_tree(nvidia_scene.root) == before


def test_a_soname_is_read_from_the_host_and_never_from_the_image(nvidia_scene: NvidiaHookScene) -> None:
    """What stands at the mount's place below the root is the image's where nothing is mounted, as here."""
    from gpu_oci_hook.formats import elf_builder

    nvidia_scene.finish_bundle()
    lie = nvidia_scene.root / f"{OWN[1:]}/libcuda.so.{VERSION}"
    lie.write_bytes(elf_builder.build_shared_object(soname="libc.so.6"))
    nvidia_scene.run_nvidia_hooks()
    assert "libc.so.6" not in nvidia_scene.read_ld_cache()
    assert nvidia_scene.read_ld_cache()["libcuda.so.1"] == f"{OWN}/libcuda.so.1"


def test_what_is_mounted_is_opened_only_when_it_proved_to_be_a_file(
    nvidia_scene: NvidiaHookScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the descriptor that was looked at: whoever may write to a volume can lay a device under the name meanwhile."""
    source = f"{nvidia_scene.host}{OWN}/libcuda.so.{VERSION}"
    names: list[str] = []
    open_it = posix.open

    def watched(path: str, flags: int, *more: Any, **named: Any) -> int:
        if not flags & os.O_PATH:
            names.append(path)
        return open_it(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr(posix, "open", watched)
    assert nvidia_hooks._read_soname(source) == ("libcuda.so.1", "x86_64")
    assert names and source not in names


def test_what_is_no_library_of_this_machine_is_not_cached(nvidia_scene: NvidiaHookScene, tmp_path: Path) -> None:
    from gpu_oci_hook.formats import elf_builder

    (tmp_path / "arm").write_bytes(elf_builder.build_shared_object(soname="libarm.so.1", arch="aarch64"))
    (tmp_path / "text").write_text("text")
    (tmp_path / "small").write_bytes(elf_builder.build_shared_object(soname="libsmall.so.1", arch="i386"))
    (tmp_path / "odd").write_bytes(elf_builder.build_shared_object(soname="../../x.so"))
    os.mkfifo(tmp_path / "fifo")
    config = read_spec(nvidia_scene.bundle)
    for name in ("arm", "text", "small", "odd", "fifo", "nothing"):
        config["mounts"].append(cdi_edits.build_mount(str(tmp_path / name), f"{OWN}/lib{name}.so.1"))
    write_spec(nvidia_scene.bundle, config)
    nvidia_scene.run_nvidia_hooks()
    entries = ldcache.parse_ld_cache((nvidia_scene.root / LD_CACHE).read_bytes()).entries
    names = {entry.name: entry.flags for entry in entries}
    assert names["libsmall.so.1"] == 0x003
    assert "libodd.so.1" in names  # its SONAME is no name
    assert not {"libarm.so.1", "libtext.so.1", "libfifo.so.1", "libnothing.so.1"} & set(names)
