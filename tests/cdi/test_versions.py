"""What version a file needs (the cases of the reference library's own tests), and what engines read."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_oci_hook.cdi.spec import versions
from gpu_oci_hook.errors import Fault
from support.valid_specs import FULL_SPEC, SPECS_BY_VERSION, minimal_spec, with_change


def common(**edits: Any) -> dict[str, Any]:
    return minimal_spec() | {"containerEdits": edits}


@pytest.mark.parametrize(
    ("doc", "spec", "version", "why"),
    [
        ("no version-specific features", minimal_spec(), "0.3.0", ""),
        ("mount type", common(mounts=[{"type": "bind"}]), "0.4.0", "containerEdits.mounts[0].type: type"),
        ("empty mount type", common(mounts=[{"type": ""}]), "0.3.0", ""),
        ("a node's type is none of a mount", common(deviceNodes=[{"type": "c"}]), "0.3.0", ""),
        (
            "device node host path",
            common(deviceNodes=[{"hostPath": "/dev/a"}]),
            "0.5.0",
            "containerEdits.deviceNodes[0].hostPath: hostPath",
        ),
        ("empty host path", common(deviceNodes=[{"hostPath": ""}]), "0.3.0", ""),
        (
            "numeric device name",
            with_change(minimal_spec(), "devices", 0, "name", to="0example"),
            "0.5.0",
            "devices[0].name: a device name that begins with a digit",
        ),
        ("annotation", minimal_spec() | {"annotations": {"a/b": "c"}}, "0.6.0", "annotations: annotations"),
        ("empty annotations", minimal_spec() | {"annotations": {}}, "0.3.0", ""),
        (
            "annotation of a device",
            with_change(minimal_spec(), "devices", 0, "annotations", to={"a": "b"}),
            "0.6.0",
            "devices[0].annotations: annotations",
        ),
        ("dot in class", minimal_spec() | {"kind": "a.com/b.c"}, "0.6.0", "kind: a dot in the class"),
        ("dot in vendor", minimal_spec() | {"kind": "a.com/b"}, "0.3.0", ""),
        ("additional GIDs", common(additionalGids=[1]), "0.7.0", "containerEdits.additionalGids: additionalGids"),
        ("empty additional GIDs", common(additionalGids=[]), "0.3.0", ""),
        ("Intel RDT", common(intelRdt={}), "0.7.0", "containerEdits.intelRdt: intelRdt"),
        ("no Intel RDT", common(intelRdt=None), "0.3.0", ""),
        (
            "Intel RDT schemata",
            common(intelRdt={"schemata": ["L3:0=ff"]}),
            "1.1.0",
            "containerEdits.intelRdt.schemata: schemata",
        ),
        ("empty Intel RDT schemata count, too", common(intelRdt={"schemata": []}), "1.1.0", None),
        ("Intel RDT monitoring", common(intelRdt={"enableMonitoring": True}), "1.1.0", None),
        ("no Intel RDT monitoring", common(intelRdt={"enableMonitoring": False}), "0.7.0", None),
        ("network device", common(netDevices=[{}]), "1.1.0", "containerEdits.netDevices: netDevices"),
        ("no network device", common(netDevices=[]), "0.3.0", ""),
        (
            "device-scoped feature",
            minimal_spec(additionalGids=[1]),
            "0.7.0",
            "devices[0].containerEdits.additionalGids: additionalGids",
        ),
        ("newest feature wins", FULL_SPEC, "1.1.0", "devices[0].containerEdits.netDevices: netDevices"),
        ("not a file", ["a"], "0.3.0", ""),
        ("wrong everywhere", {"devices": 3, "annotations": 1, "containerEdits": [{"env": 1}]}, "0.6.0", None),
    ],
)
def test_the_least_version_is_that_of_what_is_used(doc: str, spec: object, version: str, why: str | None) -> None:
    needed, because = versions.find_minimum_version(spec)
    assert needed == version, doc
    assert why is None or because == why


def test_of_several_reasons_for_one_version_the_first_in_the_file_is_named() -> None:
    spec = minimal_spec(
        deviceNodes=[{"path": "/a"}, {"path": "/b", "hostPath": "/c"}, {"path": "/d", "hostPath": "/e"}]
    )
    assert versions.find_minimum_version(spec) == (
        "0.5.0",
        "devices[0].containerEdits.deviceNodes[1].hostPath: hostPath",
    )
    assert len(versions.find_versioned_features(spec)) == 2


@pytest.mark.parametrize("version", SPECS_BY_VERSION)
def test_what_a_version_brought_needs_it(version: str) -> None:
    assert versions.find_minimum_version(SPECS_BY_VERSION[version])[0] == {"0.8.0": "0.3.0", "1.0.0": "0.3.0"}.get(
        version, version
    )


@pytest.mark.parametrize(
    ("target", "version"),
    [
        ("docker-25", "0.6.0"),
        ("docker-25.0.3", "0.6.0"),
        ("docker-26", "0.6.0"),
        ("docker-26.1", "0.7.0"),
        ("docker-28", "0.7.0"),
        ("docker-28.3", "1.0.0"),
        ("docker-99", "1.1.0"),
        ("containerd-1.7", "0.5.0"),
        ("containerd-1.7.15", "0.5.0"),
        ("containerd-1.7.16", "0.7.0"),
        ("containerd-1.7.30", "0.7.0"),
        ("containerd-2.1", "0.8.0"),
        ("crio-1.26", "0.5.0"),
        ("CRI-O-1.29", "0.5.0"),
        ("cri-o-1.30.2", "0.7.0"),
        ("podman-4.3", "0.5.0"),
        ("podman-4.3.1", "0.5.0"),
        ("podman-5.0", "0.6.0"),
        ("podman-6", "1.0.0"),
    ],
)
def test_an_engine_reads_what_the_nearest_one_reads_that_is_not_newer(target: str, version: str) -> None:
    assert versions.find_engine_max_version(target) == version


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("docker-24.0.9", "docker 24.0.9 does not read CDI files. docker reads them from version 25 on"),
        ("containerd-1.6", "containerd 1.6 does not read CDI files. containerd reads them from version 1.7 on"),
        ("podman", "Use one of docker, containerd, crio, podman and a version, such as podman-4.1"),
        ("pdoman-4", "and a version, such as podman-4.1"),
        ("docker-latest", "such as docker-25"),
        ("docker-25-", "such as docker-25"),
        ("docker-1.2.3.4", "such as docker-25"),
        ("docker-²", "such as docker-25"),
        ("", "such as docker-25"),
        ("x" * 9999, "such as docker-25"),
    ],
)
def test_what_is_no_engine_is_a_fault_that_names_those_there_are(target: str, said: str) -> None:
    with pytest.raises(Fault) as caught:
        versions.find_engine_max_version(target)
    assert str(caught.value).endswith(said)


def test_the_table_of_engines_grows_with_their_versions_and_names_known_ones() -> None:
    for rows in versions.load_engine_versions().values():
        read = [versions.KNOWN_VERSIONS.index(version) for version in rows.values()]
        assert read == sorted(read) and len(set(read)) == len(read)


def test_the_engines_that_read_a_version_are_named_with_their_first() -> None:
    assert versions.list_reading_engines("0.7.0") == ["docker 26.1", "containerd 1.7.16", "crio 1.30", "podman 5.1"]
    assert versions.list_reading_engines("0.3.0") == ["docker 25", "containerd 1.7", "crio 1.26", "podman 4.1"]
    assert versions.list_reading_engines("1.1.0") == ["docker 29.7", "containerd 2.4", "crio 1.36"]


def test_versions_compare_as_numbers() -> None:
    assert versions.is_newer_version("0.10.0", "0.9.0") and versions.is_newer_version("v1.0.0", "0.8.0")
    assert not versions.is_newer_version("v0.5.0", "0.5.0") and not versions.is_newer_version("junk", "0.3.0")
