"""The loader's cache: the system's own ldconfig is the judge of what we read and write."""

from __future__ import annotations

import os
import subprocess
import time
from functools import cmp_to_key
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import elf_builder, ldcache
from gpu_oci_hook.formats.architectures import ARCHITECTURES

LDCONFIG = "/sbin/ldconfig"
X86 = ARCHITECTURES["x86_64"].cache_flags
I386 = ARCHITECTURES["i386"].cache_flags
NAMES = [
    *(
        "libcuda.so.1",
        "libcuda.so",
        "libnvidia-ml.so.1",
        "libc.so.6",
        "libm.so.6",
        "libz.so.1",
        "libstdc++.so.6",
    ),
    *(
        "libfoo-2.so.10",
        "libfoo-2.so.9",
        "libfoo-10.so.1",
        "libfooA.so.1",
        "lib_x.so",
        "libX11.so.6",
        "libX11-xcb.so.1",
    ),
    *(
        "libabsl_city.so.20220623",
        "libnvidia-glcore.so.550.163.01",
        "libnvidia-glcore.so.550.54.14",
        "lib1.so",
    ),
]


def ldconfig(root: Path, *arguments: str) -> bytes:
    """A cache made by the system's ldconfig for a root of its own."""
    subprocess.run([LDCONFIG, "-r", root, *arguments], check=True, capture_output=True, timeout=60)
    return (root / "etc/ld.so.cache").read_bytes()


def printed(directory: Path, data: bytes) -> list[str]:
    """The lines of `ldconfig -p` for a cache."""
    path = directory / "cache"
    path.write_bytes(data)
    done = subprocess.run([LDCONFIG, "-p", "-C", path], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return os.fsdecode(done.stdout).removesuffix("\n").split("\n")


def shown(entries: list[ldcache.CacheEntry]) -> list[str]:
    """How `ldconfig -p` shows plain entries."""
    kinds = {X86: "libc6,x86-64", I386: "libc6", 0xA03: "libc6,AArch64", 0x903: "libc6,hard-float"}
    return [f"\t{e.name} ({kinds[e.flags]}) => {e.path}" for e in entries]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with libraries in a plain directory and in a glibc-hwcaps one, and no cache yet."""
    root = tmp_path / "root"
    plain = root / "usr/lib/x86_64-linux-gnu"
    fast = plain / "glibc-hwcaps/x86-64-v3"
    fast.mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n/usr/lib/i386\n")
    for name in NAMES:
        (plain / name).write_bytes(elf_builder.build_shared_object(soname=name, needed=["libc.so.6"]))
    for name in ("libcuda.so.1", "libz.so.1"):
        (fast / name).write_bytes(elf_builder.build_shared_object(soname=name, needed=["libc.so.6"]))
    (root / "usr/lib/i386").mkdir()
    for name in ("libcuda.so.1", "libc.so.6"):
        (root / "usr/lib/i386" / name).write_bytes(
            elf_builder.build_shared_object(soname=name, needed=["libc.so.6"], arch="i386")
        )
    return root


@pytest.mark.parametrize("form", ["new", "compat"])
def test_a_cache_of_the_real_ldconfig_is_read_in_its_order(root: Path, tmp_path: Path, form: str) -> None:
    data = ldconfig(root, "-c", form)
    cache = ldcache.parse_ld_cache(data)
    plain = [e for e in cache.entries if not e.hwcap]
    lines = [line for line in printed(tmp_path, data)[1:] if "=>" in line and "hwcap" not in line]
    assert lines == shown(plain)
    assert {e.name for e in plain} == set(NAMES)
    assert cache.generator.startswith(b"ldconfig (")


def test_hwcaps_entries_of_the_real_ldconfig_name_their_directory(root: Path) -> None:
    cache = ldcache.parse_ld_cache(ldconfig(root))
    fast = [e for e in cache.entries if e.hwcap]
    assert cache.hwcaps == ["x86-64-v3"]
    assert {e.name for e in fast} == {"libcuda.so.1", "libz.so.1"}
    assert all(e.hwcap == 1 << 62 for e in fast)


def test_an_old_format_cache_of_the_real_ldconfig_is_read(root: Path) -> None:
    data = ldconfig(root, "-c", "old")
    assert data.startswith(b"ld.so-1.7.0") and b"glibc-ld.so.cache" not in data
    found = {(e.name, e.path) for e in ldcache.parse_ld_cache(data).entries}
    assert ("libcuda.so.1", "/usr/lib/i386/libcuda.so.1") in found or (
        "libcuda.so.1",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    ) in found


@pytest.mark.parametrize("form", ["new", "compat"])
def test_what_is_written_back_says_the_same_to_the_real_ldconfig(root: Path, tmp_path: Path, form: str) -> None:
    data = ldconfig(root, "-c", form)
    again = ldcache.dump_ld_cache(ldcache.parse_ld_cache(data))
    assert again.startswith(b"glibc-ld.so.cache1.1") and again[28] == 2
    said = printed(tmp_path, data)
    if form == "compat":  # ldconfig 2.36 looks for the names of variants in the wrong place of such a file
        said = printed(tmp_path, ldconfig(root, "-c", "new"))
    assert printed(tmp_path, again) == said
    assert ldcache.dump_ld_cache(ldcache.parse_ld_cache(again)) == again


def test_the_systems_own_cache_says_the_same_after_writing_it_back(tmp_path: Path) -> None:
    data = Path("/etc/ld.so.cache").read_bytes()
    assert printed(tmp_path, ldcache.dump_ld_cache(ldcache.parse_ld_cache(data))) == printed(tmp_path, data)


def test_merged_entries_stand_where_the_real_ldconfig_would_put_them(root: Path) -> None:
    full = ldcache.parse_ld_cache(ldconfig(root))
    plain = [e for e in full.entries if not e.hwcap]
    for left_out in range(1, len(plain), 3):
        base = [e for i, e in enumerate(plain) if i % (left_out + 1)]
        given = ldcache.LoaderCache([(e.flags, e.name.encode(), e.path.encode(), 0, 0) for e in base], [], b"")
        assert ldcache.merge_ld_cache(given, [(e.name, e.path, e.flags) for e in reversed(plain)]).entries == plain


def test_a_cache_built_from_nothing_is_sorted_as_the_real_one(root: Path, tmp_path: Path) -> None:
    plain = [e for e in ldcache.parse_ld_cache(ldconfig(root)).entries if not e.hwcap]
    made = ldcache.merge_ld_cache(None, [(e.name, e.path, e.flags) for e in sorted(plain, key=lambda e: e.path)])
    assert made.entries == plain
    lines = printed(tmp_path, ldcache.dump_ld_cache(made))
    assert lines[0].startswith(f"{len(plain)} libs found in cache")
    assert lines[1 : 1 + len(plain)] == shown(plain)
    assert lines[-1] == "Cache generated by: gpu-oci-hook"


def test_a_merged_library_replaces_all_of_its_name_and_architecture_also_in_hwcaps(root: Path, tmp_path: Path) -> None:
    cache = ldcache.parse_ld_cache(ldconfig(root))
    merged = ldcache.merge_ld_cache(cache, [("libcuda.so.1", "/injected/libcuda.so.1", X86)])
    found = [e for e in merged.entries if e.name == "libcuda.so.1"]
    assert [(e.flags, e.path, e.hwcap) for e in found] == [
        (X86, "/injected/libcuda.so.1", 0),
        (I386, "/usr/lib/i386/libcuda.so.1", 0),
    ]
    assert "libcuda.so.1 (libc6,x86-64) => /injected/libcuda.so.1" in "\n".join(
        printed(tmp_path, ldcache.dump_ld_cache(merged))
    )
    assert len(merged.rows) == len(cache.rows) - 1
    assert len(cache.rows) == len(ldcache.parse_ld_cache(ldconfig(root)).rows), "the given cache was changed"


def test_the_first_of_two_new_libraries_of_one_name_wins() -> None:
    merged = ldcache.merge_ld_cache(None, [("libcuda.so.1", "/compat/a", X86), ("libcuda.so.1", "/driver/b", X86)])
    assert [e.path for e in merged.entries] == ["/compat/a"]


def test_merging_into_the_own_result_changes_no_byte(root: Path) -> None:
    new = [(name, f"/usr/lib64/{name}.550", X86) for name in reversed(NAMES)] + [("libq.so.1", "/q/libq.so.1", X86)]
    once = ldcache.dump_ld_cache(ldcache.merge_ld_cache(ldcache.parse_ld_cache(ldconfig(root)), new))
    assert ldcache.dump_ld_cache(ldcache.merge_ld_cache(ldcache.parse_ld_cache(once), new)) == once


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_the_real_loader_finds_every_library_by_a_cache_of_ours(tmp_path: Path) -> None:
    """The loader's binary search is what the order is for; only the cache can find these libraries."""
    machine = os.uname().machine
    loader = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}[machine]
    flags = ARCHITECTURES[machine].cache_flags
    root = tmp_path / "root"
    (root / "odd").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "loader").write_bytes(Path(loader).read_bytes())
    (root / "loader").chmod(0o755)
    names = [name for name in NAMES if not name.startswith("libc.so")]
    for name in names:
        (root / "odd" / name).write_bytes(elf_builder.build_shared_object(soname=name, arch=machine))
    (root / "all.so").write_bytes(elf_builder.build_shared_object(soname="all.so", needed=names, arch=machine))
    cache = ldcache.parse_ld_cache(Path("/etc/ld.so.cache").read_bytes())
    merged = ldcache.merge_ld_cache(cache, [(name, f"/odd/{name}", flags) for name in names])
    (root / "etc/ld.so.cache").write_bytes(ldcache.dump_ld_cache(merged))
    command = ["chroot", root, "/loader", "--list", "/all.so"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/sbin:/usr/bin"})
    assert done.returncode == 0, done.stderr
    for name in names:
        assert f"{name} => /odd/{name} (" in done.stdout


def reference(one: bytes, two: bytes) -> int:
    """The comparison, written down a second time: character by character, digit runs as numbers."""
    i = j = 0
    while i < len(one):
        a, b = one[i], two[j] if j < len(two) else 0
        digits = chr(a).isdigit() and a < 128, chr(b).isdigit() and b < 128
        if all(digits):
            x = y = 0
            while i < len(one) and 48 <= one[i] <= 57:
                x, i = x * 10 + one[i] - 48, i + 1
            while j < len(two) and 48 <= two[j] <= 57:
                y, j = y * 10 + two[j] - 48, j + 1
            if x != y:
                return x - y
        elif any(digits):
            return 1 if digits[0] else -1
        elif a != b:
            return (a ^ 128) - (b ^ 128)
        else:
            i, j = i + 1, j + 1
    return 128 - (two[j] ^ 128) if j < len(two) else 0


@given(st.lists(st.from_regex(rb"[a-c0-3.\-\xc3]{1,8}", fullmatch=True), min_size=2, max_size=12))
def test_the_key_sorts_as_the_comparison_does(names: list[bytes]) -> None:
    by_key = [ldcache.make_libcmp_key(n) for n in sorted(names, key=ldcache.make_libcmp_key)]
    by_comparison = [ldcache.make_libcmp_key(n) for n in sorted(names, key=cmp_to_key(reference))]
    assert by_key == by_comparison


def test_digits_sort_as_numbers_and_above_letters() -> None:
    key = ldcache.make_libcmp_key
    assert key("libfoo.so.10") > key("libfoo.so.9")
    assert key("lib1.so") > key("libz.so")
    assert key("lib") < key("liba")
    assert key("x" + "9" * 5000) > key("x")


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cs"]), min_size=1, max_size=20)
ENTRIES = st.lists(
    st.tuples(TEXT, TEXT.map("/".__add__), st.sampled_from([known.cache_flags for known in ARCHITECTURES.values()])),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=ENTRIES)
def test_any_entries_are_read_back_identically_by_ldconfig_and_by_us(
    tmp_path: Path, entries: list[tuple[str, str, int]]
) -> None:
    made = ldcache.merge_ld_cache(None, entries)
    data = ldcache.dump_ld_cache(made)
    again = ldcache.parse_ld_cache(data)
    assert again.entries == made.entries
    wanted: dict[tuple[str, int], str] = {}
    for name, path, flags in entries:
        wanted.setdefault((name, flags), path)
    assert {(e.name, e.flags): e.path for e in again.entries} == wanted
    assert printed(tmp_path, data)[1 : 1 + len(wanted)] == shown(again.entries)


def test_names_that_are_no_unicode_survive() -> None:
    name = os.fsdecode(b"lib\xff\xfe.so.1")
    again = ldcache.parse_ld_cache(ldcache.dump_ld_cache(ldcache.merge_ld_cache(None, [(name, "/x/" + name, X86)])))
    assert again.rows[0][1:3] == (b"lib\xff\xfe.so.1", b"/x/lib\xff\xfe.so.1")
    assert again.entries[0].name == name


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "\ud800"])
def test_a_name_that_no_cache_can_hold_is_a_fault(name: str) -> None:
    with pytest.raises(Fault, match="cannot contain"):
        ldcache.merge_ld_cache(None, [(name, "/x", X86)])


GOOD = ldcache.dump_ld_cache(
    ldcache.LoaderCache(
        [(X86, n.encode(), b"/usr/lib/" + n.encode(), 0, 1 << 62 if "cuda" in n else 0) for n in NAMES],
        ["v3", "v4"],
        b"g",
    )
)


def numbers(*words: int) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ld.so-1.7.0",
        b"ld.so-1.7.0\0" + numbers(2**32 - 1),
        b"ld.so-1.7.0\0" + numbers(1, 3, 50, 60),
        b"glibc-ld.so.cache1.2" + GOOD[20:],
        b"glibc-ld.so.cache1.1",
        GOOD[:20] + numbers(2**31) + GOOD[24:],
        GOOD[:28] + b"\1" + GOOD[29:],
        GOOD[:28] + b"\3" + GOOD[29:],
        GOOD[:52] + numbers(2**32 - 1) + GOOD[56:],
        GOOD[:32] + numbers(len(GOOD) - 4) + GOOD[36:],
        GOOD[:32] + numbers(2**32 - 4) + GOOD[36:],
        GOOD[:300],
        bytes(4096),
    ],
)
def test_what_is_no_sound_cache_is_a_fault(data: bytes) -> None:
    with pytest.raises(Fault, match="not a usable cache"):
        ldcache.parse_ld_cache(data)


def test_a_cache_that_wants_gigabytes_of_work_is_refused_in_time() -> None:
    count = 60000
    entries = numbers(X86, 48 + 24 * count, 48 + 24 * count, 0, 0, 0) * count
    data = GOOD[:20] + numbers(count) + GOOD[24:32] + numbers(0, 0, 0, 0) + entries + b"x" * 4000 + b"\0"
    start = time.monotonic()
    with pytest.raises(Fault):
        ldcache.parse_ld_cache(data)
    assert time.monotonic() - start < 5


@given(st.binary(max_size=300), st.sampled_from([b"", GOOD[:20], GOOD[:48], b"ld.so-1.7.0\0"]))
def test_random_bytes_raise_nothing_but_a_fault(data: bytes, start: bytes) -> None:
    try:
        ldcache.parse_ld_cache(start + data)
    except Fault:
        pass


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=4)), min_size=1, max_size=5))
def test_a_mutated_cache_is_a_fault_or_can_be_merged_and_written(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(GOOD)
    for at, piece in changes:
        data[at : at + len(piece)] = piece
    try:
        cache = ldcache.parse_ld_cache(bytes(data))
    except Fault:
        return
    merged = ldcache.merge_ld_cache(cache, [("libcuda.so.1", "/a/libcuda.so.1", X86)])
    again = ldcache.parse_ld_cache(ldcache.dump_ld_cache(merged))
    assert again.rows == merged.rows and again.hwcaps == merged.hwcaps
