"""Parse and write the command line of our hook, as a CDI file has it.

A generated CDI file carries everything in the hook's arguments, so the hook needs no other file of ours on the host.

Import budget: hook.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Between the two halves of a link, as in the arguments of NVIDIA's hooks.
LINK_SEPARATOR = "::"
COMPAT_POLICIES = ("auto", "always", "never")

# (flag, attribute) in the order in which `to_command_line` writes them: pairs, lists, texts, switches.
_LINK_FLAGS = (
    ("link", "links"),
    ("plugin", "plugins"),
    ("plugin32", "plugins32"),
    ("library", "libraries"),
    ("socket", "sockets"),
)
_LIST_FLAGS = (("folder", "folders"), ("folder32", "folders32"), ("board-compat", "board_compat"))
_TEXT_FLAGS = (
    ("driver-version", "driver_version"),
    ("cuda-compat", "cuda_compat"),
    ("board-cuda", "board_cuda"),
    ("root", "root"),
    ("log", "log"),
    ("made-from", "made_from"),
    ("made-by", "made_by"),
    ("incomplete", "incomplete"),
)
_SWITCH_FLAGS = (
    ("hide-device-files", "hide_device_files"),
    ("egl-profile", "egl_profile"),
    ("drm-links", "drm_links"),
    ("check-requirements", "requirements"),
)
_PATH_FLAGS = ("root", "log")
_FLAGS_WITH_VALUE = frozenset(flag for flag, _ in (*_LINK_FLAGS, *_LIST_FLAGS, *_TEXT_FLAGS))
_FLAGS_WITHOUT_VALUE = frozenset(flag for flag, _ in _SWITCH_FLAGS)
_DEFAULTS = {"cuda_compat": "auto", "root": "/"}


class HookArguments:
    """The arguments of our hook. The defaults request nothing.

    Attributes:
        links: (target, path in the container) of symbolic links. A target is text and need not exist.
        plugins: (target, name) of links in the image's own library directory, such as "gbm/nvidia-drm_gbm.so".
        plugins32: the same for the image's directory of 32-bit libraries.
        sockets: (path on the host, path in the container) of sockets and directories of daemons, mounted if they exist.
        folders: directories of the container whose mounted libraries its loader must find, highest priority first.
        folders32: the same for 32-bit libraries.
        libraries: (path, name) of further libraries that the loader must find, by that name.
        driver_version: the host's driver version when the file was generated; "" if it was unknown.
        cuda_compat: "auto", "always" or "never", as `[inject] cuda-compat`.
        board_cuda: the CUDA version of a Tegra board; "" for other machines.
        board_compat: directories of an image with compat libraries for that board.
        root: the host's root directory, as `[host] root`.
        hide_device_files: set `ModifyDeviceFiles: 0` in the container's `/proc/driver/nvidia/params`.
        egl_profile: write an application profile that makes EGL list only the container's GPUs.
        drm_links: make links in /dev/dri/by-path for the container's DRM nodes.
        requirements: check the container's `NVIDIA_REQUIRE_*` against the host.
        log: a file that also gets what is written to stderr; "" for none.
        made_from: a hash of the data behind the CDI file, for comparison by other tools. The hook ignores it.
        made_by: the command that rewrites the CDI file, for people and for `cdi refresh`.
        incomplete: what the CDI file lacks because the host did not have it; "" for nothing.
    """

    __slots__ = (
        "board_compat", "board_cuda", "cuda_compat", "driver_version", "drm_links", "egl_profile", "folders",
        "folders32", "hide_device_files", "incomplete", "libraries", "links", "log", "made_by", "made_from",
        "plugins", "plugins32", "requirements", "root", "sockets",
    )  # fmt: skip

    def __init__(self) -> None:
        self.links: list[tuple[str, str]] = []
        self.plugins: list[tuple[str, str]] = []
        self.plugins32: list[tuple[str, str]] = []
        self.sockets: list[tuple[str, str]] = []
        self.folders: list[str] = []
        self.folders32: list[str] = []
        self.libraries: list[tuple[str, str]] = []
        self.driver_version = ""
        self.cuda_compat = "auto"
        self.board_cuda = ""
        self.board_compat: list[str] = []
        self.root = "/"
        self.hide_device_files = False
        self.egl_profile = False
        self.drm_links = False
        self.requirements = False
        self.log = ""
        self.made_from = ""
        self.made_by = ""
        self.incomplete = ""

    def to_command_line(self) -> list[str]:
        """Return the command line without the program's name. Equal arguments give equal lines; defaults are left out.

        Raises:
            Fault: a value cannot be expressed on the command line.
        """
        command_line: list[str] = []
        for flag, attribute in _LINK_FLAGS:
            for pair in getattr(self, attribute):
                command_line += [f"--{flag}", LINK_SEPARATOR.join(pair)]
        for flag, attribute in _LIST_FLAGS:
            for folder in getattr(self, attribute):
                command_line += [f"--{flag}", folder]
        for flag, attribute in _TEXT_FLAGS:
            value = getattr(self, attribute)
            if value != _DEFAULTS.get(attribute, ""):
                command_line += [f"--{flag}", value]
        command_line += [f"--{flag}" for flag, attribute in _SWITCH_FLAGS if getattr(self, attribute)]
        parse_hook_arguments(command_line)  # refuse to write a line that the hook cannot read
        return command_line


def parse_hook_arguments(command_line: list[str]) -> HookArguments:
    """Parse the command line of our hook.

    Raises:
        Fault: an unknown flag, a flag without its value, a relative path, or an invalid link.
    """
    arguments = HookArguments()
    texts, switches, lists = dict(_TEXT_FLAGS), dict(_SWITCH_FLAGS), dict(_LIST_FLAGS)
    for flag, value in parse_flags(command_line, _FLAGS_WITH_VALUE, _FLAGS_WITHOUT_VALUE):
        if flag == "link":
            target, path = parse_link_flag(flag, value)
            arguments.links.append((target, require_absolute_path(flag, path)))
        elif flag == "plugin":
            arguments.plugins.append(_parse_plugin_flag(flag, value))
        elif flag == "socket":
            source, path = parse_link_flag(flag, value)
            arguments.sockets.append((require_absolute_path(flag, source), require_absolute_path(flag, path)))
        elif flag == "library":
            path, name = parse_link_flag(flag, value)
            arguments.libraries.append((require_absolute_path(flag, path), name))
        elif flag == "plugin32":
            arguments.plugins32.append(_parse_plugin_flag(flag, value))
        elif flag in switches:
            setattr(arguments, switches[flag], value == "true")
        elif flag in lists:
            getattr(arguments, lists[flag]).append(require_absolute_path(flag, value))
        else:
            setattr(arguments, texts[flag], require_absolute_path(flag, value) if flag in _PATH_FLAGS else value)
    if arguments.cuda_compat not in COMPAT_POLICIES:
        raise Fault(
            f'invalid policy "{clip_text(arguments.cuda_compat)}"',
            where="--cuda-compat",
            hint=_list_valid_values(COMPAT_POLICIES),
        )
    return arguments


def parse_flags(
    command_line: list[str], flags_with_value: Iterable[str], flags_without_value: Iterable[str]
) -> list[tuple[str, str]]:
    """Return (flag, value) of each flag on a command line of flags only, in order.

    `--flag value` and `--flag=value` are the same, and one dash is the same as two, as in Go's programs. A flag
    without a value is "true" unless `=` follows it.

    Raises:
        Fault: an unknown flag, a flag without its value, or an argument that is not a flag.
    """
    flags: list[tuple[str, str]] = []
    at = 0
    while at < len(command_line):
        argument = command_line[at]
        at += 1
        if len(argument) < 2 or argument[0] != "-" or argument == "--":
            raise Fault(f'"{clip_text(argument)}" is not a flag', where="command line")
        name, equals, value = argument[1 + argument.startswith("--") :].partition("=")
        if name in flags_without_value:
            value = value if equals else "true"
            if value not in ("true", "false"):
                raise Fault(f'"{clip_text(value)}" is neither true nor false', where=f"--{name}")
        elif name not in flags_with_value:
            raise Fault(
                "unknown flag",
                where=clip_text(argument),
                hint=_list_valid_values(
                    sorted(flag for flag in (*flags_with_value, *flags_without_value) if len(flag) > 1), "--"
                ),
            )
        elif not equals:
            if at == len(command_line):
                raise Fault("the value is missing", where=f"--{name}")
            value = command_line[at]
            at += 1
        flags.append((name, value))
    return flags


def parse_link_flag(flag: str, value: str) -> tuple[str, str]:
    """Return (target, path) of a `TARGET::PATH`.

    Raises:
        Fault: the value has another form, a half is empty, or the path ends with a name that a link cannot have.
    """
    halves = value.split(LINK_SEPARATOR)
    if len(halves) != 2 or not all(halves):
        raise Fault(f'"{clip_text(value)}" is not of the form TARGET{LINK_SEPARATOR}PATH', where=f"--{flag}")
    if halves[1].rpartition("/")[2] in ("", ".", ".."):  # "/usr/lib/" would put a link where /usr/lib is
        raise Fault(f'"{clip_text(halves[1])}" names a directory; a link needs a file name', where=f"--{flag}")
    return halves[0], halves[1]


def _parse_plugin_flag(flag: str, value: str) -> tuple[str, str]:
    target, name = parse_link_flag(flag, value)
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise Fault(f'"{clip_text(name)}" is not a path relative to a directory', where=f"--{flag}")
    return target, name


def require_absolute_path(flag: str, path: str) -> str:
    """Return the path.

    Raises:
        Fault: it is not absolute.
    """
    if not path.startswith("/"):
        raise Fault(f'"{clip_text(path)}" is not an absolute path', where=f"--{flag}")
    return path


def _list_valid_values(values: Iterable[str], prefix: str = "") -> str:
    return f"Use one of {', '.join(prefix + value for value in values)}"
