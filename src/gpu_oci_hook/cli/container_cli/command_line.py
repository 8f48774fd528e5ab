"""Read the command line of `nvidia-container-cli` into one object for each command. No I/O.

Names, letters and defaults are the incumbent's (facts: container-cli-options). `--config` and `--devices` are ours.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpu_oci_hook.cli.container_cli.option_parser import Option, OptionFault, ParsedLine, parse_command_line
from gpu_oci_hook.cli.container_cli.phase_faults import PhaseFault
from gpu_oci_hook.errors import Fault, clip_text, find_close_match

_NO_EFFECT = "No effect"

GLOBAL_OPTIONS = (
    Option("debug", "d", "FILE", "Append what is done to a log file."),
    Option("load-kmods", "k", "", "Load missing kernel modules and create missing device nodes."),
    Option("no-pivot", "n", "", f"{_NO_EFFECT}: no program of the container is run."),
    Option("user", "u", "UID[:GID]", f"{_NO_EFFECT}: the driver is queried as this user.", value_optional=True),
    Option("root", "r", "PATH", "Root directory of the driver files."),
    Option("ldcache", "l", "FILE", f"{_NO_EFFECT}: libraries are found in every usual place."),
    Option("no-create-imex-channels", "", "", f"{_NO_EFFECT}: IMEX channels are never created."),
    Option("config", "", "FILE", "Config file of gpu-oci-hook."),
)
INFO_OPTIONS = (Option("csv", "", "", "Print CSV."),)
LIST_OPTIONS = (
    Option("device", "d", "ID", "List the nodes of these GPUs or MIG devices, and the control nodes."),
    Option("devices", "", "", "The same as --device=all."),
    Option("libraries", "l", "", "List driver libraries."),
    Option("binaries", "b", "", "List driver programs."),
    Option("ipcs", "i", "", "List sockets and directories of the driver's daemons."),
    Option("firmwares", "f", "", "List driver firmware."),
    Option("compat32", "", "", "List 32-bit libraries, too."),
    Option("mig-config", "", "ID", "List what configures MIG; ID is all."),
    Option("mig-monitor", "", "ID", "List what monitors MIG; ID is all."),
    Option("imex-channel", "", "CHANNEL", "List the nodes of these IMEX channels."),
    Option("no-persistenced", "", "", "Leave out the socket of nvidia-persistenced."),
    Option("no-fabricmanager", "", "", "Leave out the socket of the fabric manager."),
)
_CAPABILITY_OPTIONS = (
    Option("compute", "c", "", "Enable the capability compute."),
    Option("utility", "u", "", "Enable the capability utility."),
    Option("video", "v", "", "Enable the capability video."),
    Option("graphics", "g", "", "Enable the capability graphics."),
    Option("display", "D", "", "Enable the capability display."),
    Option("ngx", "n", "", "Enable the capability ngx."),
    Option("compat32", "", "", "Enable the capability compat32."),
)
CONFIGURE_OPTIONS = (
    Option("pid", "p", "PID", "Process of the container; its mount namespace is changed. Default: the caller's."),
    Option("device", "d", "ID", "GPUs or MIG devices: index, UUID, PCI address, all."),
    Option("require", "r", "EXPR", "Check this requirement first, as NVIDIA_REQUIRE_* has it."),
    Option("ldconfig", "l", "PATH", f"{_NO_EFFECT}: the loader cache is written without running ldconfig."),
    *_CAPABILITY_OPTIONS,
    Option("mig-config", "", "ID", "Grant the right to configure MIG; ID is all."),
    Option("mig-monitor", "", "ID", "Grant the right to monitor MIG; ID is all."),
    Option("imex-channel", "", "CHANNEL", "IMEX channels."),
    Option("no-cgroups", "", "", "Leave the device cgroup as it is."),
    Option("no-devbind", "", "", "Leave out device nodes."),
    Option("no-gsp-firmware", "", "", "Leave out firmware."),
    Option("no-persistenced", "", "", "Leave out the socket of nvidia-persistenced."),
    Option("no-fabricmanager", "", "", "Leave out the socket of the fabric manager."),
    Option("no-cntlibs", "", "", "The same as --cuda-compat-mode=disabled."),
    Option("cuda-compat-mode", "", "MODE", "CUDA compat libraries of the image: disabled, mount or ldconfig."),
)
COMMAND_OPTIONS = {"info": INFO_OPTIONS, "list": LIST_OPTIONS, "configure": CONFIGURE_OPTIONS}

_COMPAT_MODES = ("disabled", "mount", "ldconfig")
_MAX_PID = 1 << 22  # PID_MAX_LIMIT of the kernel


class GlobalOptions(NamedTuple):
    """The options before the command.

    Attributes:
        debug_file, driver_root, config_path: "" if they are not given.
    """

    debug_file: str
    load_modules: bool
    driver_root: str
    config_path: str


class DeviceOptions(NamedTuple):
    """The devices that `list` or `configure` is called for.

    Attributes:
        selectors: those of --device.
        mig_rights: "config", "monitor".
        imex_channels: those of --imex-channel.
    """

    selectors: tuple[str, ...]
    mig_rights: tuple[str, ...]
    imex_channels: tuple[str, ...]


class ListOptions(NamedTuple):
    """What `list` lists.

    Attributes:
        lists_devices: --device is given, perhaps with an empty list.
        withheld_sockets: names of daemons whose sockets are left out.
    """

    devices: DeviceOptions
    lists_devices: bool
    libraries: bool
    binaries: bool
    ipcs: bool
    firmwares: bool
    compat32: bool
    withheld_sockets: tuple[str, ...]


class ConfigureOptions(NamedTuple):
    """What `configure` does.

    Attributes:
        pid: the container's process; 0 for the caller's.
        withheld_sockets: names of daemons whose sockets are left out.
        uses_compat_libraries: CUDA compat libraries of the image may be used.
    """

    rootfs: str
    pid: int
    devices: DeviceOptions
    capabilities: tuple[str, ...]
    requirements: tuple[str, ...]
    changes_cgroup: bool
    adds_nodes: bool
    adds_firmware: bool
    withheld_sockets: tuple[str, ...]
    uses_compat_libraries: bool


class CommandLine(NamedTuple):
    """A parsed command line.

    Attributes:
        shown: "help", "usage" or "version" to print that and nothing else; else "".
        command: the command, "" if only `shown` counts.
        words: the words after the command.
    """

    shown: str
    command: str
    words: list[str]
    options: GlobalOptions


def read_command_line(words: Sequence[str]) -> CommandLine:
    """Read the options before the command, and the command.

    Raises:
        OptionFault: there is no such option or command.
    """
    parsed = parse_command_line(words, GLOBAL_OPTIONS, stop_at_argument=True)
    values = dict(parsed.options)
    options = GlobalOptions(
        values.get("debug", ""), "load-kmods" in values, values.get("root", ""), values.get("config", "")
    )
    shown = find_shown_text(parsed)
    if shown:
        return CommandLine(shown, "", [], options)
    if not parsed.arguments:
        raise OptionFault("no command", hint=f"Use {', '.join(COMMAND_OPTIONS)}")
    command = parsed.arguments[0]
    if command not in COMMAND_OPTIONS:
        near = find_close_match(command[:100], list(COMMAND_OPTIONS))
        raise OptionFault(f"unknown command {clip_text(command)}", hint=f"Did you mean {near}?" if near else "")
    return CommandLine("", command, parsed.arguments[1:], options)


def find_shown_text(parsed: ParsedLine) -> str:
    """Return which of help, usage and version is asked for first; "" if none is."""
    return next((name for name, _ in parsed.options if name in ("help", "usage", "version")), "")


def read_csv_option(parsed: ParsedLine) -> bool:
    """Tell whether `info` shall print CSV.

    Raises:
        OptionFault: there is an argument.
    """
    _refuse_arguments(parsed, 0)
    return any(name == "csv" for name, _ in parsed.options)


def read_list_options(parsed: ParsedLine) -> ListOptions:
    """Read the options of `list`; without any, or with IMEX channels alone, it lists everything.

    Raises:
        OptionFault: there is an argument.
        PhaseFault: a value is invalid.
    """
    _refuse_arguments(parsed, 0)
    given = {name for name, _ in parsed.options}
    devices = _read_device_options(parsed)
    lists_all = not given or (given == {"imex-channel"} and len(parsed.options) == 1)
    if lists_all or "devices" in given:
        devices = devices._replace(selectors=("all",))
    return ListOptions(
        devices,
        lists_devices=lists_all or bool(given & {"device", "devices"}),
        libraries=lists_all or "libraries" in given,
        binaries=lists_all or "binaries" in given,
        ipcs=lists_all or "ipcs" in given,
        firmwares=lists_all or "firmwares" in given,
        compat32=lists_all or "compat32" in given,
        withheld_sockets=_list_withheld_sockets(given),
    )


def read_configure_options(parsed: ParsedLine) -> ConfigureOptions:
    """Read the options of `configure`.

    Raises:
        OptionFault: the number of arguments is wrong.
        PhaseFault: a value is invalid.
    """
    _refuse_arguments(parsed, 1)
    if not parsed.arguments:
        raise OptionFault("missing argument ROOTFS")
    rootfs = parsed.arguments[0]
    if not rootfs.startswith("/") or not rootfs.strip("/"):
        raise PhaseFault(
            "input", Fault("invalid rootfs directory", where=rootfs, hint="Give an absolute path other than /")
        )
    values = dict(parsed.options)
    mode = values.get("cuda-compat-mode", "")
    if mode and mode not in _COMPAT_MODES:
        hint = f"Use {', '.join(_COMPAT_MODES)}"
        raise PhaseFault("input", Fault("invalid mode", where=f"--cuda-compat-mode={clip_text(mode)}", hint=hint))
    return ConfigureOptions(
        rootfs=rootfs,
        pid=_parse_pid(values["pid"]) if "pid" in values else 0,
        devices=_read_device_options(parsed),
        capabilities=tuple(option.name for option in _CAPABILITY_OPTIONS if option.name in values),
        requirements=tuple(value for name, value in parsed.options if name == "require"),
        changes_cgroup="no-cgroups" not in values,
        adds_nodes="no-devbind" not in values,
        adds_firmware="no-gsp-firmware" not in values,
        withheld_sockets=_list_withheld_sockets(values),
        uses_compat_libraries="no-cntlibs" not in values and mode != "disabled",
    )


def _refuse_arguments(parsed: ParsedLine, allowed: int) -> None:
    if len(parsed.arguments) > allowed:
        raise OptionFault(f"unexpected argument {clip_text(parsed.arguments[allowed])}")


def _read_device_options(parsed: ParsedLine) -> DeviceOptions:
    """Read the options that `list` and `configure` share; each may be repeated and takes a list."""
    selectors = _split_values(parsed, "device")
    for position, selector in enumerate(selectors):
        if selector.lower() == "all":  # what follows does not count
            selectors = [*selectors[:position], "all"]
            break
    rights = []
    for right in ("config", "monitor"):
        for value in _split_values(parsed, f"mig-{right}"):
            if value.lower() != "all":
                fault = Fault("only 'all' devices are supported", where=clip_text(value))
                raise PhaseFault(f"mig-{right}", fault)
            rights.append(right)
    return DeviceOptions(
        tuple(selectors), tuple(dict.fromkeys(rights)), tuple(dict.fromkeys(_split_values(parsed, "imex-channel")))
    )


def _split_values(parsed: ParsedLine, name: str) -> list[str]:
    return [item for option, value in parsed.options if option == name for item in value.split(",") if item]


def _list_withheld_sockets(given: set[str] | dict[str, str]) -> tuple[str, ...]:
    return tuple(f"nvidia-{name}" for name in ("persistenced", "fabricmanager") if f"no-{name}" in given)


def _parse_pid(text: str) -> int:
    """Parse a process number.

    Raises:
        PhaseFault: it is none.
    """
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 0 < number <= _MAX_PID:
        raise PhaseFault("input", Fault("invalid process number", where=f"--pid={clip_text(text)}"))
    return number
