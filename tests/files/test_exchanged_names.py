"""Who owns a directory can exchange its names while we write there: nothing of root's may become his."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import replace
from gpu_oci_hook.files.rootfs import Rootfs

OWNER = 1000
ROUNDS = int(os.environ.get("GPU_OCI_HOOK_RACE_ROUNDS", "10"))

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")]


@pytest.fixture
def owned(image_dir: Path) -> Path:
    """A directory of the image that belongs to a user, with a file and a directory of root's in it."""
    directory = image_dir / "owned"
    directory.mkdir()
    os.chown(directory, OWNER, OWNER)
    (directory / "secret").write_text("root's")
    (directory / "private").mkdir(0o700)
    (directory / "private/key").write_text("root's")
    return directory


def exchange_after(monkeypatch: pytest.MonkeyPatch, function: str, victim: Path) -> None:
    """Let another process put a victim in the place of what a call has just created."""
    real = getattr(os, function)

    def create(*arguments: Any, **more: Any) -> None:
        real(*arguments, **more)
        name = arguments[1] if function == "symlink" else arguments[0]
        made = Path(os.readlink(f"/proc/self/fd/{more['dir_fd']}")) / name
        made.rename(made.parent / "taken")
        victim.rename(made)

    monkeypatch.setattr(os, function, create)


ATTACKED: dict[str, tuple[str, str, Callable[[Rootfs], object]]] = {
    "a new link": ("symlink", "secret", lambda root: root.make_symlink("/owned/link", "target")),
    "a new directory": ("mkdir", "private", lambda root: root.open_directory("/owned/new")),
}


@pytest.mark.parametrize("attack", ATTACKED)
def test_an_exchanged_name_gives_nothing_of_roots_away(
    attack: str, owned: Path, container_root: Rootfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, victim, write = ATTACKED[attack]
    inode = (owned / victim).stat().st_ino
    exchange_after(monkeypatch, function, owned / victim)
    try:
        write(container_root)
    except Fault:
        pass
    (found,) = [path for path in owned.iterdir() if path.lstat().st_ino == inode]
    assert found.lstat().st_uid == 0


def test_a_replaced_link_gives_nothing_of_roots_away(
    owned: Path, container_root: Rootfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owned / "link").write_text("of the image")
    monkeypatch.setattr(replace, "make_temporary_name", lambda: "seen")  # who watches the directory reads it there
    exchange_after(monkeypatch, "symlink", owned / "secret")
    inode = (owned / "secret").stat().st_ino
    try:
        container_root.make_symlink("/owned/link", "target")
    except (Fault, OSError):
        pass
    (found,) = [path for path in owned.iterdir() if path.lstat().st_ino == inode]
    assert found.lstat().st_uid == 0


def test_links_and_directories_belong_to_the_directorys_owner_from_the_beginning(
    owned: Path, container_root: Rootfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("an owner was given by name")

    monkeypatch.setattr(os, "chown", refuse)
    (owned / "old").write_text("of the image")
    container_root.make_symlink("/owned/new", "target")
    container_root.make_symlink("/owned/old", "target")
    container_root.write_file("/owned/below/file", b"x")
    for name in ("new", "old", "below", "below/file"):
        status = (owned / name).lstat()
        assert (name, status.st_uid, status.st_gid) == (name, OWNER, OWNER)
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_where_the_owner_may_not_write_the_entry_is_roots(owned: Path, container_root: Rootfs) -> None:
    owned.chmod(0o555)
    assert container_root.make_symlink("/owned/new", "target")
    assert (owned / "new").lstat().st_uid == 0
    assert (os.geteuid(), os.getegid()) == (0, 0)


# The owner of the directory: as soon as our entry is there, root's file or directory takes its name.
RACER = """
import os, sys
directory, victim, entry = sys.argv[1:]
os.chdir(directory), os.setgid(1000), os.setuid(1000)
print("racing", flush=True)
while True:
    try:
        os.rename(entry, "taken")
        os.rename(victim, entry)
    except OSError:
        continue
    break
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ATTACKED)
def test_a_racing_owner_never_gets_a_file_of_roots(attack: str, image_dir: Path) -> None:
    """GPU_OCI_HOOK_RACE_ROUNDS sets the number of rounds."""
    _, victim, write = ATTACKED[attack]
    entry = {"a new link": "link", "a new directory": "new"}[attack]
    exchanged = 0
    for number in range(ROUNDS):
        directory = image_dir / str(number)
        (directory / "owned").mkdir(parents=True)
        os.chown(directory / "owned", OWNER, OWNER)
        (directory / "owned/secret").write_text("root's")
        (directory / "owned/private").mkdir(0o755)
        inode = (directory / "owned" / victim).stat().st_ino
        racer = subprocess.Popen(
            [sys.executable, "-IS", "-c", RACER, str(directory / "owned"), victim, entry], stdout=subprocess.PIPE
        )
        try:
            assert racer.stdout is not None and racer.stdout.readline() == b"racing\n"
            with Rootfs(str(directory)) as root:
                try:
                    write(root)
                except Fault:
                    pass
            racer.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            racer.kill()
            racer.wait()
            racer.stdout.close()  # type: ignore[union-attr]
        (found,) = [path for path in (directory / "owned").iterdir() if path.lstat().st_ino == inode]
        exchanged += found.name == entry
        assert found.lstat().st_uid == 0, f"lost in round {number + 1}"
    assert exchanged, "the race never came to the exchange"
    print(f"{attack}: {ROUNDS} rounds, {exchanged} exchanged, nothing of root's lost")
