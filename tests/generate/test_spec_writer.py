"""CDI files written: their text, and a file in its place whole or not at all."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.cdi import provenance
from gpu_oci_hook.cdi.spec import reading
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate import emit, spec_writer
from support.bundles import skip_or_fail, snapshot_tree

# What YAML's own text may hold; lone surrogates are a matter of their own.
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12)
WORDS = st.sampled_from(
    ["0", "0:1", "1e3", "0x1f", "190:20:30", "no", "Yes", "ON", "y", "n", "null", "~", "", " ", "true", "1_000", ".inf",
     "- a", "a: b", "a #b", "#", "&a", "*a", "!t", "%", "@", "`", "'", '"', "\\", "{a}", "[a]", ",", "?", "=", "<<",
     "|", ">", "a\nb", "a\tb", "\u2028", "\x7f", "\x85", "\ufeff", "😀", "\U000e0001", "---", "...",
     "2001-01-01", "0o17", "012"]
)  # fmt: skip
SCALARS = TEXT | WORDS | st.integers(-(2**63), 2**63) | st.booleans()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | WORDS, inner, max_size=4)
)


@given(st.dictionaries(TEXT | WORDS, VALUES, min_size=1, max_size=4))
def test_whatever_is_written_is_read_again_as_it_was_by_a_reader_of_yaml_1_1(value: dict[str, Any]) -> None:
    for form in emit.OUTPUT_FORMATS:
        data = emit.serialise_spec(value, form, ("a comment",))
        assert yaml.safe_load(data) == value
    assert json.loads(emit.serialise_spec(value, "json")) == value


def test_yaml_begins_with_three_dashes_and_our_mark() -> None:
    lines = emit.serialise_spec({"kind": "a/b"}, "yaml", ("driver 550",)).decode().splitlines()
    assert (
        lines[0] == "---"
        and lines[1].startswith(provenance.PROVENANCE_MARK)
        and lines[2:] == ["# driver 550", "kind: a/b"]
    )


@pytest.mark.parametrize("name", ["0", "0:1", "1e3", "no", "y", "null", "012"])
def test_names_that_yaml_would_take_for_something_else_are_quoted(name: str) -> None:
    assert f'name: "{name}"' in emit.serialise_spec({"name": name}, "yaml").decode()


def test_our_own_reader_finds_nothing_wrong_with_it() -> None:
    edits = {"env": ["A=\u00e4 \x7f"]}
    spec = {"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": [{"name": "0:1", "containerEdits": edits}]}
    for form in emit.OUTPUT_FORMATS:
        document = reading.parse_spec(emit.serialise_spec(spec, form), f"x.{form}")
        assert (document.data, document.findings) == (spec, [])


def test_a_path_that_is_no_utf_8_is_a_sentence() -> None:
    for form in emit.OUTPUT_FORMATS:
        with pytest.raises(Fault, match="not valid UTF-8"):
            emit.serialise_spec({"hostPath": "/a/\udcff"}, form)


@pytest.mark.parametrize(
    "path, wanted, form, warned",
    [
        ("", "", "yaml", ""),
        ("", "json", "json", ""),
        ("/a/x.json", "", "json", ""),
        ("/a/x.yaml", "", "yaml", ""),
        ("/a/x.yaml", "json", "json", "contains JSON despite its suffix .yaml"),
        ("/a/x.yml", "", "yaml", "engines only read files that end in .yaml or .json"),
        ("/a.json/x", "", "yaml", "engines only read files that end in .yaml or .json"),
    ],
)
def test_the_suffix_decides_unless_an_option_says_otherwise(path: str, wanted: str, form: str, warned: str) -> None:
    found, warning = emit.choose_output_format(path, wanted)
    assert found == form and (warned in warning if warned else not warning)


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_every_user_can_read_it_whatever_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert spec_writer.write_spec_file(str(tmp_path / "b/x.yaml"), b"x") == "wrote"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "b/x.yaml").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755


def test_unchanged_content_leaves_the_file_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    spec_writer.write_spec_file(str(path), b"x")
    os.utime(path, (1, 1))
    before = path.stat()
    assert spec_writer.write_spec_file(str(path), b"x") == "unchanged"
    after = path.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    path.chmod(0o600)
    assert spec_writer.write_spec_file(str(path), b"x") == "made readable"
    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode & 0o777) == (before.st_ino, 10**9, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"old")
    os.chown(path, 4807, 4808)
    spec_writer.write_spec_file(str(path), b"new")
    assert (path.stat().st_uid, path.stat().st_gid, path.read_bytes()) == (4807, 4808, b"new")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "x.yaml").symlink_to("there/real.yaml")
    spec_writer.write_spec_file(str(tmp_path / "x.yaml"), b"new")
    assert os.readlink(tmp_path / "x.yaml") == "there/real.yaml"
    assert (tmp_path / "there/real.yaml").read_bytes() == b"new"


def sentence(path: Path, data: bytes = b"new") -> str:
    with pytest.raises(Fault) as caught:
        spec_writer.write_spec_file(str(path), data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_the_last_directory_is_made(tmp_path: Path) -> None:
    """/etc/cdi is missing on many machines; a path with more that is missing is mistyped."""
    said = sentence(tmp_path / "ect/cdi/x.yaml")
    assert said == (
        f"{tmp_path}/ect/cdi/x.yaml: there is no directory {tmp_path}/ect. Create it first: mkdir -p {tmp_path}/ect/cdi"
    )
    assert os.listdir(tmp_path) == []
    spec_writer.write_spec_file(str(tmp_path / "cdi/x.yaml"), b"x")
    (tmp_path / "link").symlink_to("elsewhere")
    assert (
        spec_writer.write_spec_file(str(tmp_path / "link/x.yaml"), b"x") == "wrote"
        and (tmp_path / "elsewhere/x.yaml").exists()
    )


def test_a_comment_stays_one_line(tmp_path: Path) -> None:
    """The file's own path stands in one, and may have a line's end in it."""
    data = emit.serialise_spec({"kind": "a/b"}, "yaml", ("made for /x\nkind: evil/x\u2028",))
    assert yaml.safe_load(data) == {"kind": "a/b"} and b"# made for /x\\nkind: evil/x\\u2028\n" in data


def test_a_directory_or_a_fifo_in_its_place_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    assert "it is a directory" in sentence(tmp_path / "x.yaml")
    os.mkfifo(tmp_path / "y.yaml")
    assert "it is not a regular file" in sentence(tmp_path / "y.yaml")
    (tmp_path / "z.yaml").symlink_to("z.yaml")
    assert "go round in a circle" in sentence(tmp_path / "z.yaml")
    (tmp_path / "file").write_text("x")
    assert "a part of the path is not a directory" in sentence(tmp_path / "file/x.yaml")
    assert "NUL" in sentence(Path(f"{tmp_path}/a\0b"))
    assert sorted(os.listdir(tmp_path)) == ["file", "x.yaml", "y.yaml", "z.yaml"]


def test_a_name_that_ends_with_a_slash_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="is a directory"):
        spec_writer.write_spec_file(f"{tmp_path}/cdi/", b"new")
    assert os.listdir(tmp_path) == []


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give links away")


@needs_root
@pytest.mark.parametrize("last", [True, False], ids=["the file", "a directory"])
def test_a_link_that_another_user_has_laid_is_not_followed(tmp_path: Path, last: bool) -> None:
    """As in /tmp, where the kernel would not follow it either."""
    everybodys, closed = tmp_path / "everybodys", tmp_path / "closed"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    closed.mkdir()
    link = everybodys / ("x.yaml" if last else "cdi")
    link.symlink_to(closed / "x.yaml" if last else closed)
    os.chown(link, 4807, 0, follow_symlinks=False)
    path = link if last else link / "x.yaml"
    assert "a link that belongs to user 4807" in sentence(path)
    for ask in (
        (spec_writer.classify_existing_file, spec_writer.remove_spec_file)
        if not last
        else (spec_writer.classify_existing_file,)
    ):
        with pytest.raises(Fault, match="belongs to user 4807"):
            ask(str(path))  # type: ignore[operator]
    assert os.listdir(closed) == []


@pytest.mark.parametrize("what", ["file", "directory", "old file"])
def test_names_that_are_exchanged_on_the_way_change_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Who may write on the way lays a link between two steps."""
    open_place, closed = tmp_path / "open", tmp_path / "closed"
    for place in (open_place, closed):
        place.mkdir()
        (place / "x.yaml").write_bytes(b"old")
        (place / "x.yaml").chmod(0o600)
    before = snapshot_tree(closed)
    read = spec_writer._read_existing_file

    def exchange(*arguments: Any) -> Any:
        found = read(*arguments)
        if what == "directory":
            open_place.rename(tmp_path / "moved")
            open_place.symlink_to(closed)
        else:
            (open_place / "x.yaml").unlink()
            (open_place / "x.yaml").symlink_to(closed / "x.yaml")
        return found

    monkeypatch.setattr(spec_writer, "_read_existing_file", exchange)
    try:
        spec_writer.write_spec_file(str(open_place / "x.yaml"), b"old" if what == "old file" else b"new")
    except Fault as fault:
        assert "\n" not in str(fault)
    assert snapshot_tree(closed) == before


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full after 16 KiB."""
    if os.geteuid() != 0:
        skip_or_fail("a full disk; only root can mount one")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_a_sentence_and_the_old_file_survives(small: Path) -> None:
    spec_writer.write_spec_file(str(small / "x.yaml"), b"old")
    assert "the disk is full" in sentence(small / "x.yaml", b"x" * 65536)
    assert (small / "x.yaml").read_bytes() == b"old" and os.listdir(small) == ["x.yaml"]


def test_a_file_system_that_cannot_be_written_is_a_sentence(small: Path) -> None:
    spec_writer.write_spec_file(str(small / "x.yaml"), b"old")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert "the file system is read-only" in sentence(small / "x.yaml")
    assert spec_writer.write_spec_file(str(small / "x.yaml"), b"old") == "unchanged"
    assert (small / "x.yaml").read_bytes() == b"old"


WRITER = """
import sys
from gpu_oci_hook.generate.spec_writer import write_spec_file
old, new = b"a" * 3000000, b"b" * 3000000
while True:
    write_spec_file(sys.argv[1], old)
    write_spec_file(sys.argv[1], new)
    print(".", end="", flush=True)
"""


def test_killed_at_any_moment_the_old_file_or_the_new_one_is_there(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    spec_writer.write_spec_file(str(path), b"a" * 3000000)
    dice = random.Random(7)
    seen = set()
    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(1) == b".", "the writer does not write"
        time.sleep(dice.random() / 30)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        data = path.read_bytes()
        assert data in (b"a" * 3000000, b"b" * 3000000)
        assert path.stat().st_mode & 0o777 == 0o644
        seen.add(data[:1])
    # What the killed left is no CDI file for anybody, and gone when it is old.
    litter = [entry for entry in tmp_path.iterdir() if entry != path]
    assert all(entry.name.startswith(".") and entry.suffix not in (".yaml", ".json") for entry in litter)
    for entry in litter:
        os.utime(entry, (1, 1))
    spec_writer.write_spec_file(str(path), b"c")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.yaml"]


def test_writers_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.read(1) == b".", "the writer does not write"
        for _ in range(40):
            assert path.read_bytes() in (b"a" * 3000000, b"b" * 3000000)
            time.sleep(0.005)
        assert [writer.poll() for writer in writers] == [None] * 3
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()


@pytest.mark.parametrize(
    "data, owner",
    [
        (None, "none"),
        (b"", "none"),
        (emit.serialise_spec({"cdiVersion": "0.5.0"}, "yaml"), "ours"),
        (b'{"cdiVersion": "0.5.0", "x": ["gpu-oci-hook", "hook", "create-container"]}', "ours"),
        (b"---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "cdi"),
        (b"root:x:0:0::/root:/bin/sh\n", "other"),
    ],
)
def test_whose_a_file_is(tmp_path: Path, data: bytes | None, owner: str) -> None:
    if data is not None:
        (tmp_path / "x").write_bytes(data)
    assert spec_writer.classify_existing_file(str(tmp_path / "x")) == owner
