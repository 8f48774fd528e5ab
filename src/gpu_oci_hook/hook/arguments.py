"""The one hook's command line: what a CDI file tells our hook to do in a container.

A generated file says all of it in the hook's arguments, so that the hook needs no file of ours on the machine.
Cost rule: hot, no imports but our errors.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Between the two halves of a link, as NVIDIA's hooks have it.
LINK_SEPARATOR = "::"
COMPAT_POLICIES = ("auto", "always", "never")

# (flag, attribute) in the order in which `words` says them: pairs, lists, texts, switches.
_LINK_FLAGS = (("link", "links"), ("plugin", "plugins"), ("plugin32", "plugins32"))
_LIST_FLAGS = (("folder", "folders"), ("folder32", "folders32"))
_TEXT_FLAGS = (
    ("driver-version", "driver_version"),
    ("cuda-compat", "cuda_compat"),
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
_FLAGS_WITH_VALUE = frozenset(flag for flag, _ in (*_LINK_FLAGS, *_LIST_FLAGS, *_TEXT_FLAGS))
_FLAGS_WITHOUT_VALUE = frozenset(flag for flag, _ in _SWITCH_FLAGS)
_DEFAULTS = {"cuda_compat": "auto", "root": "/"}


class HookArguments:
    """What the hook is to do; every attribute has a default that asks for nothing.

    Attributes:
        links: (target, path in the container) of symbolic links; a target is text and need not exist.
        plugins: (target, name) of links in the image's own library directory, wherever that is, such as
            "gbm/nvidia-drm_gbm.so"; plugins32: in that for 32-bit libraries.
        folders: directories of the container whose mounted libraries its loader must find, the one to win first;
            folders32: the same for 32-bit libraries.
        driver_version: of the host when the file was made; "" when it was not known.
        cuda_compat: "auto", "always" or "never", as `[inject] cuda-compat`.
        root: the host's root directory, as `[host] root`.
        hide_device_files: `/proc/driver/nvidia/params` must say `ModifyDeviceFiles: 0`.
        egl_profile: an application profile that makes EGL list the container's GPUs only.
        drm_links: links in /dev/dri/by-path for the DRM nodes that the container has.
        requirements: the container's `NVIDIA_REQUIRE_*` are held against the host.
        log: a file that gets what is said on stderr; "" for none.
        made_from: a hash of what the CDI file was made from, for whoever compares; the hook does not look at it.
        made_by: the command that writes the CDI file anew, for people and for `cdi refresh`.
        incomplete: what the CDI file lacks since the machine did not have it; "" for nothing.
    """

    __slots__ = (
        "cuda_compat", "driver_version", "drm_links", "egl_profile", "folders", "folders32", "hide_device_files",
        "incomplete", "links", "log", "made_by", "made_from", "plugins", "plugins32", "requirements", "root",
    )  # fmt: skip

    def __init__(self) -> None:
        self.links: list[tuple[str, str]] = []
        self.plugins: list[tuple[str, str]] = []
        self.plugins32: list[tuple[str, str]] = []
        self.folders: list[str] = []
        self.folders32: list[str] = []
        self.driver_version = ""
        self.cuda_compat = "auto"
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
        """The command line without the program's name: the same words for the same errand, defaults left out.

        Raises:
            Fault: it holds something that the command line cannot say.
        """
        words: list[str] = []
        for flag, attribute in _LINK_FLAGS:
            for pair in getattr(self, attribute):
                words += [f"--{flag}", LINK_SEPARATOR.join(pair)]
        for flag, attribute in _LIST_FLAGS:
            for folder in getattr(self, attribute):
                words += [f"--{flag}", folder]
        for flag, attribute in _TEXT_FLAGS:
            value = getattr(self, attribute)
            if value != _DEFAULTS.get(attribute, ""):
                words += [f"--{flag}", value]
        words += [f"--{flag}" for flag, attribute in _SWITCH_FLAGS if getattr(self, attribute)]
        parse_hook_arguments(words)  # what we write, we can read
        return words


def parse_hook_arguments(command_line: list[str]) -> HookArguments:
    """The errand that a command line spells.

    Raises:
        Fault: an unknown flag, a flag without its value, a relative path, a link that is none.
    """
    errand = HookArguments()
    texts, switches = dict(_TEXT_FLAGS), dict(_SWITCH_FLAGS)
    for flag, value in parse_flags(command_line, _FLAGS_WITH_VALUE, _FLAGS_WITHOUT_VALUE):
        if flag == "link":
            target, path = parse_link_flag(flag, value)
            errand.links.append((target, require_absolute_path(flag, path)))
        elif flag == "plugin":
            errand.plugins.append(_parse_plugin_flag(flag, value))
        elif flag == "plugin32":
            errand.plugins32.append(_parse_plugin_flag(flag, value))
        elif flag in switches:
            setattr(errand, switches[flag], value == "true")
        elif flag == "folder":
            errand.folders.append(require_absolute_path(flag, value))
        elif flag == "folder32":
            errand.folders32.append(require_absolute_path(flag, value))
        else:
            setattr(errand, texts[flag], require_absolute_path(flag, value) if flag in ("root", "log") else value)
    if errand.cuda_compat not in COMPAT_POLICIES:
        raise Fault(
            f'"{clip_text(errand.cuda_compat)}" is no policy',
            where="--cuda-compat",
            hint=_list_known_values(COMPAT_POLICIES),
        )
    return errand


def parse_flags(
    command_line: list[str], flags_with_value: Iterable[str], flags_without_value: Iterable[str]
) -> list[tuple[str, str]]:
    """(flag, value) of each flag on a command line that has nothing else, in order.

    `--flag value` and `--flag=value` are the same; one dash is as good as two, as in Go's programs. A flag without a
    value is "true", or what `=` gives it.

    Raises:
        Fault: an unknown flag, a flag without its value, or a word that is no flag.
    """
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(command_line):
        word = command_line[at]
        at += 1
        if len(word) < 2 or word[0] != "-" or word == "--":
            raise Fault(f'"{clip_text(word)}" is no flag', where="command line")
        name, equals, value = word[1 + word.startswith("--") :].partition("=")
        if name in flags_without_value:
            value = value if equals else "true"
            if value not in ("true", "false"):
                raise Fault(f'"{clip_text(value)}" is neither true nor false', where=f"--{name}")
        elif name not in flags_with_value:
            raise Fault(
                "this flag is unknown",
                where=clip_text(word),
                hint=_list_known_values(sorted((*flags_with_value, *flags_without_value)), "--"),
            )
        elif not equals:
            if at == len(command_line):
                raise Fault("a value is missing", where=f"--{name}")
            value = command_line[at]
            at += 1
        found.append((name, value))
    return found


def parse_link_flag(flag: str, text: str) -> tuple[str, str]:
    """(target, path) of a `TARGET::PATH`.

    Raises:
        Fault: it is not of that form, a half is empty, or the path ends with what no link can be called.
    """
    parts = text.split(LINK_SEPARATOR)
    if len(parts) != 2 or not all(parts):
        raise Fault(f'"{clip_text(text)}" is no TARGET{LINK_SEPARATOR}PATH', where=f"--{flag}")
    if parts[1].rpartition("/")[2] in ("", ".", ".."):  # "/usr/lib/" would be a link in the place of /usr/lib
        raise Fault(f'"{clip_text(parts[1])}" names a directory, and a link needs a name in one', where=f"--{flag}")
    return parts[0], parts[1]


def _parse_plugin_flag(flag: str, text: str) -> tuple[str, str]:
    target, name = parse_link_flag(flag, text)
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise Fault(f'"{clip_text(name)}" is no name in a directory', where=f"--{flag}")
    return target, name


def require_absolute_path(flag: str, path: str) -> str:
    """The path.

    Raises:
        Fault: it does not begin with a slash.
    """
    if not path.startswith("/"):
        raise Fault(f'"{clip_text(path)}" is no absolute path', where=f"--{flag}")
    return path


def _list_known_values(values: Iterable[str], prefix: str = "") -> str:
    return f"Known are {', '.join(prefix + word for word in values)}"
