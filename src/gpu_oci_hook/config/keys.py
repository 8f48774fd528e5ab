"""The config keys: one row each, and the object that holds their values."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


CAPABILITIES: Final = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all")


FEATURE_POLICIES: Final = ("ask", "always", "never")


# A file that an administrator adds, [[inject.extra]]: key, default, rule. `Config.extra` has a tuple of the values
# for each, in this order.
USER_FILE_KEYS: Final[tuple[tuple[str, object, object], ...]] = (
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
    ("inject", "imex-channels", "ask", FEATURE_POLICIES),
    ("inject", "gds", "ask", FEATURE_POLICIES),
    ("inject", "mofed", "ask", FEATURE_POLICIES),
    ("inject", "gdrcopy", "ask", FEATURE_POLICIES),
    ("inject", "nvswitch", "ask", FEATURE_POLICIES),
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
