"""config.toml as a Config: the keys, their defaults, and which file may be believed.

Cost rule: hot. Imports only what every start has loaded anyway; TOML, validation and everything that
words a complaint are in `config_check`, which is imported when a file has to be parsed and not when a
remembered Config is taken (`Config.from_data`).
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook import state
from gpu_oci_hook.errors import Fault, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

DEFAULT_PATH: Final = state.CONFIG
LIMIT: Final = 1 << 20
"""Bytes that a config file may have."""

CAPABILITIES: Final = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all")

FEATURE: Final = ("ask", "always", "never")
"""Who decides about something beside the GPUs: each container, or the administrator for all of them."""

# A file that an administrator adds, [[inject.extra]]: key, default, rule. `Config.extra` has a tuple of the values
# for each, in this order.
FILE: Final[tuple[tuple[str, object, object], ...]] = (
    ("path", "", "path"),
    ("container", "", "path"),
    ("capability", "", CAPABILITIES[:-1]),
    ("kind", "file", ("file", "library", "directory", "socket", "device")),
    ("required", False, "bool"),
)

# One row per key: table, key, default, rule. A rule is "bool", "path", "path or empty", "paths", "programs",
# "kind", "words", "files" (tables of FILE), or a tuple of the words to choose from; ("list", ...) is a list of such
# words. The same facts are written in config.schema.json, for people and for editors; a test keeps the two equal.
KEYS: Final[tuple[tuple[str, str, object, object], ...]] = (
    ("host", "root", "/", "path"),
    ("host", "driver-root", "/", "path"),
    ("host", "library-paths", (), "paths"),
    ("host", "load-modules", True, "bool"),
    ("host", "platform", "auto", ("auto", "desktop", "wsl", "tegra")),
    ("host", "csv-directory", "/etc/nvidia-container-runtime/host-files-for-container.d", "path"),
    ("host", "csv-ignore", (), "words"),
    ("runtime", "low-level", ("runc", "crun"), "programs"),
    ("runtime", "log-file", "", "path or empty"),
    ("runtime", "log-level", "info", ("debug", "info", "warning", "error")),
    ("request", "env", "always", ("always", "privileged", "never")),
    ("request", "volume-mounts", True, "bool"),
    ("request", "legacy-images", True, "bool"),
    ("request", "default-capabilities", ("utility", "compute"), ("list", *CAPABILITIES)),
    ("request", "supported-capabilities", ("all",), ("list", *CAPABILITIES)),
    ("request", "disable-require", False, "bool"),
    ("request", "management", "privileged", ("privileged", "never")),
    ("request", "missing-gpu", "fail", ("fail", "warn")),
    ("request", "version-mismatch", "fail", ("fail", "warn")),
    ("inject", "cuda-compat", "auto", ("auto", "always", "never")),
    ("inject", "sockets", True, "bool"),
    ("inject", "firmware", True, "bool"),
    ("inject", "hide-device-files", True, "bool"),
    ("inject", "imex-channels", "ask", FEATURE),
    ("inject", "gds", "ask", FEATURE),
    ("inject", "mofed", "ask", FEATURE),
    ("inject", "gdrcopy", "ask", FEATURE),
    ("inject", "nvswitch", "ask", FEATURE),
    ("inject", "mps-pipe-directory", "", "path or empty"),
    ("inject", "mps-log-directory", "", "path or empty"),
    ("inject", "mps-shm", "", "path or empty"),
    ("inject", "remove", (), "words"),
    ("inject", "extra", (), "files"),
    ("cdi", "spec-dirs", ("/etc/cdi", "/var/run/cdi"), "paths"),
    ("cdi", "default-kind", "nvidia.com/gpu", "kind"),
    ("cdi", "annotation-prefixes", ("cdi.k8s.io/",), "words"),
)


class Config:
    """The effective configuration: one attribute per key of config.toml, dashes as underscores.

    Key names are unique over all tables, so the table is not part of the attribute's name.

    Arguments:
        path: the file that it was read from; empty when these are the defaults.
        warnings: what the file says that does not stop a start (unknown keys), one sentence each.
        values: attributes that differ from the default; lists are given as tuples.
    """

    __slots__ = (
        "annotation_prefixes",
        "csv_directory",
        "csv_ignore",
        "cuda_compat",
        "default_capabilities",
        "default_kind",
        "disable_require",
        "driver_root",
        "env",
        "extra",
        "firmware",
        "gdrcopy",
        "gds",
        "hide_device_files",
        "imex_channels",
        "legacy_images",
        "library_paths",
        "load_modules",
        "log_file",
        "log_level",
        "low_level",
        "management",
        "missing_gpu",
        "mofed",
        "mps_log_directory",
        "mps_pipe_directory",
        "mps_shm",
        "nvswitch",
        "path",
        "platform",
        "remove",
        "root",
        "sockets",
        "spec_dirs",
        "supported_capabilities",
        "version_mismatch",
        "volume_mounts",
        "warnings",
    )

    root: str
    driver_root: str
    library_paths: tuple[str, ...]
    load_modules: bool
    platform: str
    csv_directory: str
    csv_ignore: tuple[str, ...]
    low_level: tuple[str, ...]
    log_file: str
    log_level: str
    env: str
    volume_mounts: bool
    legacy_images: bool
    default_capabilities: tuple[str, ...]
    supported_capabilities: tuple[str, ...]
    disable_require: bool
    management: str
    missing_gpu: str
    version_mismatch: str
    cuda_compat: str
    sockets: bool
    firmware: bool
    hide_device_files: bool
    imex_channels: str
    gds: str
    mofed: str
    gdrcopy: str
    nvswitch: str
    mps_pipe_directory: str
    mps_log_directory: str
    mps_shm: str
    remove: tuple[str, ...]
    extra: tuple[tuple[str, str, str, str, bool], ...]
    spec_dirs: tuple[str, ...]
    default_kind: str
    annotation_prefixes: tuple[str, ...]

    def __init__(self, path: str = "", warnings: tuple[str, ...] = (), **values: object) -> None:
        self.path = path
        self.warnings = warnings
        for _, key, default, _ in KEYS:
            name = key.replace("-", "_")
            setattr(self, name, values.pop(name, default))
        if values:
            raise TypeError(f"no such keys: {', '.join(values)}")

    def to_data(self) -> tuple[object, ...]:
        """The config as nested tuples of plain values: marshal-able, equal for equal configs."""
        return (self.path, self.warnings, *(getattr(self, row[1].replace("-", "_")) for row in KEYS))

    @classmethod
    def from_data(cls, data: object) -> Config | None:
        """The config that `to_data` wrote; None when the data has another shape (an older version's)."""
        if not isinstance(data, tuple) or len(data) != len(KEYS) + 2:
            return None
        config = cls.__new__(cls)
        if not isinstance(data[0], str) or not isinstance(data[1], tuple):
            return None
        config.path, config.warnings = data[0], data[1]
        for (_, key, default, _), value in zip(KEYS, data[2:], strict=True):
            if type(value) is not type(default):
                return None
            setattr(config, key.replace("-", "_"), value)
        return config


def location() -> str:
    """Where the config file is looked for: GPU_OCI_HOOK_CONFIG, else /etc/gpu-oci-hook/config.toml."""
    return os.environ.get("GPU_OCI_HOOK_CONFIG") or DEFAULT_PATH


def load(path: str = "") -> Config:
    """The configuration from `path` (default: `location()`); the defaults when nobody has written DEFAULT_PATH.

    Raises:
        Fault: not there though somebody named it, not a regular file, not readable, too large, not to be
            trusted, not TOML, a wrong type.
    """
    path = path or location()
    data = read_named(path)
    return Config() if data is None else parse(data, path)


def read_named(path: str) -> bytes | None:
    """As `read`, but only DEFAULT_PATH may be missing: who mistypes a stricter file's name must not get the defaults.

    Raises:
        Fault: see `load`.
    """
    data = read(path)
    if data is None and path != DEFAULT_PATH:
        if path == os.environ.get("GPU_OCI_HOOK_CONFIG"):
            what, cure = "the config file that GPU_OCI_HOOK_CONFIG names is missing", "Write it, or unset the variable"
        else:
            what, cure = "there is no such file", ""
        raise Fault(what, where=path, cure=cure)
    return data


def parse(data: bytes, path: str) -> Config:
    """The configuration that these bytes spell; unknown keys end up in `Config.warnings`.

    Raises:
        Fault: not TOML (then a `config_check.TomlFault`, which knows the place), or a value of a wrong type.
    """
    from gpu_oci_hook import config_check

    return config_check.parse(data, path)


def read(path: str) -> bytes | None:
    """The bytes of a config file, None when it is missing.

    Never blocks on a FIFO and never reads more than `LIMIT`.

    Raises:
        Fault: it is no regular file, may not be read, is too large, or is not to be trusted.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = words(error) if isinstance(error, OSError) else "its name has a NUL character"
        raise Fault(f"the config file cannot be opened: {reason}", where=path) from error
    try:
        status = os.fstat(fd)
        trust(status, path)
        data = b""
        while len(data) <= LIMIT:
            more = os.read(fd, LIMIT + 1 - len(data))
            if not more:
                return data
            data += more
    except OSError as error:
        raise Fault(f"the config file cannot be read: {words(error)}", where=path) from error
    finally:
        os.close(fd)
    raise Fault("the config file is larger than 1 MiB", where=path)


def trust(status: os.stat_result, path: str, what: str = "the config file") -> None:
    """Accept the status of a file that decides what is run as root, or say why not.

    Arguments:
        what: the file, for people.

    Raises:
        Fault: no regular file; owned by, or writable for, somebody else while we run as root.
    """
    if not stat.S_ISREG(status.st_mode):
        raise Fault(f"{what} is not a regular file", where=path)
    how = foreign(status)
    if how:
        cure = f"chown root {path}" if "belongs" in how else f"chmod go-w {path}"
        raise Fault(f"{what} {how} and is refused while running as root", where=path, cure=f"Run: {cure}")


def foreign(status: os.stat_result) -> str:
    """How somebody else than root could change a file or directory, as a verb; "" when nobody can, or we are not root.

    In a user namespace (rootless podman) the machine's root has no number and owns its files as the overflow user:
    these are believed there.
    """
    if os.geteuid() != 0:
        return ""
    if strange(status.st_uid):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid != 0):
        return "can be written by other users"
    return ""


def strange(uid: int) -> bool:
    """Whether a user is not root while we are, on whichever side of a user namespace: see `foreign`."""
    return os.geteuid() == 0 and uid != 0 and not _unmapped(uid)


def _unmapped(uid: int) -> bool:
    """Whether this uid stands for "not mapped here": the overflow uid, seen from a user namespace."""
    try:
        with open("/proc/self/uid_map", "rb") as file:
            identity = file.read(4096).split() == [b"0", b"0", b"4294967295"]
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            overflow = int(file.read(32))
    except (OSError, ValueError):
        return False
    return not identity and uid == overflow
