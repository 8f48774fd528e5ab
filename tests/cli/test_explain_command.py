"""`explain`, `apply`, `list` and `simulate` on a simulated host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cli import explain_command
from gpu_oci_hook.config import load
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.model import outcome
from gpu_oci_hook.simulate import host_tree
from support.command_line import Command, DebianBundle, read_json
from support.fixtures import SharedHost


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2, driver="550.163.01")


@pytest.fixture(autouse=True)
def default_config(tmp_path: Path, isolated_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is the one in its usual place, where nobody has written any."""
    monkeypatch.delenv("GPU_OCI_HOOK_CONFIG")
    (tmp_path / "config.toml").unlink()
    monkeypatch.setattr(load, "DEFAULT_PATH", str(tmp_path / "config.toml"))


@pytest.fixture
def bundle(tmp_path: Path) -> DebianBundle:
    return DebianBundle(tmp_path / "bundle")


# --- explain ---------------------------------------------------------------------------------------


def test_explain_gives_every_edit_and_every_withheld_thing_a_reason(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--format", "json")
    assert answer.status == 0
    document = read_json(answer, "explain")
    assert document["state"] == "inject"
    assert document["driver"] == "550.163.01"
    assert document["request"]["devices"] == [{"word": "0", "origin": "NVIDIA_VISIBLE_DEVICES=0 (process.env[1])"}]
    assert [gpu["given"] for gpu in document["gpus"]] == [True, False]
    kinds = {edit["kind"] for edit in document["edits"]}
    assert {"device", "rule", "mount", "link", "file"} <= kinds
    assert all(edit["reason"].strip() and edit["text"].strip() for edit in document["edits"])
    withheld = {one["name"]: one["reason"] for one in document["withheld"]}
    assert withheld["libnvidia-encode.so.1"] == "needs capability video"
    minor = document["gpus"][1]["minor"]
    assert any(
        (name.startswith(f"/dev/nvidia{minor} ") and "not requested" in why) or "not asked" in why
        for name, why in withheld.items()
    )


def test_explain_as_text_says_the_same(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility")
    answer = command("explain", "-v", "-b", bundle.path, "--root", host)
    assert answer.status == 0 and answer.err == ""
    assert "request       NVIDIA_VISIBLE_DEVICES=all (process.env[1])\n" in answer.out
    assert "the container gets the driver and 2 of 2 GPUs\n" in answer.out
    assert "capabilities  utility (NVIDIA_DRIVER_CAPABILITIES=utility)\n" in answer.out
    goes_in, withheld = answer.out.split("\nwithheld\n")
    assert "requested by" not in goes_in
    assert "libnvidia-ml.so.1" in goes_in and "libcuda.so.1" not in goes_in
    assert "  needs capability compute:\n" in withheld and "    library   libcuda.so.1\n" in withheld


@pytest.mark.parametrize("form", ["text", "json", "diff"])
def test_explain_changes_nothing(
    command: Command, host: Path, bundle: DebianBundle, isolated_state: Path, form: str
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    before = bundle.tree()
    assert command("explain", "--bundle", bundle.path, "--root", host, "--format", form).status == 0
    assert bundle.tree() == before
    assert not isolated_state.exists()


def test_explain_as_a_diff_is_what_apply_does(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=1")
    before = json.dumps(json.loads((bundle.path / "config.json").read_text()), indent=2).split("\n")
    diff = command("explain", "--bundle", bundle.path, "--root", host, "--format", "diff").out.split("\n")
    assert diff[0].startswith("--- a/") and diff[0].endswith("config.json")
    assert any(line.startswith("# link /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> ") for line in diff)
    command("apply", "--bundle", bundle.path, "--root", host)
    after = json.dumps(json.loads((bundle.path / "config.json").read_text()), indent=2).split("\n")
    changes = [line for line in diff[2:] if line[:1] in ("+", "-")]
    added = [line[1:] for line in changes if line[0] == "+"]
    removed = [line[1:] for line in changes if line[0] == "-"]
    assert len(after) == len(before) + len(added) - len(removed)
    assert set(added) <= set(after) and set(removed) <= set(before)


def test_a_diff_shows_no_value_of_a_variable_that_is_not_ours(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    secrets = ("AWS_SECRET_ACCESS_KEY=hunter2", "NVIDIA_API_KEY=hunter2=hunter2", "hunter2")
    bundle.request("CUDA_VERSION=12.4", *secrets, "NVIDIA_VISIBLE_DEVICES=0", "DB_PASSWORD=hunter2")
    spec = json.loads((bundle.path / "config.json").read_text())
    spec["hooks"] = {"prestart": [{"path": "/bin/x", "env": ["VAULT_TOKEN=hunter2"]}]}
    spec["mounts"].append({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"})
    spec["process"]["env"].append("LD_LIBRARY_PATH=/opt/lib")
    (bundle.path / "config.json").write_text(json.dumps(spec))
    (bundle.path / "rootfs/etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache9.9")  # so that LD_LIBRARY_PATH is set
    diff = command("explain", "--bundle", bundle.path, "--root", host, "--format", "diff").out
    assert "hunter2" not in diff
    assert '"DB_PASSWORD=…"' in diff
    assert "NVIDIA_VISIBLE_DEVICES=0" in diff and "/opt/lib" in diff


def test_explain_as_text_says_each_thing_once_and_warnings_first(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    (bundle.path / "rootfs/usr/bin/nvidia-smi").touch()
    bundle.request("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=colour=red", "NVIDIA_REQUIRE_Y=cuda>=12 shape=round")
    lines = command("explain", "-b", bundle.path, "--root", host).out.split("\n")
    assert "requirement   NVIDIA_REQUIRE_X: colour=red (not checked: it names no known property)" in lines
    assert "requirement   NVIDIA_REQUIRE_Y: cuda>=12 shape=round (met, except for unknown properties)" in lines
    titles = ["  devices", "  library directory", "  libraries", "  programs and other files"]
    order = ["warnings", "GPUs", "injected", *titles, "  generated files", "  links", "withheld"]
    assert [lines.index(title) for title in order] == sorted(lines.index(title) for title in order)
    assert "      /dev/nvidia1           c 195:1 rw" in lines
    assert f"  default source: the same path below {host}" in lines
    assert "    capability compute, from /usr/lib/x86_64-linux-gnu:" in lines
    assert "      /usr/bin/nvidia-smi" in lines
    assert "      /var/run/nvidia-persistenced/socket <- /run/nvidia-persistenced/socket (nosuid" in "\n".join(lines)
    assert "      libcuda.so.550.163.01" in lines
    assert sum("ro,nosuid,nodev,rbind,rprivate" in line for line in lines) == 1
    assert not [line for line in lines if "lets the container open" in line]


def test_explain_takes_a_config_json_for_its_bundle(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    directory, file = (
        command("explain", "-b", path, "--root", host).out for path in (bundle.path, bundle.path / "config.json")
    )
    assert directory == file and f"bundle        {bundle.path}\n" in file
    assert command("apply", "-b", bundle.path / "config.json", "--root", host).status == 0
    assert command("apply", "-b", bundle.path, "--root", host).out == "nothing to do\n"


def test_explain_of_a_running_bundle_takes_no_mount_point_for_a_leftover_and_repeats_nothing_that_is_done(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    command("apply", "-b", bundle.path, "--root", host)
    for mount in json.loads((bundle.path / "config.json").read_text())["mounts"]:
        place = bundle.path / "rootfs" / mount["destination"].lstrip("/")
        if mount["destination"].startswith("/usr/bin/"):
            place.touch()  # as runc does
    answer = command("explain", "-b", bundle.path, "--root", host)
    assert answer.status == 0 and "probably committed" not in answer.out
    assert command("explain", "-b", bundle.path, "--root", host, "--format", "diff").out == ""


def test_explain_knows_a_variable_whose_name_is_nearly_right(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request(
        "NVIDIA_VISIBLE_DEVICE=0", "NVIDIA_VERSION=1", "NVIDIA_GDS=disabled", "NVIDIA_DRIVER_CAPABILITES=all"
    )
    answer = command("explain", "-b", bundle.path, "--root", host)
    assert "NVIDIA_VISIBLE_DEVICE has no effect: did you mean NVIDIA_VISIBLE_DEVICES?" in answer.out
    assert "NVIDIA_DRIVER_CAPABILITES has no effect: did you mean NVIDIA_DRIVER_CAPABILITIES?" in answer.out
    assert answer.out.count("has no effect") == 2


def test_explain_of_a_container_that_asks_for_nothing_says_so(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=void")
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--format", "json")
    document = read_json(answer, "explain")
    assert (answer.status, document["state"], document["edits"]) == (0, "nothing", [])
    assert "gets nothing" in command("explain", "--bundle", bundle.path, "--root", host).out


def test_explain_says_who_may_not_ask(command: Command, host: Path, bundle: DebianBundle, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("request.env = 'privileged'")
    file.chmod(0o600)
    bundle.request("NVIDIA_VISIBLE_DEVICES=all")
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--config", file, "--format", "json")
    document = read_json(answer, "explain")
    assert document["state"] == "nothing" and document["config"] == str(file)
    assert "CAP_SYS_ADMIN" in document["withheld"][0]["reason"]
    assert "starts without a GPU" in document["warnings"][0]


@pytest.mark.parametrize(
    ("env", "words", "understood"),
    [
        ("NVIDIA_VISIBLE_DEVICES=9", "there is no GPU 9", True),
        ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gds=a", "no CDI file defines it", True),
        ("NVIDIA_VISIBLE_DEVICES=vendor.com/dev=a", "a device of another vendor", False),
        ("NVIDIA_VISIBLE_DEVICES=none,0", "mixes", False),
    ],
)
def test_explain_of_a_container_that_would_not_start_gives_the_engines_reason(
    command: Command, host: Path, bundle: DebianBundle, env: str, words: str, understood: bool
) -> None:
    bundle.request(env)
    answer = command("explain", "--bundle", bundle.path, "--root", host)
    assert answer.status == 1 and answer.out == ""
    assert words in answer.err and answer.err.count("\n") == 1
    answer = command("explain", "--bundle", bundle.path, "--root", host, "--format", "json")
    assert answer.status == 1
    document = read_json(answer, "explain")
    assert document["state"] == "refused" and words in document["reason"]
    assert (document["request"] is not None) is understood


def test_explain_warns_about_driver_files_left_in_an_image(command: Command, host: Path, bundle: DebianBundle) -> None:
    for name in ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "usr/bin/nvidia-smi"):
        (bundle.path / "rootfs" / name).touch()
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    document = read_json(command("explain", "--bundle", bundle.path, "--root", host, "--format", "json"), "explain")
    assert any("probably committed" in sentence for sentence in document["warnings"]), document["warnings"]


def test_explain_never_loads_a_kernel_module(
    command: Command, host: Path, bundle: DebianBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    real = pipeline.prepare_injection

    def prepare(spec: Any, config: Any, *rest: Any) -> outcome.Outcome:
        seen.append(config.load_modules)
        return real(spec, config, *rest)

    monkeypatch.setattr(explain_command, "prepare_injection", prepare)
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    command("explain", "--bundle", bundle.path, "--root", host)
    assert seen == [False]


def test_a_directory_without_config_json_is_a_sentence(command: Command, tmp_path: Path) -> None:
    for name in ("explain", "apply"):
        answer = command(name, "--bundle", tmp_path)
        assert answer.status == 1
        assert (
            answer.err == f"gpu-oci-hook: {tmp_path}: there is no config.json in it. Name a bundle with --bundle DIR\n"
        )
        answer = command(name, "--bundle", tmp_path / "none")
        assert (answer.status, answer.err) == (
            1,
            f"gpu-oci-hook: {tmp_path}/none: there is no such directory. Name a bundle with --bundle DIR\n",
        )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"process": {"env": 3}, "root": 1}'])
def test_a_broken_config_json_is_never_a_traceback(
    command: Command, host: Path, bundle: DebianBundle, content: bytes
) -> None:
    (bundle.path / "config.json").write_bytes(content)
    for name in ("explain", "apply"):
        answer = command(name, "--bundle", bundle.path, "--root", host)
        assert "internal error" not in answer.err
        assert (bundle.path / "config.json").read_bytes() == content


def test_a_host_root_that_is_not_there_is_a_sentence(command: Command, bundle: DebianBundle, tmp_path: Path) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    answer = command("explain", "--bundle", bundle.path, "--root", tmp_path / "none")
    assert (answer.status, answer.err) == (
        1,
        f"gpu-oci-hook: --root {tmp_path}/none: no such directory. Name a host built with gpu-oci-hook simulate\n",
    )
    answer = command("list", "--config", tmp_path / "none.toml")
    assert (answer.status, answer.err) == (1, f"gpu-oci-hook: --config {tmp_path}/none.toml: no such file\n")


def test_a_config_file_that_is_named_must_be_there(
    command: Command, bundle: DebianBundle, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", f"{tmp_path}/typo.toml")
    for words in (["explain", "-b", bundle.path], ["apply", "-b", bundle.path], ["list"], ["config", "show"]):
        answer = command(*words)
        assert (answer.status, answer.out) == (1, "")
        assert answer.err.startswith(
            f"gpu-oci-hook: {tmp_path}/typo.toml: the config file that GPU_OCI_HOOK_CONFIG names is missing. "
        )
    assert command("config", "validate").status == 1
    assert command("config", "show", "--config", tmp_path / "none.toml").err.endswith("/none.toml: no such file\n")


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("usr", "not an absolute path"),
        ("/nope", "no such directory"),
        ("/etc/ld.so.cache", "not a directory"),
    ],
)
def test_a_driver_root_that_is_none_is_a_sentence(
    command: Command, bundle: DebianBundle, host: Path, root: str, said: str
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    for words in (["list"], ["explain", "-b", bundle.path]):
        answer = command(*words, "--root", host, "--driver-root", root)
        assert (answer.status, answer.out) == (2 if root == "usr" else 1, "") and said in answer.err


def test_words_of_the_image_cannot_write_to_the_terminal(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_REQUIRE_X=\x1b[31m\ncuda>=1", "NVIDIA_DISABLE_REQUIRE=1")
    for form in ("text", "diff"):
        answer = command("explain", "--bundle", bundle.path, "--root", host, "--format", form)
        assert "\x1b" not in answer.out + answer.err


# --- apply -----------------------------------------------------------------------------------------


def test_apply_makes_the_edits_once_and_says_what_it_did(command: Command, host: Path, bundle: DebianBundle) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    first = command("apply", "--bundle", bundle.path, "--root", host)
    assert first.status == 0
    assert f"rewrote {bundle.path}/config.json\n" in first.out
    assert "link /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> /usr/local/nvidia/lib64/libcuda.so.1\n" in first.out
    spec = json.loads((bundle.path / "config.json").read_text())
    assert any(device["path"] == "/dev/nvidiactl" for device in spec["linux"]["devices"])
    link = os.readlink(bundle.path / "rootfs/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    assert link == "/usr/local/nvidia/lib64/libcuda.so.1"
    directory = next(m["source"] for m in spec["mounts"] if m["destination"] == "/usr/local/nvidia/lib64")
    assert os.readlink(f"{directory}/libcuda.so.1") == "libcuda.so.550.163.01"
    before = bundle.tree()
    second = command("apply", "--bundle", bundle.path, "--root", host)
    assert second.status == 0 and second.out == "nothing to do\n"
    assert bundle.tree() == before
    assert "already in config.json" in command("explain", "--bundle", bundle.path, "--root", host).out


def test_apply_to_a_container_that_asks_for_nothing_does_nothing(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    before = bundle.request().tree()
    answer = command("apply", "--bundle", bundle.path, "--root", host)
    assert (answer.status, answer.out) == (0, "nothing to do: NVIDIA_VISIBLE_DEVICES is not set: nothing requested\n")
    assert bundle.tree() == before


def test_apply_of_a_wrong_request_fails_and_changes_nothing(command: Command, host: Path, bundle: DebianBundle) -> None:
    before = bundle.request("NVIDIA_VISIBLE_DEVICES=9").tree()
    assert command("apply", "--bundle", bundle.path, "--root", host).status == 1
    assert bundle.tree() == before


# --- list ------------------------------------------------------------------------------------------


def test_list_begins_with_a_table_of_the_gpus_and_fits_on_a_screen(command: Command, host: Path) -> None:
    answer = command("list", "--root", host)
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    gpus = read_json(command("list", "--root", host, "--format", "json"), "list")["gpus"]
    assert lines[0].split() == ["INDEX", "UUID", "MODEL", "NODE"], "a column that is empty is left out"
    for line, gpu in zip(lines[1:], gpus, strict=False):
        assert line.split() == [str(gpu["index"]), gpu["uuid"], *gpu["model"].split(), f"/dev/nvidia{gpu['minor']}"]
    assert "kernel module  550.163.01\n" in answer.out and "libraries      550.163.01\n" in answer.out
    assert "NVML           not available on a simulated host\n" in answer.out
    assert len(lines) <= 12 and max(map(len, lines)) <= 104


def test_list_prints_files_places_and_details_when_asked(command: Command, host: Path, isolated_state: Path) -> None:
    document = read_json(command("list", "--root", host, "--format", "json"), "list")
    short, files, places, everything = (
        command("list", "--root", host, *words).out for words in ((), ("--files",), ("--places",), ("-v",))
    )
    assert f"driver files   {len(document['files'])}; --files lists them\n" in short
    for one in document["files"]:
        assert one["path"] in files and one["path"] in everything and one["path"] not in short + places
    for place in document["places"]:
        assert place["place"] in places and place["place"] in everything
    assert "searched locations" not in short + files and "driver files\n" not in short + places
    assert "  compute: other files\n    /etc/OpenCL/vendors/nvidia.icd\n" in files
    assert "  every GPU container: firmware" in files and "  compute and compat32: libraries" in files
    for gpu in document["gpus"]:
        assert gpu["pci"] in everything and (gpu["arch"], gpu["brands"]) == ("8.0", ["nvidia", "tesla"])
    assert ", compute capability 8.0, brand nvidia or tesla\n" in everything
    (cuda,) = (one for one in document["files"] if one["soname"] == "libcuda.so.1" and one["arch"] != "i386")
    assert cuda["capability"] == "compute" and cuda["found"]
    assert not isolated_state.exists()


def test_a_quiet_list_is_the_uuids_alone(command: Command, host: Path, tmp_path: Path) -> None:
    gpus = read_json(command("list", "--root", host, "--format", "json"), "list")["gpus"]
    (tmp_path / "c.toml").write_text("[host]\nzzz = 1\n")
    answer = command("list", "--root", host, "-q", "--config", tmp_path / "c.toml")
    assert (answer.out.splitlines(), answer.err) == ([gpu["uuid"] for gpu in gpus], "")


@pytest.mark.parametrize("layout", host_tree.DESKTOP_LAYOUTS)
def test_list_finds_the_driver_in_every_layout(command: Command, tmp_path: Path, layout: str) -> None:
    made = json.loads(command("simulate", tmp_path / "h", "--layout", layout, "--format", "json").out)
    assert made["schema"] == "gpu-oci-hook.simulate/1" and made["layout"] == layout
    answer = command("list", "--root", tmp_path / "h", "--driver-root", made["driver_root"], "--format", "json")
    document = read_json(answer, "list")
    assert document["driver"] == {"module": "550.163.01", "libraries": "550.163.01"}
    assert {one["soname"] for one in document["files"]} >= {"libcuda.so.1", "libnvidia-ml.so.1"}
    assert document["problems"] == []


def test_list_of_a_machine_without_a_driver_is_no_failure(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = command("list", "--root", tmp_path / "empty")
    assert answer.status == 0
    assert "kernel module  not loaded\n" in answer.out and answer.out.startswith("no GPUs\n")
    assert "libraries      none found\n" in answer.out
    assert answer.out.endswith(
        "\nNo driver was found: install it.\nIf it is installed elsewhere, set [host] driver-root to its root or "
        "[host] library-paths to its directory;\ngpu-oci-hook list --places shows where it was looked for.\n"
        "This is the default configuration, since there is no "
        f"{load.find_config_path()}: name another config file with GPU_OCI_HOOK_CONFIG.\n"
    )
    (tmp_path / "c.toml").write_text("")
    assert "GPU_OCI_HOOK_CONFIG" not in command("list", "--root", tmp_path, "--config", tmp_path / "c.toml").out
    document = read_json(command("list", "--root", tmp_path / "empty", "--format", "json"), "list")
    assert document["gpus"] == [] and document["files"] == [] and document["places"]


@pytest.mark.parametrize(
    ("gone", "advice"),
    [
        (("proc/driver/nvidia", "sys/module/nvidia"), "modprobe nvidia"),
        (("proc/driver/nvidia/gpus",), "dmesg"),
        (("usr/lib",), "libraries were not found"),
    ],
)
def test_list_of_a_machine_that_lacks_a_part_ends_with_the_next_step(
    command: Command, tmp_path: Path, gone: tuple[str, ...], advice: str
) -> None:
    command("simulate", tmp_path / "h")
    for place in gone:
        (tmp_path / "h" / place).rename(tmp_path / place.replace("/", "-"))
    assert advice in command("list", "--root", tmp_path / "h").out.rpartition("\n\n")[2]


def test_list_names_the_driver_root_that_has_the_libraries(command: Command, tmp_path: Path) -> None:
    command("simulate", tmp_path / "h", "--layout", "driver-container")
    answer = command("list", "--root", tmp_path / "h")
    assert answer.out.endswith(
        "\nThe driver's libraries are below /run/nvidia/driver: "
        'set driver-root = "/run/nvidia/driver" below [host] in the config file\n'
    )


# --- simulate --------------------------------------------------------------------------------------


def test_simulate_builds_what_is_asked_and_says_how_to_use_it(command: Command, tmp_path: Path) -> None:
    answer = command("simulate", tmp_path / "h", "--gpus", 3, "--driver", "535.183.06", "--model", "NVIDIA H100")
    assert answer.status == 0
    assert f"built a host with 3 GPUs in {tmp_path}/h (layout debian, driver 535.183.06)\n" in answer.out
    assert f'root = "{tmp_path}/h"' in answer.out
    document = read_json(command("list", "--root", tmp_path / "h", "--format", "json"), "list")
    assert [gpu["model"] for gpu in document["gpus"]] == ["NVIDIA H100"] * 3
    assert document["driver"]["module"] == "535.183.06"


def test_simulate_refuses_a_directory_with_foreign_files(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    answer = command("simulate", tmp_path)
    assert answer.status == 1 and str(tmp_path) in answer.err
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("words", [["--layout", "nope"], ["--gpus", "many"], ["--gpus", "-1"], []])
def test_simulate_with_a_wrong_command_line_exits_2(command: Command, tmp_path: Path, words: list[str]) -> None:
    answer = command("simulate", *([str(tmp_path / "h")] if words else []), *words)
    assert answer.status == 2
    assert not (tmp_path / "h").exists()


def test_a_hook_that_an_image_can_give_a_library_is_warned_of(
    command: Command, host: Path, bundle: DebianBundle
) -> None:
    bundle.request("NVIDIA_VISIBLE_DEVICES=0")
    path = bundle.path / "config.json"
    spec = json.loads(path.read_text())
    bare = {"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", "update-ldcache"]}
    spec["hooks"] = {
        "createContainer": [{**bare, "env": ["PATH=/bin"]}, bare, {**bare, "env": []}],
        "createRuntime": [bare],
    }
    path.write_text(json.dumps(spec))
    warnings = read_json(command("explain", "-b", bundle.path, "--root", host, "-o", "json"), "explain")["warnings"]
    about = [text for text in warnings if "CVE-2025-23266" in text]
    assert [text.partition(", has no env")[0] for text in about] == [
        "hooks.createContainer[1], /usr/bin/nvidia-ctk",
        "hooks.createContainer[2], /usr/bin/nvidia-ctk",
    ]
    assert about[0].endswith('Add one to the hook, such as "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]')
