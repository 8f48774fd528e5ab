"""CDI names in the variable, in mounts and in annotations: whose they are, and which source counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import fastjson
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.read import read_request

DEVICES = "NVIDIA_VISIBLE_DEVICES="
NOTE = "cdi.k8s.io/plugin_1"
LIBPOD = {"io.container.manager": "libpod"}


def spec(*env: str, mounts: tuple[str, ...] = (), notes: dict[str, Any] | None = None, root: bool = False) -> object:
    return {
        "process": {"env": list(env), "capabilities": {"bounding": ["CAP_SYS_ADMIN"] if root else []}},
        "mounts": [
            {"source": "/dev/null", "destination": f"/var/run/nvidia-container-devices/{name}"} for name in mounts
        ],
        "annotations": notes or {},
    }


def asked(request: Request) -> tuple[list[str], list[str]]:
    """What is asked of us and of others."""
    own = (
        [ask.selector for ask in request.device_requests]
        if request.device_requests or not request.needs_driver
        else ["none"]
    )
    return own, [ask.selector for ask in request.cdi_devices]


def words(made: object, **config: Any) -> tuple[list[str], list[str]]:
    return asked(read_request(made, Config(**{"env_kinds": ("vendor.com/dev", "vendor.com/nic", "a/b"), **config})))


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "own", "foreign"),
    [
        ("nvidia.com/gpu=0", ["0"], []),
        ("nvidia.com/gpu=all", ["all"], []),
        ("nvidia.com/gpu=none", ["none"], []),
        ("nvidia.com/gpu=GPU-44b97862-417b-5351-9f9b-fc184b5f19e7", ["GPU-44b97862-417b-5351-9f9b-fc184b5f19e7"], []),
        ("nvidia.com/gpu=gpu0", ["0"], []),
        ("nvidia.com/gpu=gpu12", ["12"], []),
        ("nvidia.com/gpu=mig0:1", ["0:1"], []),
        ("nvidia.com/gpu=0:1", ["0:1"], []),
        ("nvidia.com/gpu=gpu", ["gpu"], []),
        ("nvidia.com/gpu=gpu0:1", ["gpu0:1"], []),
        ("nvidia.com/gpu=mig0", ["mig0"], []),
        ("runtime.nvidia.com/gpu=1", ["1"], []),
        ("runtime.nvidia.com/gpu=0,nvidia.com/gpu=1,2", ["0", "1", "2"], []),
        ("runtime.nvidia.com/other=1", [], ["runtime.nvidia.com/other=1"]),
        ("vendor.com/dev=a", [], ["vendor.com/dev=a"]),
        ("vendor.com/dev=a,vendor.com/dev=a", [], ["vendor.com/dev=a"]),
        ("0, vendor.com/dev=a ,1", ["0", "1"], ["vendor.com/dev=a"]),
        ("none,vendor.com/dev=a", ["none"], ["vendor.com/dev=a"]),
        ("nvidia.com/gds=all", [], ["nvidia.com/gds=all"]),
        ("management.nvidia.com/gpu=0", [], ["management.nvidia.com/gpu=0"]),
        ("a/b=c", [], ["a/b=c"]),  # NVIDIA's runtime dies of it
    ],
)
def test_names_of_our_kinds_are_plain_words_and_others_are_for_files(
    value: str, own: list[str], foreign: list[str]
) -> None:
    assert words(spec(DEVICES + value)) == (own, foreign)


def test_the_kind_of_ours_is_the_configurations(own: str = "example.org/acc=0") -> None:
    assert words(spec(DEVICES + own), default_kind="example.org/acc") == (["0"], [])
    assert words(spec(DEVICES + "nvidia.com/gpu=0"), default_kind="example.org/acc") == ([], ["nvidia.com/gpu=0"])


@pytest.mark.parametrize(
    "value", ["vendor.com/=a", "=a", "a=b", "vendor.com/dev=", "/dev/x=1", "v/c=ü", "cdi/x", "v/c=a=b"]
)
def test_what_only_looks_like_a_name_is_an_error_in_one_sentence(value: str) -> None:
    with pytest.raises(Fault, match="is not a CDI name"):
        words(spec(DEVICES + value))


def test_none_beside_a_gpu_is_an_error_however_it_is_said() -> None:
    with pytest.raises(Fault, match='mixes "none"'):
        words(spec(DEVICES + "nvidia.com/gpu=none,0"))


def test_void_beside_names_is_nothing() -> None:
    request = read_request(spec(DEVICES + "vendor.com/dev=a,void"), Config())
    assert asked(request) == ([], [])
    assert not request.needs_driver
    assert request.warnings


# --- mounts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "own", "foreign"),
    [
        ("cdi/nvidia.com/gpu/0", ["0"], []),
        ("cdi/nvidia.com/gpu=0", ["0"], []),
        ("cdi/vendor.com/dev/a", [], ["vendor.com/dev=a"]),
        ("cdi/vendor.com/dev=a", [], ["vendor.com/dev=a"]),
        ("cdi/runtime.nvidia.com/gpu/all", ["all"], []),
    ],
)
def test_mounts_name_devices_in_both_spellings(path: str, own: list[str], foreign: list[str]) -> None:
    assert words(spec(mounts=(path,))) == (own, foreign)


@pytest.mark.parametrize("path", ["cdi/x", "cdi/vendor.com/dev", "cdi/vendor.com/dev/a/b", "cdi/vendor.com"])
def test_a_mount_that_names_nothing_is_an_error(path: str) -> None:
    with pytest.raises(Fault, match="is not a CDI name"):
        words(spec(mounts=(path,)))


# --- annotations ------------------------------------------------------------------------------------


def test_annotations_ask_in_the_order_of_their_names() -> None:
    notes = {"cdi.k8s.io/b": "nvidia.com/gpu=1", "cdi.k8s.io/a": "vendor.com/dev=a, nvidia.com/gpu=0", "other": "x/y=z"}
    assert words(spec(notes=notes)) == (["0", "1"], ["vendor.com/dev=a"])


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("0", "Use nvidia.com/gpu=0"),
        ("GPU-abcdef", "Use nvidia.com/gpu=GPU-abcdef"),
        ("nvidia.com/gpu=0,1", "Use nvidia.com/gpu=1"),
        ("nvidia.com/gpu", "Use nvidia.com/gpu=0"),
        ("bad name", "Use vendor/class=device"),
        ("nvidia.com/gpu=", "Use vendor/class=device"),
        ("cdi/nvidia.com/gpu/0", "Use vendor/class=device"),
    ],
)
def test_an_annotations_word_that_is_no_qualified_name_is_an_error_with_the_name_that_it_may_be(
    value: str, hint: str
) -> None:
    with pytest.raises(Fault, match="is not a CDI name") as caught:
        words(spec(notes={NOTE: value}))
    assert caught.value.where == f"annotation {NOTE}" and caught.value.hint.startswith(hint)


def test_an_annotation_that_is_ignored_may_say_what_it_likes() -> None:
    request = read_request(spec("NVIDIA_VISIBLE_DEVICES=void", notes={NOTE: "bad name"}), Config())
    assert asked(request) == ([], []) and request.withheld


def test_a_cdi_name_that_the_environment_may_not_ask_for_has_its_warning() -> None:
    request = read_request(spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,vendor.com/dev=a"), Config(env="never"))
    assert asked(request) == ([], [])
    assert request.warnings == ['the container starts without them: [request] env is "never"']


def test_a_variable_names_no_other_vendors_device_unless_its_kind_is_allowed() -> None:
    """An image can set the variable, and a CDI file of any vendor can mount any path of the host."""
    env = "NVIDIA_VISIBLE_DEVICES=0,site.org/scratch=admin"
    with pytest.raises(Fault) as caught:
        read_request(spec(env), Config())
    assert "site.org/scratch=admin is a device of another vendor" in caught.value.what
    assert '"site.org/scratch" to [request] env-kinds' in caught.value.hint
    with pytest.raises(Fault):
        read_request(spec(env), Config(env_kinds=("site.org/other",)))
    assert asked(read_request(spec(env), Config(env_kinds=("site.org/scratch",)))) == (
        ["0"],
        ["site.org/scratch=admin"],
    )
    # Only who creates a container can add these.
    assert asked(read_request(spec(notes={NOTE: "site.org/scratch=admin"}), Config())) == (
        [],
        ["site.org/scratch=admin"],
    )


@pytest.mark.parametrize("name", ["nvidia.com/gds=all", "k8s.device-plugin.nvidia.com/gpu=GPU-1"])
def test_kinds_of_nvidia_need_no_permission(name: str) -> None:
    """The variable is NVIDIA's, and each of these has a variable or a selector of its own."""
    assert asked(read_request(spec(f"NVIDIA_VISIBLE_DEVICES={name}"), Config()))[1] == [name]


def test_a_vendor_that_only_ends_like_nvidia_needs_permission() -> None:
    with pytest.raises(Fault):
        read_request(spec("NVIDIA_VISIBLE_DEVICES=notnvidia.com/gpu=0"), Config())


@pytest.mark.parametrize("value", ["", " , ", 7, None, ["nvidia.com/gpu=0"]])
def test_an_annotation_that_says_nothing_asks_for_nothing(value: object) -> None:
    request = read_request(spec(notes={NOTE: value}), Config())
    assert asked(request) == ([], [])
    assert not request.needs_driver


def test_the_prefixes_are_the_configurations() -> None:
    notes = {"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=0", NOTE: "nvidia.com/gpu=1"}
    assert words(spec(notes=notes)) == (["1"], [])
    assert words(spec(notes=notes), annotation_prefixes=("nvidia.cdi.k8s.io/",)) == (["0"], [])
    assert words(spec(notes=notes), annotation_prefixes=()) == ([], [])


@pytest.mark.parametrize("env", ["never", "privileged"])
def test_annotations_of_an_engine_that_lets_only_its_client_write_them_need_no_other_right(env: str) -> None:
    assert words(spec(notes={NOTE: "nvidia.com/gpu=0"}), env=env) == (["0"], [])


@pytest.mark.parametrize(
    ("env", "root", "counts"),
    [("always", False, True), ("privileged", True, True), ("privileged", False, False), ("never", True, False)],
)
def test_podman_hands_on_an_images_annotations_so_they_may_what_the_environment_may(
    env: str, root: bool, counts: bool
) -> None:
    request = read_request(
        spec(notes={NOTE: "nvidia.com/gpu=0,vendor.com/dev=a", **LIBPOD}, root=root),
        Config(env=env, env_kinds=("vendor.com/dev",)),
    )
    assert asked(request) == ((["0"], ["vendor.com/dev=a"]) if counts else ([], []))
    assert [name for name, _ in request.withheld] == ([] if counts else ["nvidia.com/gpu=0", "vendor.com/dev=a"])
    assert counts or "is ignored" in request.warnings[0]


def test_an_images_annotation_names_no_device_of_another_vendor() -> None:
    """A CDI file of any vendor can mount any path of the host."""
    made = spec(notes={NOTE: "site.org/scratch=admin", **LIBPOD})
    with pytest.raises(Fault, match="an image could have requested it here"):
        read_request(made, Config())
    assert asked(read_request(made, Config(env_kinds=("site.org/scratch",)))) == ([], ["site.org/scratch=admin"])
    assert asked(read_request(made, Config(env="never"))) == ([], [])
    of_ctr = spec(notes={NOTE: "site.org/scratch=admin"})
    assert asked(read_request(of_ctr, Config())) == ([], ["site.org/scratch=admin"])


@pytest.mark.parametrize("sign", ["manager", "annotation", "cgroup"])
def test_an_image_cannot_hide_that_podman_has_made_its_container(sign: str) -> None:
    """Seen with podman 4.3: an image's annotation takes the place of podman's own `io.container.manager`."""
    notes = of_crio(**{"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=all"})
    made: Any = spec(notes=notes)
    if sign == "manager":
        notes["io.container.manager"] = "libpod"
    elif sign == "annotation":
        notes["io.podman.annotations.init"] = "FALSE"
    else:
        made["linux"] = {"cgroupsPath": "machine.slice:libpod:0123"}
    config = {"annotation_prefixes": ("nvidia.cdi.k8s.io/",)}
    assert words(made, **config) == (["all"], [])
    assert words(made, **config, env="never") == ([], [])


def of_crio(**notes: str) -> dict[str, str]:
    """As CRI-O leaves it: the container's own annotations in one, and besides all of them with the pod's."""
    return {"io.kubernetes.cri-o.Annotations": json.dumps(notes), "io.container.manager": "cri-o", **notes}


def test_cri_o_has_resolved_its_annotations_already_and_others_are_the_pods() -> None:
    kubelets = of_crio(**{"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    request = read_request(spec(notes={**kubelets, "cdi.k8s.io/pods": "nvidia.com/gpu=all"}), Config())
    assert asked(request) == ([], [])
    assert len(request.withheld) == 2


def test_under_another_prefix_cri_o_s_annotations_count_if_kubelet_gave_them() -> None:
    notes = of_crio(**{"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=0"})
    notes["nvidia.cdi.k8s.io/pods"] = "nvidia.com/gpu=all"
    assert words(spec(notes=notes), annotation_prefixes=("nvidia.cdi.k8s.io/",)) == (["0"], [])


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"'])
def test_cri_o_s_own_list_that_cannot_be_read_names_no_container(text: str) -> None:
    notes = {"io.kubernetes.cri-o.Annotations": text, "nvidia.cdi.k8s.io/x": "nvidia.com/gpu=0"}
    assert words(spec(notes=notes), annotation_prefixes=("nvidia.cdi.k8s.io/",)) == ([], [])


def test_podmans_containers_in_pods_are_not_taken_for_cri_o_s() -> None:
    notes = {"io.kubernetes.cri-o.TTY": "false", "io.kubernetes.cri-o.SandboxID": "x", **LIBPOD}
    assert words(spec(notes={**notes, NOTE: "nvidia.com/gpu=0"})) == (["0"], [])


# --- precedence --------------------------------------------------------------------------------------

OWN = {NOTE: "nvidia.com/gpu=7"}
NIC = {NOTE: "vendor.com/nic=n"}


@pytest.mark.parametrize(
    ("made", "own", "foreign"),
    [
        (spec(DEVICES + "1", mounts=("2",), notes=OWN), ["7"], []),
        (spec(DEVICES + "1", mounts=("2",)), ["2"], []),
        (spec(DEVICES + "1"), ["1"], []),
        # other vendors' devices come besides
        (spec(DEVICES + "1", mounts=("2",), notes=NIC), ["2"], ["vendor.com/nic=n"]),
        (spec(DEVICES + "1", notes=NIC), ["1"], ["vendor.com/nic=n"]),
        (spec(DEVICES + "1", mounts=("cdi/vendor.com/nic/m",)), ["1"], ["vendor.com/nic=m"]),
        (
            spec(DEVICES + "1", mounts=("cdi/vendor.com/nic/m", "2"), notes=NIC),
            ["2"],
            ["vendor.com/nic=n", "vendor.com/nic=m"],
        ),
        (spec("CUDA_VERSION=11", notes=NIC), ["all"], ["vendor.com/nic=n"]),
        # the variable counts only where nobody above it names a GPU
        (spec(DEVICES + "vendor.com/nic=v", mounts=("2",)), ["2"], []),
        (spec(DEVICES + "vendor.com/nic=v", notes=NIC), [], ["vendor.com/nic=n", "vendor.com/nic=v"]),
        (spec(notes=NIC), [], ["vendor.com/nic=n"]),
        # void and nothing are the last word
        (spec(DEVICES + "void", mounts=("2",), notes={**OWN}), [], []),
        (spec(DEVICES, notes=NIC), [], []),
    ],
)  # fmt: skip
def test_who_wins(made: object, own: list[str], foreign: list[str]) -> None:
    assert words(made) == (own, foreign)


def test_what_void_withholds_is_told() -> None:
    request = read_request(spec(DEVICES + "void", notes=NIC), Config())
    assert request.withheld[0][0] == "vendor.com/nic=n"


def test_who_may_not_ask_by_the_environment_gets_no_other_vendors_device_either() -> None:
    request = read_request(spec(DEVICES + "vendor.com/dev=a"), Config(env="never"))
    assert asked(request) == ([], [])
    assert not request.needs_driver
    assert "devices requested by" in request.withheld[0][0]
    assert "starts without them" in request.warnings[0]
    assert words(spec(DEVICES + "vendor.com/dev=a", root=True), env="privileged") == ([], ["vendor.com/dev=a"])


def test_mounts_that_may_not_ask_ask_for_nothing() -> None:
    request = read_request(spec(mounts=("cdi/vendor.com/dev/a",)), Config(volume_mounts=False))
    assert asked(request) == ([], [])
    assert request.withheld


def test_the_management_name_is_known_in_annotations_too() -> None:
    notes = {NOTE: "management.nvidia.com/gpu=all"}
    assert read_request(spec(notes=notes, root=True), Config()).management_origin
    with pytest.raises(Fault, match="CAP_SYS_ADMIN"):
        read_request(spec(notes=notes), Config())


def test_annotations_longer_than_any_engines_are_a_sentence() -> None:
    long = ",".join(f"vendor.com/dev=a{number}" for number in range(20000))
    with pytest.raises(Fault, match="longer than 256 KiB"):
        read_request(spec(notes={NOTE: long}), Config())
    # Of one that does not count nothing is taken apart.
    podmans = {NOTE: long, "io.container.manager": "libpod"}
    assert len(read_request(spec(notes=podmans), Config(env="never")).withheld) == 1


def test_kubelets_annotations_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    loads = fastjson.parse_json

    def counted(data: bytes) -> object:
        nonlocal parsed
        parsed += 1
        return loads(data)

    monkeypatch.setattr(fastjson, "parse_json", counted)
    keys = {f"site.org/{number}": "vendor.com/dev=a" for number in range(100)}
    notes = {**keys, "io.kubernetes.cri-o.Annotations": json.dumps({"site.org/7": "vendor.com/dev=a"})}
    request = read_request(spec(notes=notes), Config(annotation_prefixes=("site.org/",)))
    assert asked(request) == ([], ["vendor.com/dev=a"]) and parsed == 1


def test_another_vendors_device_alone_needs_no_driver() -> None:
    request = read_request(
        spec(DEVICES + "vendor.com/dev=a", "NVIDIA_DRIVER_CAPABILITIES=nonsense"), Config(env_kinds=("vendor.com/dev",))
    )
    assert not request.needs_driver
    assert request.capabilities == ()
