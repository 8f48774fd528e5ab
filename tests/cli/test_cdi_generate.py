"""`cdi generate` and `cdi refresh` on the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_oci_hook import simulate, state
from gpu_oci_hook.cli import cdi_generate
from gpu_oci_hook.cli.common import LAUNCHER

from .conftest import Answer, Command

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")

NO_HOOK = "warning: the hook's program"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "state"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "config.toml").write_text("[host]\nload-modules = false\n")
    monkeypatch.setenv("GPU_OCI_HOOK_CONFIG", str(tmp_path / "config.toml"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("host")
    simulate.build(directory, gpus=1)
    return directory


@pytest.fixture
def generate(command: Command, host: Path) -> Command:
    """`cdi generate` about the host, with a hook that is there."""

    def call(*words: object) -> Answer:
        return command("cdi", "generate", "--root", host, "--hook", "/bin/true", *words)

    return call


@pytest.fixture
def refresh(command: Command, host: Path) -> Command:
    """`cdi refresh` about the host, with a hook that is there."""

    def call(*words: object) -> Answer:
        return command("cdi", "refresh", "--root", host, "--hook", "/bin/true", *words)

    return call


def test_the_file_goes_to_standard_output_as_yaml_or_json(generate: Command) -> None:
    answer = generate()
    assert (answer.status, answer.err) == (0, "") and answer.out.startswith("---\n")
    other = generate("--format", "json")
    assert (other.status, other.err) == (0, "") and json.loads(other.out) == yaml.safe_load(answer.out)


@pytest.mark.parametrize("name, form", [("x.json", "json"), ("x.yaml", "yaml")])
def test_a_file_gets_the_form_of_its_suffix(generate: Command, tmp_path: Path, name: str, form: str) -> None:
    answer = generate("--output", tmp_path / "new/dir" / name)
    path = tmp_path / "new/dir" / name
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith(f"wrote {path}: nvidia.com/gpu, 4 devices (0, GPU-") and "CDI 0.7.0, " in answer.out
    assert path.read_text().startswith("{" if form == "json" else "---")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.stat()
    assert generate("--output", path).out.startswith(f"unchanged {path}: ")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_suffix_that_no_engine_reads_is_warned_of(generate: Command, tmp_path: Path) -> None:
    answer = generate("--output", tmp_path / "x.yml")
    assert answer.status == 0 and "x.yml: engines read files that end in .yaml or .json, and no others" in answer.err


@pytest.mark.parametrize("content", ["", "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"])
def test_another_cdi_file_is_replaced_as_people_expect(generate: Command, tmp_path: Path, content: str) -> None:
    (tmp_path / "x.yaml").write_text(content)
    assert generate("--output", tmp_path / "x.yaml").out.startswith("wrote ")


def test_a_file_that_is_no_cdi_file_is_not_replaced_unless_somebody_insists(generate: Command, tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    answer = generate("--output", path)
    assert answer.status == 1 and path.read_text() == "root:x:0:0\n"
    assert answer.err.splitlines()[-1] == (
        f"gpu-oci-hook: {path}: what is there is no CDI file and stays as it is. Replace it with --force"
    )
    assert generate("--output", path, "--force").status == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (("--name", "uid"), '"uid" is no way to name devices. Valid are index, uuid, type-index. Did you mean "uuid"?'),
        (("--capabilities", "compute,grafics"), 'Did you mean "graphics"?'),
        (("--hook", "bin/x"), '--hook: "bin/x" is no absolute path'),
        (("--no-hook",), "--hook and --no-hook exclude each other"),
        (("--target", "podman-4.3", "--max-version", "0.5.0"), "--target and --max-version say the same thing"),
        (("--target", "podmann-4"), "no engine is called 'podmann-4'"),
        (("--max-version", "0.5"), '--max-version: "0.5" is no version of CDI. Known are 0.3.0'),
        (("--device", "9"), '--device: there is no GPU "9"'),
        (("--mode", "gds", "--device", "0"), "--device and --name choose among GPUs, and --mode gds has none"),
        (("--mode", "nvswitch"), "NVSwitch devices are asked for, and this host cannot give them: /dev/nvidia-nvswit"),
        (("--vendor", "-"), '"-/gpu" is no kind of CDI devices'),
        (("--output", "/proc/nowhere/x.yaml"), "/proc/nowhere/x.yaml: it cannot be written"),
        (("--output", "/tmp"), "/tmp: it is a directory"),
        (("--root", "/nowhere"), "/nowhere: there is no such directory"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_sentence(generate: Command, words: tuple[str, ...], said: str) -> None:
    answer = generate(*words)
    assert answer.status == 1 and answer.out == ""
    errors = [line for line in answer.err.splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 1 and errors[0].startswith("gpu-oci-hook: ") and said in errors[0]


def test_devices_and_names_may_be_repeated_or_listed(generate: Command) -> None:
    for words in (("--device", "0,none", "--name", "index,type-index"),
                  ("--device", "0", "--device", "none", "--name", "index", "--name", "type-index")):  # fmt: skip
        answer = generate(*words)
        assert [one["name"] for one in yaml.safe_load(answer.out)["devices"]] == ["0", "gpu0", "none"]


def test_a_target_says_what_it_leaves_out(generate: Command) -> None:
    """R08."""
    answer = generate("--target", "podman-4.3")
    spec = yaml.safe_load(answer.out)
    assert spec["cdiVersion"] == "0.5.0" and "additionalGids" not in answer.out
    assert answer.err.startswith(
        "warning: additionalGids (44, 104) is left out, as it needs CDI 0.7.0 and podman-4.3 reads CDI 0.5.0 at most"
    )


def test_what_was_written_says_which_engines_can_read_it(generate: Command, tmp_path: Path) -> None:
    """Field report A3-08: a file with groups is refused whole by engines that are still in use."""
    answer = generate("--output", tmp_path / "x.yaml")
    assert "CDI 0.7.0, which docker 26.1, containerd 1.7.16, crio 1.30, podman 5.1 and later read" in answer.out
    answer = generate("--output", tmp_path / "x.yaml", "--target", "podman-4.3")
    assert "CDI 0.5.0, which docker 25, containerd 1.7, crio 1.26, podman 4.3 and later read" in answer.out


def test_missing_nodes_end_with_1_and_are_named(command: Command, tmp_path: Path) -> None:
    """R04."""
    simulate.build(tmp_path / "h", gpus=1)
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
    simulate.build(tmp_path / "h", gpus=1)
    (tmp_path / "h/dev/nvidia-modeset").unlink()
    answer = command("cdi", "generate", "--root", tmp_path / "h", "--hook", "/bin/true")
    assert answer.status == 0 and answer.err.startswith("warning: /dev/nvidia-modeset is left out: it is for display")


# --- the hook's program ----------------------------------------------------------------------------------------------


def hook_of(answer: Answer) -> str:
    return str(yaml.safe_load(answer.out)["containerEdits"]["hooks"][0]["path"])


def test_the_hook_is_the_installed_program(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "gpu-oci-hook"
    program.write_bytes(b"#!/usr/bin/python3\n" + LAUNCHER + b"\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    answer = command("cdi", "generate", "--root", host)
    assert (hook_of(answer), answer.err) == (str(program), "")


def test_a_program_without_isolation_is_no_hook(
    command: Command, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own script starts Python with whatever the environment says."""
    (tmp_path / "gpu-oci-hook").write_bytes(b"#!/usr/bin/python3\n")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "gpu-oci-hook")])
    monkeypatch.setattr(cdi_generate, "INSTALLED", str(tmp_path / "not/gpu-oci-hook"))
    answer = command("cdi", "generate", "--root", host)
    assert answer.status == 0 and hook_of(answer) == f"{tmp_path}/not/gpu-oci-hook"
    assert answer.err.startswith(f"{NO_HOOK} {tmp_path}/not/gpu-oci-hook is not there, and no container would start")


# --- refresh ---------------------------------------------------------------------------------------------------------


def test_a_refresh_writes_once(refresh: Command, tmp_path: Path) -> None:
    path = tmp_path / "cdi/x.yaml"
    answer = refresh("--output", path)
    assert (answer.status, answer.err) == (0, "") and answer.out.startswith(f"wrote {path}: ")
    assert refresh("--output", path).out.startswith(f"unchanged {path}: ")


def test_a_refresh_writes_to_a_name_by_kind_in_the_directory_that_goes_with_a_boot(
    refresh: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cdi_generate.DIRECTORY == "/var/run/cdi"
    monkeypatch.setattr(cdi_generate, "DIRECTORY", str(tmp_path / "cdi"))
    refresh("--format", "json", "--class", "card")
    refresh()
    assert sorted(os.listdir(tmp_path / "cdi")) == ["nvidia.com-card.json", "nvidia.com-gpu.yaml"]


def test_a_refresh_without_a_driver_ends_well(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = command("cdi", "refresh", "--root", tmp_path / "empty", "--output", tmp_path / "x.yaml")
    assert answer.status == 0 and answer.out.startswith("there is nothing to write: this machine has no NVIDIA GPU")
    assert not (tmp_path / "x.yaml").exists()


def test_generating_leaves_no_trace(generate: Command, refresh: Command, tmp_path: Path) -> None:
    generate()
    assert not (tmp_path / "state").exists()
    refresh("--output", tmp_path / "x.yaml")
    assert (tmp_path / "state").exists(), "a refresh remembers, so that the next one is quick"


def test_a_full_disk_behind_standard_output_is_a_sentence(host: Path, tmp_path: Path) -> None:
    program = Path(cdi_generate.__file__).parents[3] / ".venv/bin/gpu-oci-hook"
    words = [program, "cdi", "generate", "--root", host, "--hook", "/bin/true"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "gpu-oci-hook: standard output: the answer cannot be written: the disk is full\n"
