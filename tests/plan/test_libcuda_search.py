"""Which libcuda programs load, over all inputs of the loader. Real containers: tests/e2e/test_loader_order.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.container.image import inspect_image
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats import ldcache
from gpu_oci_hook.model.libcuda_choice import FoundLibcuda, LibcudaChoice
from gpu_oci_hook.plan.libcuda_search import LoaderInputs, find_libcuda

OURS = "/usr/local/nvidia/lib64"
DRIVER = "550.163.01"
OWN = "/usr/lib/x86_64-linux-gnu"


class Scene:
    """A Debian image in which the driver's libraries lie, and what is put before them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs: dict[str, Any] = {
            "search_path": "",
            "cached_path": f"{OURS}/libcuda.so.1",
            "host_files": [f"{OURS}/libcuda.so.{DRIVER}"],
            "links": {f"{OURS}/libcuda.so.1": f"libcuda.so.{DRIVER}"},
        }
        (root / "usr/sbin").mkdir()
        (root / "usr/sbin/ldconfig").write_text("x")
        self.write("/etc/ld.so.conf.d/00-gpu-oci-hook.conf", f"{OURS}\n")
        self.write("/etc/ld.so.conf.d/x86_64-linux-gnu.conf", f"/lib/x86_64-linux-gnu\n{OWN}\n")

    def write(self, path: str, text: str = "ELF") -> None:
        file = self.root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        (self.root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path[1:]).symlink_to(target)

    def add_libcuda(self, directory: str, version: str) -> None:
        self.write(f"{directory}/libcuda.so.{version}")
        self.link(f"{directory}/libcuda.so.1", f"libcuda.so.{version}")

    def find(self, **inputs: Any) -> LibcudaChoice:
        with Rootfs(str(self.root)) as rootfs:
            image = inspect_image(rootfs, "x86_64")
            return find_libcuda(
                LoaderInputs(image, rootfs, **{"spec": {}, **self.inputs, **inputs}), driver_version=DRIVER
            )

    def find_files(self, **inputs: Any) -> tuple[str, str]:
        choice = self.find(**inputs)
        return tuple(found.file if found else "" for found in (choice.at_start, choice.after_ldconfig))  # type: ignore[return-value]


@pytest.fixture
def scene(debian_image: Path) -> Iterator[Scene]:
    return Scene(debian_image)  # type: ignore[return-value]


HOST = f"{OURS}/libcuda.so.{DRIVER}"


def test_a_plain_image_has_the_hosts_at_any_time(scene: Scene) -> None:
    choice = scene.find()
    assert choice.at_start is not None and choice.after_ldconfig is not None
    assert (choice.at_start.file, choice.at_start.found_by) == (HOST, "/etc/ld.so.cache")
    assert (choice.after_ldconfig.file, choice.after_ldconfig.found_by) == (HOST, "/etc/ld.so.conf")
    assert (choice.at_start.owner, choice.at_start.version) == ("host", DRIVER)
    assert choice.list_warnings() == []
    assert choice.describe() == [f"{HOST} (the host's, {DRIVER}; found by /etc/ld.so.cache)"]


def test_ld_library_path_comes_first_and_both_versions_are_named(scene: Scene) -> None:
    scene.add_libcuda("/usr/local/cuda-12.6/compat", "535.183.06")
    scene.link("/usr/local/cuda", "cuda-12.6")
    choice = scene.find(search_path="/nowhere:/usr/local/cuda/compat")
    assert choice.at_start is not None
    assert choice.at_start.path == "/usr/local/cuda/compat/libcuda.so.1"
    assert choice.at_start.file == "/usr/local/cuda-12.6/compat/libcuda.so.535.183.06"
    (warning,) = choice.list_warnings()
    assert "535.183.06" in warning and DRIVER in warning and "error 803" in warning
    assert warning.endswith("Remove /usr/local/cuda/compat from LD_LIBRARY_PATH")


def test_a_directory_of_ours_before_another_one_wins(scene: Scene) -> None:
    scene.add_libcuda("/opt/conda/lib", "535.183.06")
    assert scene.find_files(search_path=f"{OURS}:/opt/conda/lib") == (HOST, HOST)


def test_an_empty_entry_is_the_working_directory(scene: Scene) -> None:
    scene.add_libcuda("/work", "535.183.06")
    for value in (":/x", "/x:", ".", "/x::/y"):
        found = scene.find_files(search_path=value, spec={"process": {"cwd": "/work"}})[0]
        assert found.replace("/./", "/") == "/work/libcuda.so.535.183.06"
    assert scene.find_files(search_path="", spec={"process": {"cwd": "/work"}})[0] == HOST


def test_a_drop_in_that_sorts_before_ours_wins_after_ldconfig_unless_ours_is_included_first(scene: Scene) -> None:
    scene.add_libcuda("/usr/local/cuda/compat", "575.57.08")
    scene.write("/etc/ld.so.conf.d/00-cuda-compat.conf", "/usr/local/cuda/compat\n")
    image = "/usr/local/cuda/compat/libcuda.so.575.57.08"
    assert scene.find_files() == (HOST, image)
    (warning,) = scene.find().list_warnings()
    assert warning.startswith("after `ldconfig` in the container programs load the image's libcuda 575.57.08")
    written = b"include /etc/ld.so.conf.d/00-gpu-oci-hook.conf\ninclude /etc/ld.so.conf.d/*.conf\n"
    assert scene.find_files(written_files={"/etc/ld.so.conf": written}) == (HOST, HOST)


def test_in_one_directory_ldconfig_takes_the_newest_file_and_the_start_what_the_link_says(scene: Scene) -> None:
    scene.add_libcuda("/opt/drivers", "470.57.02")
    scene.write("/opt/drivers/libcuda.so.535.183.06")
    scene.write("/opt/drivers/libcuda.so.999.1", "")  # empty: passed over
    scene.write("/etc/ld.so.conf.d/zz.conf", "/opt/drivers\n")
    found = scene.find_files(search_path="/opt/drivers")
    assert found == ("/opt/drivers/libcuda.so.470.57.02", "/opt/drivers/libcuda.so.535.183.06")


def test_a_stub_has_no_link_until_ldconfig_makes_one(scene: Scene) -> None:
    scene.write("/usr/local/cuda/lib64/stubs/libcuda.so")
    scene.write("/etc/ld.so.conf.d/zz.conf", "/usr/local/cuda/lib64/stubs\n")
    choice = scene.find(search_path="/usr/local/cuda/lib64/stubs")
    assert choice.at_start is not None and choice.at_start.file == HOST
    assert choice.after_ldconfig is not None and choice.after_ldconfig.is_stub
    (warning,) = choice.list_warnings()
    assert "a stub libcuda" in warning and "error 34" in warning


def test_without_ldconfig_or_with_a_read_only_root_there_is_no_later(scene: Scene) -> None:
    assert scene.find(writable=False).after_ldconfig is None
    assert scene.find(spec={"root": {"readonly": True}}).after_ldconfig is None
    (scene.root / "usr/sbin/ldconfig").unlink()
    assert scene.find().after_ldconfig is None


def test_an_images_cache_that_is_not_written_counts_as_it_is_and_then_the_default_directories(scene: Scene) -> None:
    scene.add_libcuda("/opt/old", "470.57.02")
    rows = [("libcuda.so.1", "/opt/old/libcuda.so.1", 0x303), ("libcuda.so.1", "/opt/32/libcuda.so.1", 0x003)]
    (scene.root / "etc/ld.so.cache").write_bytes(ldcache.dump_ld_cache(ldcache.merge_ld_cache(None, rows)))
    assert scene.find_files(cached_path=None)[0] == "/opt/old/libcuda.so.470.57.02"
    (scene.root / "etc/ld.so.cache").unlink()
    assert scene.find(cached_path=None).at_start is None
    assert "finds no libcuda.so.1" in scene.find(cached_path=None).list_warnings()[0]
    scene.add_libcuda(OWN, "470.57.02")
    assert scene.find_files(cached_path=None)[0] == f"{OWN}/libcuda.so.470.57.02"


def test_libraries_for_32_bit_programs_are_passed_over(scene: Scene) -> None:
    scene.add_libcuda("/usr/lib/i386-linux-gnu", "470.57.02")
    scene.add_libcuda("/opt/32", "470.57.02")
    path = "/usr/lib/i386-linux-gnu:/opt/32"
    assert scene.find_files(search_path=path, directories32=["/opt/32"]) == (HOST, HOST)


def test_a_directory_in_a_mount_that_is_not_made_yet_is_named_as_unknown(scene: Scene) -> None:
    choice = scene.find(search_path="/data/lib", is_hidden=lambda path: path.startswith("/data/"))
    assert choice.unknown_directories == ("/data/lib",)
    assert choice.at_start is not None and choice.at_start.file == HOST
    assert "not searched, as it lies in a mount or is not plain: /data/lib" in choice.describe()
    path = "/data/lib/libcuda.so.1"
    own = scene.find(search_path="/data/lib", is_hidden=lambda path: path == path, is_mounted=lambda at: at == path)
    assert own.at_start is not None and (own.at_start.owner, own.at_start.file) == ("mount", path)
    assert own.list_warnings() == []


def test_an_image_that_names_thousands_of_directories_takes_no_time(scene: Scene) -> None:
    many = ":".join(f"/d{number}" for number in range(20000))
    scene.write("/etc/ld.so.conf.d/zz.conf", many.replace(":", "\n"))
    scene.write("/etc/ld.so.conf.d/zzz.conf", "include /etc/ld.so.conf.d/*.conf\n" * 100)
    for number in range(50):
        scene.write(f"/w/{number}/x")
    scene.write("/etc/ld.so.conf.d/zy.conf", "include /*/*/*/*/*/*\n" * 20)
    start = time.process_time()
    choice = scene.find(search_path=many)
    assert time.process_time() - start < 3
    assert choice.at_start is not None and choice.at_start.file == HOST
    assert choice.unknown_directories == ("LD_LIBRARY_PATH after its directory 1000",)


def test_names_of_an_image_cannot_break_a_line(scene: Scene) -> None:
    scene.add_libcuda("/opt/a\nb", "470.57.02")
    choice = scene.find(search_path="/opt/a\nb")
    assert all("\n" not in text for text in [*choice.describe(), *choice.list_warnings()])
    assert len(choice.list_warnings()) == 1


def test_links_that_go_round_lead_nowhere(scene: Scene) -> None:
    scene.link("/opt/x/libcuda.so.1", "libcuda.so.2")
    scene.link("/opt/x/libcuda.so.2", "libcuda.so.1")
    assert scene.find_files(search_path="/opt/x")[0] == HOST


@pytest.mark.parametrize(
    ("path_file", "expected"),
    [
        (None, "/usr/lib/libcuda.so.470.57.02"),
        ("/opt/conda/lib:/usr/lib", "/opt/conda/lib/libcuda.so.535.183.06"),
        (f"{OURS}\n/opt/conda/lib\n", HOST),
    ],
)
def test_musl_reads_its_path_file(image_dir: Path, path_file: str | None, expected: str) -> None:
    for name in ("lib", "usr/lib", "etc"):
        (image_dir / name).mkdir(parents=True)
    (image_dir / "lib/ld-musl-x86_64.so.1").touch()
    (image_dir / "etc/alpine-release").touch()
    if path_file is not None:
        (image_dir / "etc/ld-musl-x86_64.path").write_text(path_file)
    scene = Scene(image_dir)
    scene.add_libcuda("/usr/lib", "470.57.02")
    scene.add_libcuda("/opt/conda/lib", "535.183.06")
    choice = scene.find()
    assert choice.at_start is not None and choice.at_start.file == expected
    assert choice.at_start.found_by == "/etc/ld-musl-x86_64.path"
    assert choice.after_ldconfig is None


@pytest.mark.parametrize(
    ("version", "file", "words"),
    [
        ("535.1", "/x/libcuda.so.535.1", "is older and fails with CUDA error 803"),
        ("575.1", "/x/libcuda.so.575.1", "is newer and fails with CUDA error 803 or 804 unless"),
        (DRIVER, f"/x/libcuda.so.{DRIVER}", "is of the same version"),
        ("", "/x/libcuda.so.1.1", "error 803 or 804 if it is of another version"),
        ("", "/x/stubs/libcuda.so", "error 34"),
    ],
)
def test_the_consequence_follows_from_the_versions(version: str, file: str, words: str) -> None:
    found = FoundLibcuda("/x/libcuda.so.1", file, version, "image", "LD_LIBRARY_PATH")
    choice = LibcudaChoice(found, found, driver_version=DRIVER, wanted="host", reason="")
    (warning,) = choice.list_warnings()  # once, though it is the same later
    assert words in warning and f"not the host's {DRIVER}" in warning


def test_the_hosts_libcuda_in_place_of_a_wanted_compat_library_is_warned_about() -> None:
    found = FoundLibcuda(f"{OURS}/libcuda.so.1", HOST, DRIVER, "host", "LD_LIBRARY_PATH")
    choice = LibcudaChoice(found, None, driver_version=DRIVER, wanted="image", reason="575 > 550")
    (warning,) = choice.list_warnings()
    assert "and not the image's CUDA compat library" in warning
    assert choice.describe()[-1] == "575 > 550"


def test_the_error_of_a_compat_library_is_the_one_that_the_decision_names() -> None:
    found = FoundLibcuda("/c/compat/libcuda.so.1", "/c/compat/libcuda.so.575.1", "575.1", "image", "LD_LIBRARY_PATH")
    error = "is newer and fails with CUDA error 804 on this GPU"
    choice = LibcudaChoice(found, None, driver_version=DRIVER, wanted="host", reason="", compat_error=error)
    (warning,) = choice.list_warnings()
    assert f"which {error}, and not the host's {DRIVER}" in warning
