"""containerd's config.toml: comments, order and indentation stay, and only our tables come and go."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from gpu_oci_hook.engines.containerd_config import (
    EffectiveConfig,
    add_containerd_runtime,
    check_effective_config,
    has_own_containerd_runtime,
    is_cri_plugin_disabled,
    take_out_containerd_runtime,
)
from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault

PATH = "/etc/containerd/config.toml"
PROGRAM = "/usr/local/bin/gpu-oci-runtime"
WANTED = WantedRuntime("gpu-oci", PROGRAM)
DEFAULT = WantedRuntime("gpu-oci", PROGRAM, default=True)
CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}
DEBIAN = """version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
RUNC = """version = 2
# the node's settings
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc" # as kubeadm has it
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true # kubelet has systemd too
[debug]
  level = "info"
"""
NVIDIA = """version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "nvidia"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"
          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
"""
OURS = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu-oci]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu-oci.options]
    BinaryName = "/usr/local/bin/gpu-oci-runtime"
    SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
# Starting files of version 1 and 2 and 3, and the release of containerd that reads them.
FILES: dict[str, tuple[str | None, tuple[int, ...]]] = {
    "no file, 1.6": (None, (1, 6, 20)),
    "no file, 2.1": (None, (2, 1, 9)),
    "an empty file, 1.6": ("", (1, 6, 20)),
    "comments alone": ("# nothing here\n\n# yet\n", (1, 6, 20)),
    "Debian's": (DEBIAN, (1, 6, 20)),
    "Debian's under 2.1": (DEBIAN, (2, 1, 9)),
    "runc with SystemdCgroup": (RUNC, (1, 6, 20)),
    "the incumbent as default": (NVIDIA, (1, 6, 20)),
    "no newline at the end": (DEBIAN.rstrip(), (1, 6, 20)),
    "CRLF": (RUNC.replace("\n", "\r\n"), (1, 6, 20)),
    "a byte order mark, 1.6": ("\ufeff" + DEBIAN, (1, 6, 20)),
    "tabs": (RUNC.replace("  ", "\t"), (1, 6, 20)),
    "imports": ('imports = ["conf.d/*.toml"]\n' + DEBIAN, (1, 6, 20)),
    "version 1": ("[plugins.cri.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n", (1, 6, 20)),
    "version 1, nothing of CRI": ('root = "/data/containerd" # a disk of its own\n', (1, 6, 20)),
    "version 3": ('version = 3\n[plugins."io.containerd.cri.v1.images"]\n  snapshotter = "native"\n', (2, 1, 9)),
    "version 4": ("version = 4\n[debug]\nlevel = 'warn'\n", (2, 3, 0)),
    "dotted keys": ('version = 2\nplugins."io.containerd.grpc.v1.cri".containerd.snapshotter = "native"\n', (2, 1, 9)),
    "tables out of order": (
        RUNC + '[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "/opt/cni/bin"\n',
        (1, 7, 24),
    ),
}


def handler(**options: object) -> dict[str, Any]:
    return {"runtime_type": "io.containerd.runc.v2", "pod_annotations": [], "options": {"BinaryName": "", **options}}


def explain(text: str | None, release: tuple[int, ...]) -> EffectiveConfig:
    """What a containerd of this release makes of a file: its own runc, unless it is 1.x and the file names handlers."""
    values = parse(text)
    table: dict[str, Any] = {}
    for name in CRI.values():
        table = table or values.get("plugins", {}).get(name, {}).get("containerd", {})
    handlers = table.get("runtimes", {})
    if release >= (2,) or not handlers:
        handlers = {"runc": handler(), **handlers}
    containerd = {"default_runtime_name": table.get("default_runtime_name", "runc"), "runtimes": handlers}
    name = CRI[3] if release >= (2,) else CRI[2]
    return EffectiveConfig(release, {"plugins": {name: {"containerd": containerd}}})


def parse(text: str | bytes | None) -> dict[str, Any]:
    text = text.decode() if isinstance(text, bytes) else text or ""
    return tomllib.loads(text.removeprefix("\ufeff"))


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def get_table(values: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = values["plugins"][CRI[values.get("version", 1)]]["containerd"]
    return table


@pytest.mark.parametrize(("text", "release"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("wanted", [WANTED, DEFAULT], ids=["plain", "default"])
def test_the_runtime_is_added_and_everything_else_stays(
    text: str | None, release: tuple[int, ...], wanted: WantedRuntime
) -> None:
    effective = explain(text, release)
    made = add_containerd_runtime(to_bytes(text), wanted, effective, PATH)
    table = get_table(parse(made))
    entry = table["runtimes"]["gpu-oci"]
    systemd = "SystemdCgroup = true" in (text or "")
    assert entry["runtime_type"] == "io.containerd.runc.v2"
    assert entry["options"] == {"BinaryName": PROGRAM, "SystemdCgroup": systemd}
    assert release >= (2,) or set(table["runtimes"]) > {"gpu-oci"}, "containerd 1 would have no other handler"
    if wanted.default:
        assert table["default_runtime_name"] == "gpu-oci"
    lines = (text or "").removeprefix("\ufeff").splitlines()
    kept = [line for line in lines if line and not (wanted.default and "default_runtime_name" in line)]
    new_lines = made.decode().removeprefix("\ufeff").splitlines()
    assert [line for line in new_lines if line in kept][: len(kept)] == kept, "a line was moved or lost"
    assert made.startswith(b"\xef\xbb\xbf") == (text or "").startswith("\ufeff")
    if "\r\n" in (text or ""):
        assert made.count(b"\n") == made.count(b"\r\n")
    assert add_containerd_runtime(made, wanted, explain(made.decode(), release), PATH) == made, "a second time"


@pytest.mark.parametrize(("text", "release"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("wanted", [WANTED, DEFAULT], ids=["plain", "default"])
def test_after_another_edit_taking_out_leaves_that_edit_and_the_former_settings(
    text: str | None, release: tuple[int, ...], wanted: WantedRuntime
) -> None:
    original = to_bytes(text)
    made = add_containerd_runtime(original, wanted, explain(text, release), PATH)
    note = b"\n# a note of the administrator\n[metrics]\naddress = '127.0.0.1:1338'\n"
    edited = made + (note.replace(b"\n", b"\r\n") if b"\r\n" in made else note)
    left = take_out_containerd_runtime(edited, original, wanted, PATH)
    # Among dotted keys tomlkit takes our tables out, and the comment behind them with them.
    assert b"# a note of the administrator" in left or text == FILES["dotted keys"][0]
    values, former = parse(left), parse(text)
    assert values.pop("metrics") == {"address": "127.0.0.1:1338"}
    values.pop("version", None), former.pop("version", None)
    assert drop_empty(values) == drop_empty(former)
    assert not has_own_containerd_runtime(left, PATH)


def drop_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: kept for key, member in value.items() if (kept := drop_empty(member)) != {}}


def test_the_lines_before_ours_are_untouched_and_the_comment_behind_a_changed_value_stays() -> None:
    effective = explain(RUNC, (1, 6, 20))
    assert add_containerd_runtime(RUNC.encode(), WANTED, effective, PATH).startswith(RUNC.encode())
    made = add_containerd_runtime(RUNC.encode(), DEFAULT, effective, PATH).decode()
    assert 'default_runtime_name = "gpu-oci" # as kubeadm has it' in made


def test_what_the_default_handler_needs_is_copied() -> None:
    text = RUNC.replace(
        '"io.containerd.runc.v2"', '"io.containerd.runc.v2"\n    base_runtime_spec = "/etc/c/base.json"'
    )
    text = text.replace("SystemdCgroup", 'Root = "/run/r"\n      BinaryName = "crun"\n      SystemdCgroup')
    made = add_containerd_runtime(text.encode(), WANTED, explain(text, (1, 7, 24)), PATH)
    entry = get_table(parse(made))["runtimes"]["gpu-oci"]
    assert entry["base_runtime_spec"] == "/etc/c/base.json"
    assert entry["options"] == {"BinaryName": PROGRAM, "SystemdCgroup": True, "Root": "/run/r"}


def test_options_of_a_default_that_is_not_runc_are_not_copied() -> None:
    text = RUNC.replace("runc.v2", "kata.v2")
    made = add_containerd_runtime(text.encode(), WANTED, explain(text, (1, 7, 24)), PATH)
    assert get_table(parse(made))["runtimes"]["gpu-oci"]["runtime_type"] == "io.containerd.runc.v2"


def test_the_incumbents_entry_is_replaced_under_its_name_and_comes_back() -> None:
    wanted = WantedRuntime("nvidia", PROGRAM)
    made = add_containerd_runtime(NVIDIA.encode(), wanted, explain(NVIDIA, (1, 6, 20)), PATH)
    assert get_table(parse(made))["runtimes"]["nvidia"]["options"]["BinaryName"] == PROGRAM
    edited = made + b"# later\n"
    assert parse(take_out_containerd_runtime(edited, NVIDIA.encode(), wanted, PATH)) == parse(NVIDIA)


def test_without_a_record_every_handler_with_our_program_is_taken_out() -> None:
    assert has_own_containerd_runtime(OURS.encode(), PATH)
    left = take_out_containerd_runtime(OURS.encode(), None, None, PATH)
    assert parse(left) == {
        "version": 2,
        "plugins": {CRI[2]: {"containerd": {"runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2"}}}}},
    }


def test_what_is_there_already_is_not_written_again() -> None:
    assert add_containerd_runtime(OURS.encode(), WANTED, explain(OURS, (1, 6, 20)), PATH) == OURS.encode()


def test_a_new_file_names_what_the_built_in_configuration_imports() -> None:
    effective = EffectiveConfig((2, 2, 0), explain(None, (2, 2, 0)).values, ("/etc/containerd/conf.d/*.toml",))
    assert parse(add_containerd_runtime(None, WANTED, effective, PATH))["imports"] == ["/etc/containerd/conf.d/*.toml"]


@pytest.mark.parametrize(
    ("text", "release", "where", "what"),
    [
        ("version = 2\n[plugins\n", (1, 6, 20), ":2:9", "not TOML: "),
        ("version = 2\nversion = 2\n", (1, 6, 20), ":2:12", "not TOML: "),
        ('version = "two"\n', (1, 6, 20), ":1", "is not a version of containerd's configuration"),
        ("\n\nversion = 7\n", (2, 1, 9), ":3", "is not a version of containerd's configuration"),
        ("version = 3\n", (1, 7, 24), ":1", "containerd 1.7.24 does not read version 3"),
        ("version = 4\n", (2, 1, 9), ":1", "containerd 2.1.9 does not read version 4"),
        ('root = "/x"\n', (2, 1, 9), "", "containerd 2.1.9 ignores the runtimes of a file of version 1"),
        ('# docker\ndisabled_plugins = ["cri"]\n', (1, 7, 24), ":2", "the CRI plugin is switched off"),
        ("\ufeffversion = 3\n", (2, 1, 9), ":1", "byte order mark, which containerd 2 refuses"),
        (NVIDIA.replace("nvidia", "gpu-oci", 1).replace("runtimes.nvidia", "runtimes.gpu-oci").replace(
            "nvidia-container-runtime", "kata"), (1, 6, 20), ":7", "another runtime has the name gpu-oci"),
        ('version = 2\nplugins."io.containerd.grpc.v1.cri" = {containerd = {snapshotter = "native"}}\n', (2, 1, 9), "",
         "cannot be edited safely"),
        ('version = 2\nplugins = "x"\n', (1, 6, 20), "", "plugins is not a table"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_edited_is_refused_by_line(
    text: str, release: tuple[int, ...], where: str, what: str
) -> None:
    effective = EffectiveConfig(release, {})
    with pytest.raises(Fault) as caught:
        add_containerd_runtime(text.encode(), WANTED, effective, PATH)
    assert caught.value.where.startswith(f"{PATH}{where}") and what in caught.value.what


def test_dockers_package_has_the_plugin_switched_off() -> None:
    assert is_cri_plugin_disabled(b'disabled_plugins = ["cri"]\n', PATH)
    assert not is_cri_plugin_disabled(DEBIAN.encode(), PATH)


def test_a_change_that_containerd_would_not_see_or_that_takes_something_away_is_refused() -> None:
    before = explain(RUNC, (1, 6, 20))
    made = add_containerd_runtime(RUNC.encode(), DEFAULT, before, PATH).decode()
    check_effective_config(before, explain(made, (1, 6, 20)), DEFAULT, PATH)
    for after, what in (
        (RUNC, "would not use the runtime gpu-oci"),
        (made.replace('_name = "gpu-oci"', '_name = "runc"'), "would not use gpu-oci as its default"),
        (made.replace("runtimes.runc", "runtimes.crun"), "would lose or change its runtime runc"),
        (made.replace("SystemdCgroup = true #", "SystemdCgroup = false #"), "would lose or change its runtime runc"),
    ):
        with pytest.raises(Fault, match=what):
            check_effective_config(before, explain(after, (1, 6, 20)), DEFAULT, PATH)
    more = explain(made, (1, 6, 20))
    more.values["plugins"][CRI[2]]["sandbox_image"] = "x"
    with pytest.raises(Fault, match="would change more than its runtimes"):
        check_effective_config(before, more, DEFAULT, PATH)
