"""`cdi generate` and `cdi refresh` on the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_oci_hook.cli import cdi_generate, cdi_recipe, cdi_refresh
from gpu_oci_hook.formats.program_names import LAUNCHER_MARKER
from gpu_oci_hook.simulate import host_tree
from support.command_line import Command, CommandResult
from support.fixtures import SharedHost

pytestmark = [
    pytest.mark.usefixtures("isolated_state"),
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes"),
]

NO_HOOK = "warning: the hook program"
# The simulated host's DRM nodes belong to groups.
REFUSED = (
    "warning: the file needs CDI 0.7.0 (additionalGids), and docker before 26.1, containerd before 1.7.16, crio before "
    "1.30, podman before 5.1 refuse it as a whole. Write one that they can read with --target, as in "
    "--target podman-4.3\n"
)


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=1)


@pytest.fixture
def generate(command: Command, host: Path) -> Command:
    """`cdi generate` about the host, with a hook that is there."""

    def call(*words: object) -> CommandResult:
        return command("cdi", "generate", "--root", host, "--hook", "/bin/true", *words)

    return call


@pytest.fixture
def refresh(command: Command, host: Path) -> Command:
    """`cdi refresh` about the host, with a hook that is there."""

    def call(*words: object) -> CommandResult:
        return command("cdi", "refresh", "--root", host, "--hook", "/bin/true", *words)

    return call


def test_the_file_goes_to_standard_output_as_yaml_or_json(generate: Command, host: Path) -> None:
    answer = generate()
    assert (answer.status, answer.err) == (0, REFUSED) and answer.out.startswith("---\n")
    assert generate("--output", "-") == answer
    other = generate("--format", "json")
    assert (other.status, other.err) == (0, REFUSED)
    files = [yaml.safe_load(answer.out), json.loads(other.out)]
    for number, words in enumerate(("", " --format json")):
        args = files[number]["containerEdits"]["hooks"][0]["args"]
        at = args.index("--made-by")
        command = f"gpu-oci-hook cdi generate{words} --hook /bin/true --root {host}"
        assert args[at : at + 2] == ["--made-by", command]
        del args[at : at + 2]
    assert files[0] == files[1]


@pytest.mark.parametrize("name, form", [("x.json", "json"), ("x.yaml", "yaml")])
def test_a_file_gets_the_form_of_its_suffix(generate: Command, tmp_path: Path, name: str, form: str) -> None:
    answer = generate("--output", tmp_path / "new" / name)
    path = tmp_path / "new" / name
    assert (answer.status, answer.err) == (0, REFUSED)
    assert answer.out.startswith(f"wrote {path}: nvidia.com/gpu, 4 device names (0, GPU-")
    assert "CDI 0.7.0; " in answer.out
    assert path.read_text().startswith("{" if form == "json" else "---")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.stat()
    assert generate("--output", path).out.startswith(f"unchanged {path}: ")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_suffix_that_no_engine_reads_is_warned_of(generate: Command, tmp_path: Path) -> None:
    answer = generate("--output", tmp_path / "x.yml")
    assert answer.status == 0 and "x.yml: engines only read files that end in .yaml or .json" in answer.err


@pytest.mark.parametrize("content", ["", "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"])
def test_another_cdi_file_is_replaced_as_people_expect(generate: Command, tmp_path: Path, content: str) -> None:
    (tmp_path / "x.yaml").write_text(content)
    assert generate("--output", tmp_path / "x.yaml").out.startswith("wrote ")


def test_a_file_that_is_no_cdi_file_is_not_replaced_unless_it_is_forced(generate: Command, tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    answer = generate("--output", path)
    assert answer.status == 1 and path.read_text() == "root:x:0:0\n"
    assert answer.err.splitlines()[-1] == (
        f"gpu-oci-hook: {path}: the existing file is not a CDI file and is not replaced. "
        "Choose another --output, or replace it with --force"
    )
    assert generate("--output", path, "--force").status == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (("--name", "uid"), 'unknown naming scheme "uid". Valid are index, uuid, type-index. Did you mean "uuid"?'),
        (("--capabilities", "compute,grafics"), 'Did you mean "graphics"?'),
        (("--hook", "bin/x"), '--hook: "bin/x" is not an absolute path'),
        (("--no-hook",), "--hook and --no-hook exclude each other"),
        (("--vendor", "-"), '"-/gpu" is not a valid CDI kind'),
        (("--target", "podman-4.3", "--max-version", "0.5.0"), "--target and --max-version exclude each other"),
        (("--target", "podmann-4"), "unknown engine 'podmann-4'"),
        (("--max-version", "0.5"), '--max-version: "0.5" is not a version of CDI. Known are 0.3.0'),
        (("--max-version", "0.5"), '. Did you mean "0.5.0"?'),
        (("--max-version", "0.50.0"), '. Did you mean "0.5.0"?'),
        (("--hook-log", "x.log"), '--hook-log: "x.log" is not an absolute path, which a hook needs'),
        (("--mode", "gds", "--device", "0"), "--device and --name select GPUs, and --mode gds has none"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_an_option_ends_with_2(generate: Command, words: tuple[str, ...], said: str) -> None:
    answer = generate(*words)
    assert answer.status == 2 and answer.out == ""
    first, second = answer.errors
    assert first.startswith("gpu-oci-hook: ") and said in first
    assert second == "See 'gpu-oci-hook cdi generate --help'"


@pytest.mark.parametrize(
    "words, said",
    [
        (("--max-version", "0.3.0"), "Choose --capabilities utility, which has no nodes whose numbers change with a"),
        (("--max-version", "0.3.0"), ", or choose --max-version 0.5.0"),
        (("--class", "a.b", "--max-version", "0.5.0"), "Choose a --class without a dot, or choose --max-version 0.6.0"),
        (("--device", "9"), "--device: there is no GPU 9. This host has GPU 0"),
        (("--mode", "nvswitch"), "NVSwitch devices are requested, but this host does not have them: /dev/nvidia-nvswi"),
        (("--output", "/proc/nowhere/x.yaml"), "/proc/nowhere/x.yaml: cannot be written"),
        (("--output", "/nowhere/at/all/x.yaml"), "no directory /nowhere/at. Create it first: mkdir -p /nowhere"),
        (("--output", "/tmp"), "--output /tmp: is a directory. Name a file, such as /tmp/nvidia.yaml"),
        (("--root", "/nowhere"), "--root /nowhere: no such directory"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_sentence(generate: Command, words: tuple[str, ...], said: str) -> None:
    answer = generate(*words)
    assert answer.status == 1 and answer.out == ""
    (error,) = answer.errors
    assert error.startswith("gpu-oci-hook: ") and said in error


def test_devices_and_names_may_be_repeated_or_listed(generate: Command) -> None:
    for words in (("--device", "0,none", "--name", "index,type-index"),
                  ("--device", "0", "--device", "none", "--name", "index", "--name", "type-index")):  # fmt: skip
        answer = generate(*words)
        assert [one["name"] for one in yaml.safe_load(answer.out)["devices"]] == ["0", "gpu0", "none"]


def test_a_target_says_what_it_leaves_out(generate: Command) -> None:
    answer = generate("--target", "podman-4.3")
    spec = yaml.safe_load(answer.out)
    assert spec["cdiVersion"] == "0.5.0" and "additionalGids" not in answer.out
    assert answer.err.startswith(
        "warning: additionalGids (44, 104) is left out, as it needs CDI 0.7.0 and podman-4.3 reads CDI 0.5.0 at most"
    )


def test_what_was_written_says_which_engines_can_read_it(generate: Command, tmp_path: Path) -> None:
    """A file with groups is refused as a whole by engines that are still in use."""
    answer = generate("--output", tmp_path / "x.yaml")
    assert "CDI 0.7.0; read by docker 26.1, containerd 1.7.16, crio 1.30, podman 5.1 and later" in answer.out
    answer = generate("--output", tmp_path / "x.yaml", "--target", "podman-4.3")
    assert "CDI 0.5.0; read by docker 25, containerd 1.7, crio 1.26, podman 4.3 and later" in answer.out


def test_missing_nodes_end_with_1_and_are_named(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    for name in ("nvidia-uvm", "nvidia-uvm-tools"):
        (tmp_path / "h/dev" / name).unlink()
    words = ("cdi", "generate", "--root", tmp_path / "h", "--hook", "/bin/true", "--output", tmp_path / "x.yaml")
    answer = command(*words)
    assert answer.status == 1 and not (tmp_path / "x.yaml").exists()
    assert "/dev/nvidia-uvm is required for compute" in answer.err
    assert "module nvidia_uvm loaded: yes, from /proc/devices major 510" in answer.err
    answer = command(*words, "--allow-incomplete")
    assert answer.status == 0 and "warning: /dev/nvidia-uvm is required for compute" in answer.err
    assert "gpu-oci-hook/incomplete" in yaml.safe_load((tmp_path / "x.yaml").read_text())["annotations"]


def test_only_the_display_missing_is_a_warning(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    (tmp_path / "h/dev/nvidia-modeset").unlink()
    answer = command("cdi", "generate", "--root", tmp_path / "h", "--hook", "/bin/true")
    assert answer.status == 0 and answer.err.startswith("warning: /dev/nvidia-modeset is left out: it is for display")


@pytest.mark.parametrize("flag", ["--vendor", "--class", "--target", "--hook", "--output", "--device"])
def test_an_empty_text_is_no_wish_for_the_default(generate: Command, flag: str) -> None:
    answer = generate(flag, "")
    assert answer.status == 2 and answer.out == ""
    assert answer.err.splitlines()[0] == f"gpu-oci-hook: {flag}: must not be empty"


# --- who can read it, and what it takes the place of -----------------------------------------------------------------


def test_a_file_for_an_engine_that_is_named_warns_of_no_others(generate: Command, tmp_path: Path) -> None:
    answer = generate("--output", tmp_path / "x.yaml", "--target", "docker-28.3")
    assert answer.err == "" and "CDI 0.7.0; read by docker 26.1, containerd 1.7.16" in answer.out
    answer = generate("--output", tmp_path / "x.yaml", "--target", "podman-4.3")
    assert "refuse it" not in answer.err and "CDI 0.5.0; read by docker 25, " in answer.out


def test_a_refresh_says_which_engines_read_its_file(refresh: Command, tmp_path: Path) -> None:
    answer = refresh("--output", tmp_path / "x.yaml")
    assert "CDI 0.7.0; read by docker 26.1, " in answer.out and answer.out.endswith(" and later\n")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("cdiVersion: 0.5.0\nkind: vendor.com/nic\ndevices: []\n", "defines vendor.com/nic"),
        ("cdiVersion: [\n", "is invalid"),
        ('{"cdiVersion": "0.5.0"}', "is invalid"),
    ],
)
def test_another_vendors_file_is_not_replaced_unless_it_is_forced(
    generate: Command, tmp_path: Path, content: str, what: str
) -> None:
    path = tmp_path / "nvidia.yaml"
    path.write_text(content)
    answer = generate("--output", path)
    assert answer.status == 1 and path.read_text() == content
    assert answer.err.splitlines()[-1] == (
        f"gpu-oci-hook: {path}: the existing CDI file {what} and is not replaced. "
        "Choose another --output, or replace it with --force"
    )
    assert generate("--output", path, "--force").out.startswith("wrote ")
    assert generate("--output", path, "--class", "card").out.startswith("wrote "), "ours is ours, whatever its kind"


# --- the hook's program ----------------------------------------------------------------------------------------------


def hook_of(answer: CommandResult) -> str:
    return str(yaml.safe_load(answer.out)["containerEdits"]["hooks"][0]["path"])


def test_the_hook_is_the_installed_program(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "gpu-oci-hook"
    program.write_bytes(b"#!/usr/bin/python3\n" + LAUNCHER_MARKER + b"\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    answer = command("cdi", "generate", "--root", host)
    assert (hook_of(answer), answer.err) == (str(program), REFUSED)


def test_a_program_without_isolation_is_no_hook(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own script starts Python with whatever the environment says."""
    (tmp_path / "gpu-oci-hook").write_bytes(b"#!/usr/bin/python3\n")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "gpu-oci-hook")])
    monkeypatch.setattr(cdi_recipe, "DEFAULT_HOOK_PATH", str(tmp_path / "not/gpu-oci-hook"))
    answer = command("cdi", "generate", "--root", host)
    assert answer.status == 0 and hook_of(answer) == f"{tmp_path}/not/gpu-oci-hook"
    assert answer.err.startswith(
        f"{NO_HOOK} {tmp_path}/not/gpu-oci-hook is missing, so containers with these devices will not start"
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("file", "is not executable, so containers with these devices will not start: run chmod 755 "),
        ("directory", "is a directory, so containers with these devices will not start: name the program"),
        ("nothing", "is missing, so containers with these devices will not start: create it first"),
    ],
)
def test_a_hook_that_cannot_run_is_warned_of(
    command: Command, host: Path, tmp_path: Path, what: str, said: str
) -> None:
    path = tmp_path / "hook"
    if what == "file":
        path.write_text("#!/bin/sh\n")
        path.chmod(0o644)
    elif what == "directory":
        path.mkdir()
    answer = command("cdi", "generate", "--root", host, "--hook", path)
    assert answer.status == 0 and answer.err.startswith(f"{NO_HOOK} {path} {said}")


def test_the_hook_is_told_of_a_log(generate: Command, tmp_path: Path) -> None:
    args = yaml.safe_load(generate("--hook-log", tmp_path / "x.log").out)["containerEdits"]["hooks"][0]["args"]
    assert args[args.index("--log") + 1] == str(tmp_path / "x.log")
    answer = generate("--hook-log", "/nowhere/x.log")
    assert (
        answer.status == 0
        and "--hook-log /nowhere/x.log: directory /nowhere is missing, so nothing will be logged" in answer.err
    )


def test_a_log_without_a_hook_is_a_mistake(command: Command, host: Path) -> None:
    answer = command("cdi", "generate", "--root", host, "--no-hook", "--hook-log", "/x.log")
    assert answer.status == 2 and "--hook-log and --no-hook exclude each other" in answer.err


# --- what a file records -------------------------------------------------------------------------------------------

MANY = ("--target", "podman-4.3", "--name", "index", "--name", "type-index", "--capabilities", "compute,utility",
        "--vendor", "site.example", "--class", "card", "--device", "0", "--hook-log", "/tmp/hook.log")  # fmt: skip


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
@pytest.mark.parametrize("words", [(), MANY, ("--max-version", "0.6.0"), ("--mode", "management")])
def test_a_refresh_makes_a_file_as_it_was_made(
    command: Command, generate: Command, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / name
    assert generate("--output", path, *words).status == 0
    before = path.read_bytes()
    assert command("cdi", "refresh", "--output", path).out.startswith(f"unchanged {path}: ")
    path.write_bytes(before + b"\n")
    answer = command("cdi", "refresh", "--output", path)
    assert (
        answer.status == 0 and answer.out.startswith(f"wrote {path}: ") and " (with its recorded options " in answer.out
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("words", [("--no-hook",), ("--no-hook", "--name", "index")])
def test_a_file_without_a_hook_records_that_too(
    command: Command, host: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "x.yaml"
    assert command("cdi", "generate", "--root", host, "--output", path, *words).status == 0
    before = path.read_bytes()
    assert b"hooks:" not in before
    assert command("cdi", "refresh", "--output", path).out.startswith(f"unchanged {path}: ")


def test_a_file_that_can_record_nothing_is_warned_of(command: Command, host: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    answer = command("cdi", "generate", "--root", host, "--output", path, "--no-hook")
    assert "warning: JSON without a hook cannot record that the file is ours: refresh will not touch it" in answer.err
    answer = command("cdi", "refresh", "--root", host, "--output", path, "--no-hook")
    assert answer.status == 1 and "was not written by gpu-oci-hook" in answer.err


def test_the_command_in_the_file_is_one_that_writes_the_same_file(
    command: Command, generate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a dir").mkdir()
    monkeypatch.chdir(tmp_path / "a dir")
    assert generate("--output", "it's.yaml", *MANY).status == 0
    before = Path("it's.yaml").read_text()
    begin = "# Regenerate with: gpu-oci-hook "
    (line,) = [line for line in before.splitlines() if line.startswith(begin)]
    assert "--output " in line and "/a dir/it" in line
    os.unlink("it's.yaml")
    monkeypatch.chdir("/")
    assert command(*shlex.split(line[len(begin) :])).out.startswith("wrote ")
    assert (tmp_path / "a dir/it's.yaml").read_text() == before


def test_a_file_that_came_from_standard_output_records_its_options_too(
    command: Command, generate: Command, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(generate("--name", "uuid").out)
    answer = command("cdi", "refresh", "--output", path)
    assert answer.out.startswith(f"wrote {path}: nvidia.com/gpu, 3 device names (GPU-")


@pytest.mark.parametrize(
    ("made", "given", "found"),
    [
        (("--name", "index"), ("--target", "podman-4.3"), "--name index --target podman-4.3"),
        (("--target", "podman-4.3"), ("--max-version", "0.6.0"), "--max-version 0.6.0"),
        (("--max-version", "0.6.0"), ("--target", "podman-4.3"), "--target podman-4.3"),
        (("--hook-log", "/tmp/x.log"), ("--no-hook",), "--no-hook"),
        (("--name", "index"), ("--mode", "management"), "--mode management"),
        (("--target", "podman-4.3"), ("--hook", "/bin/false"), "--target podman-4.3 --hook /bin/false"),
    ],
)
def test_options_that_are_given_take_the_place_of_those_that_a_file_records(
    command: Command, host: Path, tmp_path: Path, made: tuple[str, ...], given: tuple[str, ...], found: str
) -> None:
    path = tmp_path / "x.yaml"
    command("cdi", "generate", "--root", host, "--output", path, *made)
    answer = command("cdi", "refresh", "--output", path, *given)
    assert answer.status == 0, answer.err
    command_line = f"gpu-oci-hook cdi refresh --output {path} {found} --root {host}"
    assert f"# Regenerate with: {command_line}\n" in path.read_text()


def test_a_file_that_others_may_write_is_not_believed(command: Command, generate: Command, tmp_path: Path) -> None:
    """What it names as the configuration would decide what runs as root."""
    path = tmp_path / "x.yaml"
    generate("--output", path, "--name", "index")
    path.chmod(0o666)
    answer = command("cdi", "refresh", "--output", path, "--root", "/nowhere")
    assert answer.status == 1 and "no such directory" in answer.err
    answer = generate("--output", path, "--name", "index")
    os.chown(path, 4807, 4807)
    (tmp_path / "empty").mkdir()
    answer = command("cdi", "refresh", "--output", path, "--root", tmp_path / "empty")
    assert f"{path}: its recorded options (--name index --hook /bin/true) are ignored, since another user" in answer.err


@pytest.mark.parametrize("told", ["rm -rf /", "gpu-oci-hook cdi refresh --nope", "gpu-oci-hook cdi refresh x", "'"])
def test_a_command_in_the_file_that_is_none_of_ours_is_a_sentence(
    command: Command, generate: Command, tmp_path: Path, told: str
) -> None:
    path = tmp_path / "x.yaml"
    generate("--output", path)
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = f"# Regenerate with: {told}\n"
    path.write_text("".join(lines))
    answer = command("cdi", "refresh", "--output", path)
    assert answer.status == 1 and answer.err.count("\n") == 1 and answer.err.startswith(f"gpu-oci-hook: {path}: the ")
    assert answer.err.endswith(f". Regenerate it with its options: gpu-oci-hook cdi generate --output {path}\n")
    assert path.read_text() == "".join(lines)


def test_a_file_of_an_earlier_version_keeps_its_options(command: Command, host: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    command("cdi", "generate", "--root", host, "--output", path, "--no-hook", "--name", "uuid")
    text = path.read_text()
    assert "--name uuid" in text
    path.write_text(text.replace("# Regenerate with: ", "# This writes it anew: "))
    assert command("cdi", "refresh", "--output", path).status == 0
    assert path.read_text() == text


def test_the_hint_of_a_stale_file_of_ours_is_a_refresh_that_keeps_its_options(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    path = tmp_path / "x.yaml"
    command("cdi", "generate", "--root", tmp_path / "h", "--no-hook", "--output", path, "--name", "index")
    host_tree.build_host(tmp_path / "h", gpus=1, driver="555.42.02")
    answer = command("cdi", "validate", "--root", tmp_path / "h", path)
    hint = f"Regenerate it: gpu-oci-hook cdi refresh --output {path}"
    assert answer.status == 1 and hint in answer.out
    answer = command(*hint.split(": gpu-oci-hook ")[1].split())
    assert answer.out.startswith(f"wrote {path}: nvidia.com/gpu, 3 device names (0,")
    assert command("cdi", "validate", "--root", tmp_path / "h", path).status == 0


# --- refresh ---------------------------------------------------------------------------------------------------------


def test_a_refresh_writes_once(refresh: Command, tmp_path: Path) -> None:
    path = tmp_path / "cdi/x.yaml"
    answer = refresh("--output", path)
    assert (answer.status, answer.err) == (0, REFUSED) and answer.out.startswith(f"wrote {path}: ")
    again = refresh("--output", path)
    assert again.out.startswith(f"unchanged {path}: ") and again.err == "", "a timer does not warn every minute"


def test_a_refresh_writes_to_a_name_by_kind_in_the_directory_that_goes_with_a_boot(
    refresh: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cdi_refresh.DEFAULT_SPEC_DIR == "/var/run/cdi"
    monkeypatch.setattr(cdi_refresh, "DEFAULT_SPEC_DIR", str(tmp_path / "cdi"))
    refresh("--format", "json", "--class", "card")
    refresh()
    assert sorted(os.listdir(tmp_path / "cdi")) == ["nvidia.com-card.json", "nvidia.com-gpu.yaml"]


def test_a_refresh_without_a_driver_ends_well(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = command("cdi", "refresh", "--root", tmp_path / "empty", "--output", tmp_path / "x.yaml")
    assert answer.status == 0 and answer.out.startswith("nothing to write: this machine has no NVIDIA GPU")
    assert not (tmp_path / "x.yaml").exists()


def test_a_file_that_is_removed_with_the_driver_says_its_options(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    path = tmp_path / "x.yaml"
    command("cdi", "generate", "--root", tmp_path / "h", "--hook", "/bin/true", "--output", path, "--name", "index")
    (tmp_path / "h/proc").rename(tmp_path / "aside")
    answer = command("cdi", "refresh", "--output", path)
    assert answer.out.startswith(f"removed {path}: ") and not path.exists()
    assert answer.out.endswith(f" (with its recorded options --name index --hook /bin/true --root {tmp_path}/h)\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--interval", "5"), "--interval needs --watch"),
        (("--output", "-"), "--output: refresh needs a file, not standard output"),
        (("--vendor", ""), "--vendor: must not be empty"),
        (
            ("--vendor", "_"),
            (
                '"_/gpu" is not a valid CDI kind. Start vendor and class with a letter; use only letters, digits, and '
                "- _ . after it"
            ),
        ),
        (
            ("--target", "podmann-4"),
            (
                "--target: unknown engine 'podmann-4'. Only charliecloud and gvisor are named without a version. "
                "Use one of docker, containerd, crio, podman and a version, such as podman-4.1"
            ),
        ),
    ],
)
def test_a_wrong_use_of_refresh_ends_with_2(refresh: Command, words: tuple[str, ...], said: str) -> None:
    answer = refresh(*words)
    see = "See 'gpu-oci-hook cdi refresh --help'"
    assert (answer.status, answer.out, answer.err) == (2, "", f"gpu-oci-hook: {said}\n{see}\n")


def test_generating_leaves_no_trace(generate: Command, refresh: Command, tmp_path: Path) -> None:
    generate()
    assert not (tmp_path / "state").exists()
    refresh("--output", tmp_path / "x.yaml")
    assert (tmp_path / "state").exists(), "a refresh fills the cache, so that the next one is quick"


def test_a_full_disk_behind_standard_output_is_a_sentence(host: Path, tmp_path: Path) -> None:
    program = Path(cdi_generate.__file__).parents[3] / ".venv/bin/gpu-oci-hook"
    words = [program, "cdi", "generate", "--root", host, "--hook", "/bin/true", "--target", "docker-28.3"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "gpu-oci-hook: standard output: the output cannot be written: the disk is full\n"


# --- a refresh without --output ---------------------------------------------------------------------------------------


@pytest.fixture
def bare(command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`cdi refresh` as the timer calls it: the configuration names the host, and /run and /etc are the test's own."""
    monkeypatch.setattr(cdi_refresh, "DEFAULT_SPEC_DIR", str(tmp_path / "run"))
    config = tmp_path / "config.toml"
    config.write_text(f'[host]\nroot = "{host}"\nload-modules = false\n[cdi]\nspec-dirs = ["/etc/cdi", "/run/cdi"]\n')

    def call(*words: object) -> CommandResult:
        return command("cdi", "refresh", "--hook", "/bin/true", *map(str, words))

    return call


def test_a_bare_refresh_keeps_the_target_of_the_default_file(bare: Command, tmp_path: Path) -> None:
    bare("--target", "podman-4.3")
    path = tmp_path / "run/nvidia.com-gpu.yaml"
    before = path.read_bytes()
    assert b"--target podman-4.3" in before and b"additionalGids" not in before
    assert bare().out.startswith(f"unchanged {path}: ")
    path.write_bytes(before + b"\n")
    assert "--target podman-4.3" in bare().out and path.read_bytes() == before


def test_a_bare_refresh_does_not_hide_a_file_that_generate_wrote_elsewhere(
    command: Command, bare: Command, tmp_path: Path
) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{tmp_path}/h"\nload-modules = false\n')
    path = tmp_path / "h/etc/cdi/nvidia.yaml"
    words = ("--hook", "/bin/true", "--target", "podman-4.3", "--name", "index")
    assert command("cdi", "generate", "--output", str(path), *words).status == 0
    before = path.read_bytes()
    assert bare().out.startswith(f"unchanged {path}: ")
    assert not (tmp_path / "run").exists() and path.read_bytes() == before


def test_a_file_of_another_kind_or_of_another_tool_is_not_ours_to_refresh(
    command: Command, bare: Command, tmp_path: Path
) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{tmp_path}/h"\nload-modules = false\n')
    directory = tmp_path / "h/etc/cdi"
    words = ("--hook", "/bin/true", "--vendor", "other.org", "--output", str(directory / "other.yaml"))
    assert command("cdi", "generate", *words).status == 0
    (directory / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")
    (tmp_path / "run").mkdir()
    assert bare().out.startswith(f"wrote {tmp_path}/run/nvidia.com-gpu.yaml: ")


def test_two_files_of_ours_for_one_kind_are_warned_of(command: Command, bare: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{tmp_path}/h"\nload-modules = false\n')
    (tmp_path / "run").mkdir()
    bare()
    path = tmp_path / "h/etc/cdi/nvidia.yaml"
    assert command("cdi", "generate", "--hook", "/bin/true", "--output", str(path)).status == 0
    (tmp_path / "run/nvidia.com-gpu.yaml").write_bytes((tmp_path / "run/nvidia.com-gpu.yaml").read_bytes() + b"\n")
    assert f"{path} defines nvidia.com/gpu too: engines use one of the two. Remove one" in bare().err


def test_a_file_that_went_with_the_driver_comes_back_in_its_place_with_its_options(
    command: Command, bare: Command, tmp_path: Path
) -> None:
    host_tree.build_host(tmp_path / "h", gpus=1)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{tmp_path}/h"\nload-modules = false\n')
    path = tmp_path / "h/etc/cdi/nvidia.yaml"
    words = ("--hook", "/bin/true", "--target", "podman-4.3", "--output", str(path))
    assert command("cdi", "generate", *words).status == 0
    before = path.read_bytes()
    (tmp_path / "h/proc").rename(tmp_path / "aside")
    assert bare().out.startswith(f"removed {path}: ")
    assert bare().out.startswith("nothing to write: ")
    (tmp_path / "aside").rename(tmp_path / "h/proc")
    assert bare().out.startswith(f"wrote {path}: ") and path.read_bytes() == before
    assert bare().out.startswith(f"unchanged {path}: ") and not (tmp_path / "run").exists()


# --- clients that run no hook -----------------------------------------------------------------------------------------


def test_a_file_for_charliecloud_is_json_without_a_hook_and_can_be_refreshed(
    command: Command, host: Path, tmp_path: Path
) -> None:
    words = ("--root", str(host), "--target", "Charliecloud")
    spec = json.loads(command("cdi", "generate", *words).out)
    assert "hooks" not in spec["containerEdits"]
    path = tmp_path / "nvidia.json"
    answer = command("cdi", "generate", *words, "--output", str(path))
    assert answer.status == 0 and "refuse it" not in answer.err and "LD_LIBRARY_PATH=" in answer.err
    before = path.read_bytes()
    assert command("cdi", "refresh", "--output", str(path)).out.startswith(f"unchanged {path}: ")
    path.write_bytes(before.replace(b"void", b"all"))
    assert "--target charliecloud" in command("cdi", "refresh", "--output", str(path)).out
    assert path.read_bytes() == before
    assert command("cdi", "validate", "--root", str(host), "--target", "charliecloud", str(path)).status == 0
    assert "ch-run reads JSON files only" in command("cdi", "generate", *words, "--output", f"{path}.yaml").err


def test_a_file_for_gvisor_has_no_hook_and_the_version_of_the_engine_above(command: Command, host: Path) -> None:
    answer = command("cdi", "generate", "--root", str(host), "--target", "gvisor", "--max-version", "0.5.0")
    spec = yaml.safe_load(answer.out)
    assert answer.status == 0 and "hooks" not in spec["containerEdits"] and spec["cdiVersion"] <= "0.5.0"
    assert "--max-version is 0.5.0" in answer.err
    for words in (("--target", "gvisor-1"), ("--target", "gvisor", "--hook", "/bin/true")):
        assert command("cdi", "generate", "--root", str(host), *words).status == 2
