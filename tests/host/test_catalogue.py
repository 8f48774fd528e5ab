"""The catalogue is data that a packager may edit: it says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.driver import catalogue

SEARCH_PATHS = "[search-paths]\ncaches=[]\nlibraries=[]\nsubdirectories=[]\nbinaries=[]\nfirmware=[]\n"


def test_the_catalogue_of_ours_is_right() -> None:
    found = catalogue.load_catalogue()
    assert found.libraries["libcuda.so"].capability == "compute"
    assert found.libraries["libnvidia-ml.so"].capability == "utility"
    assert found.required_libraries == [("utility", "libnvidia-ml.so.1"), ("compute", "libcuda.so.1")]
    assert not set(found.libraries) & set(found.withheld)
    assert all(name.endswith(".so") for name in [*found.libraries, *found.withheld])
    used = {entry.capability for entry in [*found.libraries.values(), *found.entries]}
    assert used == set(catalogue.CATALOGUE_CAPABILITIES)
    for entry in found.entries:
        assert entry.kind == "binary" or entry.container.startswith("/")


@pytest.mark.parametrize("capability", ["utility", "compute"])
def test_a_required_library_belongs_to_the_capability_that_requires_it(capability: str) -> None:
    found = catalogue.load_catalogue()
    for soname in [soname for of, soname in found.required_libraries if of == capability]:
        assert found.libraries[catalogue.library_stem(soname)].capability == capability


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[library]", "is not valid TOML"),
        ("\x00", "is not valid TOML"),
        ("", "search-paths.caches: it is missing"),
        ("[[gizmo]]\n", "gizmo"),
        ("library = 3\n", "is not one of library"),
        ("library = [3]\n", "it is not a table"),
        ('[[library]]\ncapability="compute"\n', 'library 1: key "names" is missing'),
        ('[[library]]\ncapability="computing"\nnames=[]\n', '"computing" is not a capability'),
        (
            '[[library]]\ncapability="compute"\nnames=["x.so"]\ncolour="red"\n',
            'unknown key "colour"; expected one of capability, links, names',
        ),
        ('[[library]]\ncapability="compute"\nnames="x.so"\n', "not a list of strings"),
        ('[[library]]\ncapability=7\nnames=["x.so"]\n', "not a string"),
        ('[[library]]\ncapability=""\nnames=["x.so", "x.so"]\n', "x.so is listed twice"),
        ('[[library]]\ncapability=""\nnames=["x.so.1"]\n', 'library 1: "x.so.1" has a version; write "x.so"'),
        ("search-paths = 4\n", "it is not a table"),
        ("[search-paths]\ncaches=[1]\n", "search-paths.caches: it is not a list"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    with pytest.raises(Fault) as caught:
        catalogue.load_catalogue(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_catalogue_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="cannot be read: it is missing"):
        catalogue.load_catalogue(str(tmp_path / "nothing"))


def test_the_least_catalogue_is_search_paths_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(SEARCH_PATHS)
    assert catalogue.load_catalogue(str(path)).entries == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcuda.so.1", "libcuda.so"),
        ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so"),
        ("nvidia_drv.so", "nvidia_drv.so"),
        ("x", "x"),
    ],
)
def test_the_stem_of_a_library_has_no_version(name: str, expected: str) -> None:
    assert catalogue.library_stem(name) == expected
