"""The order of directories in /etc/ld.so.conf, with the real ldconfig as the judge."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_oci_hook.formats.ld_conf import expand_glob, list_ld_conf_directories

FILES: dict[str, dict[str, str]] = {
    "one include": {"ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n", "ld.so.conf.d/b.conf": "/b\n",
                    "ld.so.conf.d/a.conf": "/a\n", "ld.so.conf.d/c.txt": "/c\n"},
    "relative, two patterns, tabs": {"ld.so.conf": "include\tld.so.conf.d/a.conf ld.so.conf.d/b*.conf\n/c\n",
                                     "ld.so.conf.d/a.conf": "/a", "ld.so.conf.d/b1.conf": "/b\n"},
    "comments and blanks": {"ld.so.conf": "# /a\n\n  /b/ # b\n\t/c//\ninclude\nincluded\n"},
    "nested, with a circle": {"ld.so.conf": "/a\ninclude x/one\n/b\n", "x/one": "/c\ninclude two\n", "x/two": "/d\n"},
    "twice": {"ld.so.conf": "/b\n/a\n/b\n"},
    "hwcap and a link to the same": {"ld.so.conf": "hwcap 0 nosegneg\n/a\nHWCAP 1 x\n/c\n"},
    "classes and question marks": {"ld.so.conf": "include ld.so.conf.d/[ab]?.conf ld.so.conf.d/*x*\n",
                                   "ld.so.conf.d/a1.conf": "/a\n", "ld.so.conf.d/b.conf": "/b\n",
                                   "ld.so.conf.d/.x": "/d\n", "ld.so.conf.d/yxz": "/c\n"},
}  # fmt: skip


def list_directories(root: Path) -> list[str]:
    """What our parser says about a root."""

    def read_file(path: str) -> str:
        file = root / path[1:]
        return file.read_text() if file.is_file() else ""

    def list_names(path: str) -> list[str]:
        directory = root / path[1:]
        return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []

    return list_ld_conf_directories("/etc/ld.so.conf", read_file, list_names)


@pytest.mark.root
@pytest.mark.parametrize("case", FILES)
def test_the_order_is_that_of_ldconfig(tmp_path: Path, case: str) -> None:
    for name, text in FILES[case].items():
        path = tmp_path / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in "abcd":
        (tmp_path / name).mkdir()
    (tmp_path / "sbin").mkdir()
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    assert program is not None
    shutil.copy2(program, tmp_path / "sbin/ldconfig")
    # In a chroot, since ldconfig -r takes no relative pattern.
    done = subprocess.run(
        ["chroot", str(tmp_path), "/sbin/ldconfig", "-v", "-N", "-X"], capture_output=True, text=True, check=True
    )
    judged = [line.partition(": (from ")[0] for line in done.stdout.splitlines() if line.startswith("/")]
    existing = [path for path in list_directories(tmp_path) if (tmp_path / path[1:]).is_dir()]
    assert existing == [path for path in judged if path in ("/a", "/b", "/c", "/d")]


def test_a_type_after_a_directory_is_cut_as_older_versions_do(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/a\n/d=libc6\n")
    assert list_directories(tmp_path) == ["/a", "/d"]


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/a\ninclude ld.so.conf ld.so.conf\n")
    assert list_directories(tmp_path) == ["/a"]


def test_a_pattern_without_wildcards_is_a_path_whether_it_exists_or_not() -> None:
    assert expand_glob("/etc/x.conf", lambda path: []) == ["/etc/x.conf"]
    assert expand_glob("/*/x", lambda path: ["a", "b"] if path == "/" else []) == ["/a/x", "/b/x"]
