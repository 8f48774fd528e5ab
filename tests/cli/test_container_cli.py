"""Our program under the name nvidia-container-cli: options as argp reads them, `list`, `info` and failures."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli.container_cli.command_line import (
    COMMAND_OPTIONS,
    CONFIGURE_OPTIONS,
    GLOBAL_OPTIONS,
    read_configure_options,
)
from gpu_oci_hook.cli.container_cli.container_request import build_request
from gpu_oci_hook.cli.container_cli.machine_info import format_bus_location
from gpu_oci_hook.cli.container_cli.option_parser import parse_command_line
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.host.gpus import read_gpus
from gpu_oci_hook.host.root import Host
from support.command_line import Command, CommandResult
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

Cli = Callable[..., CommandResult]
LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
CONTROL_NODES = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]


@pytest.fixture
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2)


@pytest.fixture
def run_cli(command: Command, host: Path, tmp_path: Path) -> Cli:
    """Run nvidia-container-cli on a simulated host."""

    def call(*words: str, root: Path = host, lines: str = "") -> CommandResult:
        config = tmp_path / "cli.toml"
        config.write_text(f'[host]\nroot = "{root}"\nload-modules = false\n{lines}')
        return command(f"--config={config}", *words, name="/usr/local/bin/nvidia-container-cli")

    return call


def list_paths(answer: CommandResult, root: Path) -> list[str]:
    """The listed paths as on the simulated host; every one of them exists."""
    assert (answer.status, answer.err) == (0, ""), answer
    lines = answer.out.splitlines()
    for line in lines:
        assert line.startswith(f"{root}/") and os.path.lexists(line), line
    return [line.removeprefix(str(root)) for line in lines]


# --- command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "found", "arguments"),
    [
        (["--debug=/x", "list"], [("debug", "/x")], ["list"]),
        (["--debug", "/x", "list"], [("debug", "/x")], ["list"]),
        (["-d/x", "list", "-d", "0"], [("debug", "/x")], ["list", "-d", "0"]),
        (["-kd", "/x", "-l", "c"], [("load-kmods", ""), ("debug", "/x"), ("ldcache", "c")], []),
        (["--user", "configure"], [("user", "")], ["configure"]),
        (["-u", "configure"], [("user", "")], ["configure"]),
        (["-u1000:1000", "info"], [("user", "1000:1000")], ["info"]),
        (["--user=0", "info"], [("user", "0")], ["info"]),
        (["--load", "info"], [("load-kmods", "")], ["info"]),
        (["--", "--debug"], [], ["--debug"]),
        (["-k", "-", "-k"], [("load-kmods", "")], ["-", "-k"]),
    ],
)
def test_options_before_the_command_are_read_as_argp_does(
    words: list[str], found: list[tuple[str, str]], arguments: list[str]
) -> None:
    parsed = parse_command_line(words, GLOBAL_OPTIONS, stop_at_argument=True)
    assert (parsed.options, parsed.arguments) == (found, arguments)


def test_options_of_a_command_may_follow_its_argument() -> None:
    words = ["/rootfs", "-cuD", "--device=0,", "--dev", "1", "--pid=7"]
    parsed = parse_command_line(words, CONFIGURE_OPTIONS, stop_at_argument=False)
    options = read_configure_options(parsed)
    assert options.capabilities == ("compute", "utility", "display")
    assert options.devices.selectors == ("0", "1")
    assert (options.rootfs, options.pid) == ("/rootfs", 7)


@pytest.mark.parametrize(
    ("words", "problem", "see"),
    [
        ([], "no command. Use info, list, configure", ""),
        (["lits"], "unknown command lits. Did you mean list?", ""),
        (["--ldcahe=x", "list"], "unknown option --ldcahe. Did you mean --ldcache?", ""),
        (["--no", "list"], "option --no is ambiguous: --no-pivot, --no-create-imex-channels", ""),
        (["-x", "list"], "unknown option -x", ""),
        (["--load-kmods=1", "list"], "option --load-kmods takes no value", ""),
        (["-d"], "option -d needs a value", ""),
        (["list", "--nope"], "unknown option --nope", " list"),
        (["list", "x"], "unexpected argument x", " list"),
        (["info", "x"], "unexpected argument x", " info"),
        (["configure", "--compute"], "missing argument ROOTFS", " configure"),
        (["configure", "/a", "/b"], "unexpected argument /b", " configure"),
        (["configure", "--device"], "option --device needs a value", " configure"),
        (["list", "no\nway"], "unexpected argument no\\nway", " list"),
    ],
)
def test_a_wrong_command_line_ends_with_1_and_the_way_to_the_help(
    run_cli: Cli, words: list[str], problem: str, see: str
) -> None:
    answer = run_cli(*words)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err == f"nvidia-container-cli: {problem}\nSee 'nvidia-container-cli{see} --help'\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["configure", "rootfs"], "input error: rootfs: invalid rootfs directory. Give an absolute path other than /"),
        (["configure", "/"], "input error: /: invalid rootfs directory. Give an absolute path other than /"),
        (["configure", "--pid=0", "/x"], "input error: --pid=0: invalid process number"),
        (["configure", "--pid=-1", "/x"], "input error: --pid=-1: invalid process number"),
        (
            ["configure", "--cuda-compat-mode=on", "/x"],
            "input error: --cuda-compat-mode=on: invalid mode. Use disabled, mount, ldconfig",
        ),
        (["list", "--mig-config=0"], "mig-config error: 0: only 'all' devices are supported"),
        (["list", "--mig-monitor=0"], "mig-monitor error: 0: only 'all' devices are supported"),
        (
            ["list", "-d0:0", "--mig-config=all"],
            (
                "mig-config error: 0:0: cannot enable mig-config with specific MIG devices selected. Name whole GPUs "
                "or all, or leave the option out"
            ),
        ),
        (
            ["list", "--device=9"],
            (
                "device error: --device=9: unknown device: there is no GPU 9. This host has GPUs 0 to 1; see "
                "gpu-oci-hook list"
            ),
        ),
    ],
)
def test_a_failure_is_one_line_that_begins_with_its_phase(run_cli: Cli, words: list[str], line: str) -> None:
    assert run_cli(*words) == CommandResult(1, "", f"nvidia-container-cli: {line}\n")


@pytest.mark.parametrize("device", ["void", "vendor.com/nic=0", "nvidia.com/gpu=0", "management.nvidia.com/gpu=all"])
def test_a_device_is_a_gpu_and_nothing_of_another_interface(run_cli: Cli, device: str) -> None:
    """A caller passes on what an image has in NVIDIA_VISIBLE_DEVICES."""
    answer = run_cli("list", f"--device={device}")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith(f"nvidia-container-cli: device error: --device={device}: unknown device: ")


def test_the_version_has_the_lines_that_clients_read(run_cli: Cli) -> None:
    lines = run_cli("--version").out.splitlines()
    assert lines == run_cli("list", "-V").out.splitlines()
    number = lines[0].removeprefix("cli-version: ")
    assert tuple(map(int, number.split("."))) >= (1, 0, 0)  # what Charliecloud's configure wants
    assert lines == [f"cli-version: {number}", f"lib-version: {number}", f"build revision: gpu-oci-hook {VERSION}"]


@pytest.mark.parametrize("name", ["", *COMMAND_OPTIONS])
def test_the_help_names_every_option_and_says_which_have_no_effect(run_cli: Cli, name: str) -> None:
    words = [name] if name else []
    answer = run_cli(*words, "--help")
    assert (answer.status, answer.err) == (0, "")
    for option in COMMAND_OPTIONS.get(name, GLOBAL_OPTIONS):
        assert f" --{option.name}" in answer.out
    assert run_cli(*words, "--usage").out == answer.out.splitlines()[0] + "\n"
    assert answer.out == run_cli(*words, "-?").out


# --- list ---------------------------------------------------------------------------------------------------------


def test_list_without_options_lists_everything_in_the_incumbents_order(run_cli: Cli, host: Path) -> None:
    paths = list_paths(run_cli("list"), host)
    nodes = [path for path in paths if path.startswith("/dev/")]
    assert nodes == [*CONTROL_NODES, "/dev/nvidia1", "/dev/nvidia0"]  # index and minor differ
    kinds = ["/dev/", "/usr/bin/", f"{LIBRARY_DIR}/", "/usr/lib/i386-linux-gnu/", "/run/", "/usr/lib/firmware/"]
    order = [next(kind for kind in kinds if path.startswith(kind)) for path in paths]
    assert order == sorted(order, key=kinds.index)
    assert set(order) == set(kinds)
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("words", "prefixes"),
    [
        (["--libraries"], {f"{LIBRARY_DIR}/"}),
        (["--lib", "--compat32"], {f"{LIBRARY_DIR}/", "/usr/lib/i386-linux-gnu/"}),
        (["-lb"], {f"{LIBRARY_DIR}/", "/usr/bin/"}),
        (["--binaries", "--libraries"], {f"{LIBRARY_DIR}/", "/usr/bin/"}),
        (["--ipcs"], {"/run/"}),
        (["--firmwares"], {"/usr/lib/firmware/"}),
        (["--devices"], {"/dev/"}),
        (["--device="], {"/dev/"}),
        (["--compat32"], set()),
    ],
)
def test_list_has_the_kinds_that_are_asked_for(run_cli: Cli, host: Path, words: list[str], prefixes: set[str]) -> None:
    everything = list_paths(run_cli("list"), host)
    paths = list_paths(run_cli("list", *words), host)
    wanted = [path for path in everything if path.startswith(tuple(prefixes))] if prefixes else []
    if words == ["--device="]:
        wanted = CONTROL_NODES  # no GPU is named
    assert paths == wanted


def test_list_has_the_nodes_of_the_named_gpus(run_cli: Cli, host: Path) -> None:
    gpus, _ = read_gpus(Host(str(host)))
    for gpu in gpus:
        for selector in (str(gpu.index), gpu.uuid, gpu.uuid.upper(), f"0000{gpu.pci}", gpu.pci):
            answer = run_cli("list", f"--device={selector}")
            assert list_paths(answer, host) == [*CONTROL_NODES, f"/dev/nvidia{gpu.minor}"]
    assert list_paths(run_cli("list", "-d", "0", "-d1,,0"), host)[4:] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert list_paths(run_cli("list", "-d", "ALL,9"), host)[4:] == ["/dev/nvidia1", "/dev/nvidia0"]


def test_list_leaves_out_the_sockets_that_an_option_names(run_cli: Cli, host: Path) -> None:
    assert list_paths(run_cli("list", "-i"), host) == ["/run/nvidia-persistenced/socket"]
    assert list_paths(run_cli("list", "-i", "--no-fabricmanager"), host) == ["/run/nvidia-persistenced/socket"]
    assert list_paths(run_cli("list", "-i", "--no-persistenced"), host) == []


def test_list_has_what_a_mig_device_and_the_rights_over_mig_need(run_cli: Cli, shared_host: SharedHost) -> None:
    host = shared_host(gpus=2, mig=("2", "0"))
    capabilities = "/proc/driver/nvidia/capabilities"
    single = list_paths(run_cli("list", "-d0:0", root=host), host)
    assert single[:5] == [*CONTROL_NODES, "/dev/nvidia1"]
    instance = single[5].removesuffix("/access")
    assert instance.startswith(f"{capabilities}/gpu1/mig/gi")
    assert single[6] == f"{instance}/ci0/access"
    assert len(single) == 9 and all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in single[7:])
    everything = list_paths(run_cli("list", "-dall", "--mig-config=all", "--mig-monitor=all", root=host), host)
    rights = everything[6:]
    assert rights[:4] == [
        f"{capabilities}/mig/config", f"{capabilities}/mig/monitor", f"{capabilities}/gpu1/mig", "/dev/nvidia-caps",
    ]  # fmt: skip
    assert set(single[7:]) < set(rights[4:])
    # config, monitor, and a GPU instance and a compute instance for each MIG device
    assert len(rights[4:]) == 2 + 2 * 2


def test_list_has_the_nodes_of_imex_channels_and_then_everything_else(run_cli: Cli, shared_host: SharedHost) -> None:
    host = shared_host(gpus=1, imex=2)
    channel = "/dev/nvidia-caps-imex-channels/channel1"
    assert list_paths(run_cli("list", "-b", "--imex-channel=1", root=host), host)[0] == channel
    assert list_paths(run_cli("list", "--imex-channel=1", root=host), host).count(channel) == 1
    assert len(list_paths(run_cli("list", "--imex-channel=1", root=host), host)) > 50
    answer = run_cli("list", "--imex-channel=0,7", root=host)
    assert answer.status == 1
    assert answer.err.startswith("nvidia-container-cli: imex error: --imex-channel=7: this host has no IMEX channel 7")


def test_list_leaves_out_what_the_configuration_keeps_from_containers(run_cli: Cli, host: Path) -> None:
    answer = run_cli("list", "-l", lines='[inject]\nremove = ["graphics:*"]\n')
    paths = list_paths(answer, host)
    assert f"{LIBRARY_DIR}/libcuda.so.550.163.01" in paths
    assert not [path for path in paths if "libnvidia-glcore" in path]


def test_list_of_another_driver_root_has_the_paths_that_containers_get(run_cli: Cli, shared_host: SharedHost) -> None:
    host = shared_host(gpus=1, layout="driver-container")
    missing = run_cli("list", "-l", root=host)
    assert missing.status == 1
    assert "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object" in missing.err
    answer = run_cli("--root=/run/nvidia/driver", "list", "-l", root=host)
    assert answer.status == 0
    first = answer.out.splitlines()[0].removeprefix(str(host))
    assert not first.startswith("/run/nvidia/driver") and (host / f"run/nvidia/driver{first}").exists()
    answer = run_cli("--root=/nowhere", "list", root=host)
    assert (answer.status, "initialization error: --driver-root" in answer.err) == (1, True)


@pytest.mark.parametrize(
    "words", [["list"], ["info"], ["configure", "--pid=1", "/nowhere"]], ids=lambda words: words[0]
)
def test_without_a_driver_the_words_that_scripts_look_for_are_printed(
    run_cli: Cli, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    answer = run_cli(*words, root=tmp_path / "empty")
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert answer.err.startswith("nvidia-container-cli: initialization error: nvml error: driver not loaded: ")


def test_a_reader_that_has_seen_enough_gets_no_complaint(host: Path, tmp_path: Path) -> None:
    """Charliecloud's configure runs `nvidia-container-cli list | grep -q libnvidia`."""
    config = tmp_path / "cli.toml"
    config.write_text(f'[host]\nroot = "{host}"\n')
    code = "import sys; from gpu_oci_hook import cli; sys.argv[0] = 'nvidia-container-cli'; cli.main()"
    words = [sys.executable, "-c", code, f"--config={config}", "list"]
    pipe = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert pipe.stdout is not None and pipe.stderr is not None
    pipe.stdout.close()
    assert pipe.stderr.read() == b""
    assert pipe.wait(60) in (0, 1)
    pipe.stderr.close()


# --- info -----------------------------------------------------------------------------------------------------------


def test_info_as_text_has_the_incumbents_labels_in_columns(run_cli: Cli, host: Path) -> None:
    gpus, _ = read_gpus(Host(str(host)))
    blocks = run_cli("info").out.split("\n\n")
    assert blocks[0] == "NVRM version:   550.163.01\nCUDA version:   12.4"
    assert blocks[1] == (
        f"Device Index:   0\nDevice Minor:   {gpus[0].minor}\nModel:          NVIDIA A100-SXM4-40GB\n"
        f"Brand:          N/A\nGPU UUID:       {gpus[0].uuid}\nBus Location:   0000{gpus[0].pci}\n"
        "Architecture:   8.0"
    )
    assert len(blocks) == 3


def test_info_as_csv_is_what_incus_reads(run_cli: Cli, host: Path) -> None:
    """Incus skips the empty line, reads the second record, and the records from the fourth on."""
    gpus, _ = read_gpus(Host(str(host)))
    records = [record for record in csv.reader(run_cli("info", "--csv").out.splitlines()) if record]
    assert records[0] == ["NVRM version", "CUDA version"]
    assert records[1] == ["550.163.01", "12.4"]
    assert records[2] == [
        "Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture",
    ]  # fmt: skip
    assert [(record[1], record[4], record[5]) for record in records[3:]] == [
        (str(gpu.minor), gpu.uuid, f"0000{gpu.pci}") for gpu in gpus
    ]


@pytest.mark.parametrize(
    ("model", "brand", "arch"),
    [
        ("NVIDIA GeForce GTX 1080", "GeForce", "6.1"),
        ("Tesla V100-SXM2-16GB", "Tesla", "7.0"),
        ("NVIDIA A100-SXM4-40GB", "N/A", "8.0"),  # its brand depends on the driver
        ("NVIDIA Nobody 9000", "N/A", "N/A"),
    ],
)
def test_info_invents_nothing_about_a_gpu(
    run_cli: Cli, shared_host: SharedHost, model: str, brand: str, arch: str
) -> None:
    host = shared_host(gpus=1, model=model)
    record = list(csv.reader(run_cli("info", "--csv", root=host).out.splitlines()))[-1]
    assert (record[2], record[3], record[6]) == (model, brand, arch)


def test_info_of_a_driver_that_no_table_has_does_not_name_a_cuda_version(run_cli: Cli, shared_host: SharedHost) -> None:
    host = shared_host(gpus=1, driver="999.10.01")
    assert run_cli("info", root=host).out.startswith("NVRM version:   999.10.01\nCUDA version:   N/A\n")


def test_a_bus_location_has_the_eight_digits_of_nvml() -> None:
    assert format_bus_location("0000:07:00.0") == "00000000:07:00.0"
    assert format_bus_location("10000:07:00.0") == "00010000:07:00.0"
    assert format_bus_location("") == "N/A"


# --- requests -------------------------------------------------------------------------------------------------------


def test_the_options_of_configure_become_a_request() -> None:
    words = [
        "--device=0", "--require=cuda>=12.0 driver>=470", "--require=csv-mounts=all", "-ucv", "--imex-channel=3",
        "--no-persistenced", "--no-cgroups", "--no-devbind", "--no-gsp-firmware", "--no-cntlibs",
        "--ldconfig=@/sbin/ldconfig", "--mig-monitor=all", "/x",
    ]  # fmt: skip
    options = read_configure_options(parse_command_line(words, CONFIGURE_OPTIONS, stop_at_argument=False))
    request = build_request(options.devices, options.capabilities, options.requirements, Config())
    assert [device.selector for device in request.device_requests] == ["0"]
    assert request.capabilities == ("compute", "utility", "video")
    assert request.requirements == (("--require", "cuda>=12.0 driver>=470"),)
    assert request.use_all_csv_lists
    assert request.mig_rights == (("monitor", "--mig-monitor=all"),)
    assert [(channels.first, channels.last) for channels in request.imex_channels] == [(3, 3)]
    assert not (options.changes_cgroup or options.adds_nodes or options.adds_firmware or options.uses_compat_libraries)
    assert options.withheld_sockets == ("nvidia-persistenced",)
