"""The loader's files; where ldconfig is at hand, it is the judge."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_oci_hook.container.image import Image, inspect_image
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats import elf_builder, ldcache
from gpu_oci_hook.plan import loader_files

DIRECTORY = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = [(n, f"{DIRECTORY}/{n}", "x86_64") for n in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")]


def entries(data: bytes) -> dict[str, str]:
    return {entry.name: entry.path for entry in ldcache.parse_ld_cache(data).entries}


def old_cache() -> bytes:
    rows = [("libc.so.6", "/lib/libc.so.6", 0x303), ("libcuda.so.1", "/opt/stale/libcuda.so.1", 0x303)]
    return ldcache.dump_ld_cache(ldcache.merge_ld_cache(None, rows))


def test_an_images_cache_is_merged_and_ours_wins() -> None:
    result = loader_files.build_loader_files(Image(ld_cache=old_cache()), LIBRARIES, [DIRECTORY])
    written = dict(result.files)
    found = entries(written["/etc/ld.so.cache"])
    assert found == {"libc.so.6": "/lib/libc.so.6", **{n: p for n, p, _ in LIBRARIES}}
    assert written[loader_files.LD_CONF_DROP_IN].decode().splitlines()[1:] == [DIRECTORY]
    assert set(written) == {"/etc/ld.so.cache", loader_files.LD_CONF_DROP_IN}
    assert result.notes == [] and not result.needs_ld_library_path


def test_again_gives_the_same_bytes() -> None:
    first = dict(
        loader_files.build_loader_files(Image(ld_cache=old_cache()), LIBRARIES, [DIRECTORY, "/x", DIRECTORY]).files
    )
    again = Image(ld_cache=first["/etc/ld.so.cache"])
    assert dict(loader_files.build_loader_files(again, LIBRARIES, [DIRECTORY, "/x"]).files) == first
    musl = dict(loader_files.build_loader_files(Image(libc="musl"), LIBRARIES, ["/new"]).files)
    (content,) = musl.values()
    assert (
        dict(
            loader_files.build_loader_files(Image(libc="musl", musl_path_content=content.decode()), [], ["/new"]).files
        )
        == musl
    )


def test_the_first_of_two_libraries_wins() -> None:
    both = [("libcuda.so.1", "/compat/libcuda.so.1", "x86_64"), *LIBRARIES]
    both.append(("libcuda.so.1", "/32/libcuda.so.1", "i386"))
    result = loader_files.build_loader_files(Image(), both, ["/compat", DIRECTORY])
    found = [(e.path, e.flags) for e in ldcache.parse_ld_cache(result.files[0][1]).entries if e.name == "libcuda.so.1"]
    assert sorted(found) == [("/32/libcuda.so.1", 0x003), ("/compat/libcuda.so.1", 0x303)]
    assert result.files[1][1].decode().splitlines()[1:] == ["/compat", DIRECTORY]


@pytest.mark.parametrize("data", [b"", b"garbage", b"glibc-ld.so.cache1.1", b"\0" * 5000, b"ld.so-1.7.0\0"])
def test_a_corrupt_cache_is_replaced_and_said(data: bytes) -> None:
    result = loader_files.build_loader_files(Image(ld_cache=data), LIBRARIES, [DIRECTORY])
    assert set(entries(result.files[0][1])) == {n for n, _, _ in LIBRARIES}
    assert len(result.notes) == 1 and "replaced" in result.notes[0] and not result.needs_ld_library_path


def test_an_odd_cache_is_replaced_and_said() -> None:
    result = loader_files.build_loader_files(Image(ld_cache_unreadable=True), LIBRARIES, [DIRECTORY])
    assert set(entries(result.files[0][1])) == {n for n, _, _ in LIBRARIES}
    assert "replaced" in result.notes[0]


def test_a_cache_of_the_future_is_left_alone() -> None:
    result = loader_files.build_loader_files(
        Image(ld_cache=b"glibc-ld.so.cache2.0\n" + b"\0" * 100), LIBRARIES, [DIRECTORY]
    )
    assert [path for path, _ in result.files] == [loader_files.LD_CONF_DROP_IN]
    assert result.needs_ld_library_path and "unknown version 2.0" in result.notes[0]


def test_a_library_that_no_cache_can_hold_leaves_the_cache_alone() -> None:
    result = loader_files.build_loader_files(
        Image(ld_cache=old_cache()), [("libcuda.so.1", "/a\0b", "x86_64")], [DIRECTORY]
    )
    assert [path for path, _ in result.files] == [loader_files.LD_CONF_DROP_IN]
    assert result.needs_ld_library_path and len(result.notes) == 1


def test_an_image_without_a_configuration_gets_one_line() -> None:
    written = dict(loader_files.build_loader_files(Image(ld_conf=""), LIBRARIES, [DIRECTORY]).files)
    assert written["/etc/ld.so.conf"] == b"include /etc/ld.so.conf.d/*.conf\n"


def test_musl_defaults_are_repeated_in_a_new_file() -> None:
    result = loader_files.build_loader_files(Image(libc="musl"), LIBRARIES, ["/usr/lib"])
    assert result.files == [("/etc/ld-musl-x86_64.path", b"/usr/lib\n/lib\n/usr/local/lib\n")]
    result = loader_files.build_loader_files(Image(libc="musl", arch="aarch64"), [], ["/opt/x"])
    assert result.files == [("/etc/ld-musl-aarch64.path", b"/opt/x\n/lib\n/usr/local/lib\n/usr/lib\n")]


@pytest.mark.parametrize("text", ["/lib:/mine", "/mine\n", "", "/mine:\n:/lib\0rest", "/opt/conda/lib\n/mine\n"])
def test_entries_of_an_existing_musl_file_are_kept_behind_ours(text: str) -> None:
    image = Image(libc="musl", musl_path_content=text)
    ((_, content),) = loader_files.build_loader_files(image, [], ["/usr/lib", "/mine"]).files
    assert content == b"/usr/lib\n/mine\n" + text.partition("\0")[0].encode()
    again = Image(libc="musl", musl_path_content=content.decode())
    assert loader_files.build_loader_files(again, [], ["/usr/lib", "/mine"]).files == [(_, content)]


INCLUDE_ALL = "include /etc/ld.so.conf.d/*.conf\n"
INCLUDE_OURS = f"include {loader_files.LD_CONF_DROP_IN}\n"


@pytest.mark.parametrize(
    ("ld_conf", "names", "written"),
    [
        (INCLUDE_ALL, (), None),
        (INCLUDE_ALL, ("libc.conf", "x86_64-linux-gnu.conf", "fakeroot-x86_64-linux-gnu.conf", "10_x.conf"), None),
        ("# a comment\n\n include  /etc/ld.so.conf.d/*.conf # all\n/opt/lib\n", ("nvidia.conf",), None),
        ("include ld.so.conf.d/*.conf\n", ("bind-export-x86_64.conf", "00-cuda-compat.conf.bak"), None),
        (INCLUDE_OURS + "/opt/lib\n", ("00-cuda-compat.conf",), None),
        (INCLUDE_ALL, ("00-cuda-compat.conf", "libc.conf"), INCLUDE_OURS + INCLUDE_ALL),
        (INCLUDE_ALL, ("000_cuda.conf",), INCLUDE_OURS + INCLUDE_ALL),  # before ours in locales such as en_US
        (INCLUDE_ALL, ("-x.conf",), INCLUDE_OURS + INCLUDE_ALL),
        ("/opt/conda/lib\n" + INCLUDE_ALL, (), INCLUDE_OURS + "/opt/conda/lib\n" + INCLUDE_ALL),
        ("include /etc/cuda/*.conf\n", (), INCLUDE_OURS + "include /etc/cuda/*.conf\n"),
        ("", (), INCLUDE_ALL),
        ("", ("00-cuda-compat.conf",), INCLUDE_OURS + INCLUDE_ALL),
    ],
)
def test_ldconfig_reads_ours_first_whatever_the_image_has(
    ld_conf: str, names: tuple[str, ...], written: str | None
) -> None:
    image = Image(ld_conf=ld_conf, ld_conf_names=names)
    files = dict(loader_files.build_loader_files(image, LIBRARIES, [DIRECTORY]).files)
    content = files.get("/etc/ld.so.conf")
    assert (None if content is None else content.decode()) == written
    again = Image(ld_conf=written or ld_conf, ld_conf_names=(*names, "00-gpu-oci-hook.conf"))
    assert "/etc/ld.so.conf" not in dict(loader_files.build_loader_files(again, LIBRARIES, [DIRECTORY]).files)


def test_a_configuration_that_cannot_be_read_is_left_alone() -> None:
    files = dict(loader_files.build_loader_files(Image(ld_conf=None), LIBRARIES, [DIRECTORY]).files)
    assert set(files) == {"/etc/ld.so.cache", loader_files.LD_CONF_DROP_IN}


def test_no_loader_at_all_needs_the_environment() -> None:
    result = loader_files.build_loader_files(Image(libc="none"), LIBRARIES, [DIRECTORY])
    assert result.files == [] and result.needs_ld_library_path and len(result.notes) == 1


def test_ldconfig_reads_what_we_write(tmp_path: Path) -> None:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    assert ldconfig is not None
    system = Path("/etc/ld.so.cache").read_bytes()
    result = loader_files.build_loader_files(Image(ld_cache=system), LIBRARIES, [DIRECTORY])
    cache = tmp_path / "cache"
    cache.write_bytes(result.files[0][1])
    text = subprocess.run([ldconfig, "-p", "-C", str(cache)], capture_output=True, text=True, check=True).stdout
    for name, path, _ in LIBRARIES:
        assert f"\t{name} (libc6,x86-64) => {path}\n" in text
    assert "libc.so.6 (libc6,x86-64)" in text


@pytest.mark.root
def test_a_later_ldconfig_keeps_our_directories_first(debian_image: Path) -> None:
    """The system's own ldconfig over a root (-r) with two libcudas, after our files were written."""
    for directory in ("opt/gpu", "usr/lib/x86_64-linux-gnu"):
        (debian_image / directory).mkdir(parents=True, exist_ok=True)
        (debian_image / directory / "libcuda.so.550.54").write_bytes(
            elf_builder.build_shared_object(soname="libcuda.so.1", symbols=["cuInit"])
        )
    (debian_image / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n/usr/lib/x86_64-linux-gnu\n")
    with Rootfs(str(debian_image)) as container_root:
        facts = inspect_image(container_root, "x86_64")
        for path, content in loader_files.build_loader_files(
            facts, [("libcuda.so.1", "/opt/gpu/libcuda.so.1", "x86_64")], ["/opt/gpu"]
        ).files:
            assert container_root.write_file(path, content) is True
        container_root.make_symlink("/opt/gpu/libcuda.so.1", "libcuda.so.550.54")
    before = entries((debian_image / "etc/ld.so.cache").read_bytes())
    subprocess.run(["/sbin/ldconfig", "-r", str(debian_image)], check=True, capture_output=True)
    after = ldcache.parse_ld_cache((debian_image / "etc/ld.so.cache").read_bytes()).entries
    first = next(entry.path for entry in after if entry.name == "libcuda.so.1")
    assert before["libcuda.so.1"] == first == "/opt/gpu/libcuda.so.1"
    assert os.readlink(debian_image / "opt/gpu/libcuda.so.1") == "libcuda.so.550.54"
