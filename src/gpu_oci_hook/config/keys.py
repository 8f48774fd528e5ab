"""The config keys, one row each, and the object that holds their values.

To add a key:
1. Add its row to `Config`: attribute, type, table, key, default and rule. The attribute is the key with underscores.
2. Add its meaning to `config.descriptions`.
3. Run `.venv/bin/python scripts/update_config_files.py`, which writes config/config.toml, config.schema.json and the
   table in the documentation from the rows and the meanings. Tests hold these files against them.
4. Read it where it decides, as `config.NAME`: keys of `[request]` in `request/`, keys that withhold driver files in
   `plan/files.py`, with a reason such as "[inject] firmware is off". A test fails
   while no code reads the key.

A new rule also needs a branch in `check._check_scalar` and `schema._build_value_schema`, a type name in
`schema_findings._TYPE_NAMES`, and words in `reference._RULE_VALUES`.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, TypeVar

    T = TypeVar("T")

CAPABILITIES: Final = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all")

FEATURE_POLICIES: Final = ("ask", "always", "never")
"""Who decides about an optional device: each container, or the administrator for all of them."""

# Keys of a table of [[inject.extra]]: key, default, rule. `Config.extra` has a tuple of their values per table, in this
# order. A key is added as in `Config`.
USER_FILE_KEYS: Final[tuple[tuple[str, object, object], ...]] = (
    ("path", "", "path"),
    ("container", "", "path"),
    ("capability", "", CAPABILITIES[:-1]),
    ("kind", "file", ("file", "library", "directory", "socket", "device")),
    ("required", False, "bool"),
)

_rows: list[tuple[str, str, object, object]] = []


def _declare_key(table: str, key: str, default: T, rule: object) -> T:
    """Add a row to KEYS and return the default.

    Arguments:
        rule: a rule of `config.rules` ("bool", "path", "path or empty", "paths", "programs", "kind", "kinds",
            "strings",
            "user files"), a tuple of the allowed strings, or ("list", ...) for a list of such strings.
    """
    _rows.append((table, key, default, rule))
    return default


class Config:
    """The effective configuration: one attribute per key of config.toml.

    Key names are unique over all tables, so the table is not part of the attribute's name.

    Arguments:
        path: the file that the values come from, "" for the defaults.
        warnings: what is odd about the file but does not stop a container (unknown keys), one sentence each.
        values: attributes that differ from the default, lists as tuples.
    """

    root: str = _declare_key("host", "root", "/", "path")
    driver_root: str = _declare_key("host", "driver-root", "/", "path")
    library_paths: tuple[str, ...] = _declare_key("host", "library-paths", (), "paths")
    load_modules: bool = _declare_key("host", "load-modules", True, "bool")
    platform: str = _declare_key("host", "platform", "auto", ("auto", "desktop", "wsl", "tegra"))
    csv_directory: str = _declare_key(
        "host", "csv-directory", "/etc/nvidia-container-runtime/host-files-for-container.d", "path"
    )
    csv_ignore: tuple[str, ...] = _declare_key("host", "csv-ignore", (), "strings")

    low_level: tuple[str, ...] = _declare_key("runtime", "low-level", ("runc", "crun"), "programs")
    log_file: str = _declare_key("runtime", "log-file", "", "path or empty")
    log_level: str = _declare_key("runtime", "log-level", "info", ("debug", "info", "warning", "error"))

    env: str = _declare_key("request", "env", "always", ("always", "privileged", "never"))
    env_kinds: tuple[str, ...] = _declare_key("request", "env-kinds", (), "kinds")
    device_variables: tuple[str, ...] = _declare_key("request", "device-variables", (), "strings")
    volume_mounts: bool = _declare_key("request", "volume-mounts", True, "bool")
    legacy_images: bool = _declare_key("request", "legacy-images", True, "bool")
    default_capabilities: tuple[str, ...] = _declare_key(
        "request", "default-capabilities", ("utility", "compute"), ("list", *CAPABILITIES)
    )
    supported_capabilities: tuple[str, ...] = _declare_key(
        "request", "supported-capabilities", ("all",), ("list", *CAPABILITIES)
    )
    disable_require: bool = _declare_key("request", "disable-require", False, "bool")
    management: str = _declare_key("request", "management", "privileged", ("privileged", "never"))
    missing_gpu: str = _declare_key("request", "missing-gpu", "fail", ("fail", "warn"))
    version_mismatch: str = _declare_key("request", "version-mismatch", "fail", ("fail", "warn"))

    cuda_compat: str = _declare_key("inject", "cuda-compat", "auto", ("auto", "always", "never"))
    sockets: bool = _declare_key("inject", "sockets", True, "bool")
    firmware: bool = _declare_key("inject", "firmware", True, "bool")
    hide_device_files: bool = _declare_key("inject", "hide-device-files", True, "bool")
    imex_channels: str = _declare_key("inject", "imex-channels", "ask", FEATURE_POLICIES)
    gds: str = _declare_key("inject", "gds", "ask", FEATURE_POLICIES)
    mofed: str = _declare_key("inject", "mofed", "ask", FEATURE_POLICIES)
    gdrcopy: str = _declare_key("inject", "gdrcopy", "ask", FEATURE_POLICIES)
    nvswitch: str = _declare_key("inject", "nvswitch", "ask", FEATURE_POLICIES)
    mps_pipe_directory: str = _declare_key("inject", "mps-pipe-directory", "", "path or empty")
    mps_log_directory: str = _declare_key("inject", "mps-log-directory", "", "path or empty")
    mps_shm: str = _declare_key("inject", "mps-shm", "", "path or empty")
    remove: tuple[str, ...] = _declare_key("inject", "remove", (), "strings")
    extra: tuple[tuple[str, str, str, str, bool], ...] = _declare_key("inject", "extra", (), "user files")

    spec_dirs: tuple[str, ...] = _declare_key("cdi", "spec-dirs", ("/etc/cdi", "/var/run/cdi"), "paths")
    default_kind: str = _declare_key("cdi", "default-kind", "nvidia.com/gpu", "kind")
    annotation_prefixes: tuple[str, ...] = _declare_key("cdi", "annotation-prefixes", ("cdi.k8s.io/",), "strings")

    def __init__(self, path: str = "", warnings: tuple[str, ...] = (), **values: object) -> None:
        self.path = path
        self.warnings = warnings
        for _, key, default, _ in KEYS:
            name = key.replace("-", "_")
            setattr(self, name, values.pop(name, default))
        if values:
            raise TypeError(f"no such keys: {', '.join(values)}")

    def to_data(self) -> tuple[object, ...]:
        """Return the configuration as nested tuples that marshal can write. Equal configurations give equal data."""
        return (self.path, self.warnings, *(getattr(self, row[1].replace("-", "_")) for row in KEYS))

    @classmethod
    def from_data(cls, data: object) -> Config | None:
        """Return the configuration that `to_data` wrote, None for data of another version."""
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


KEYS: Final[tuple[tuple[str, str, object, object], ...]] = tuple(_rows)
"""Table, key, default and rule of every config key, in the order of the config file."""
