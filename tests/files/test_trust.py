"""One rule for files that decide what root runs or mounts, with its named exceptions."""

from __future__ import annotations

import os

import pytest

from gpu_oci_hook.files import user_namespace
from gpu_oci_hook.files.trust import describe_foreign_access


def status(uid: int = 0, gid: int = 0, mode: int = 0o644) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(user_namespace, "read_uid_map", lambda: b"0 0 4294967295\n")


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "text"),
    [
        (0, 0, 0o644, ""),
        (0, 0, 0o664, ""),
        (1000, 0, 0o644, "belongs to user 1000"),
        (65534, 0, 0o644, "belongs to user 65534"),
        (0, 0, 0o646, "can be written by every user"),
        (0, 50, 0o664, "can be written by group 50"),
    ],
)
def test_only_root_may_own_and_write_it(uid: int, gid: int, mode: int, text: str) -> None:
    assert describe_foreign_access(status(uid, gid, mode)) == text


def test_another_user_trusts_everything_unless_the_rule_is_for_every_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert describe_foreign_access(status(1001, 0, 0o666)) == ""
    assert describe_foreign_access(status(1001), every_user=True) == "belongs to user 1001"
    assert describe_foreign_access(status(1000), every_user=True) == ""
    assert describe_foreign_access(status(0), every_user=True) == ""
    assert describe_foreign_access(status(1000, 1000, 0o664), every_user=True) == "can be written by group 1000"


def test_the_exceptions_are_named() -> None:
    assert describe_foreign_access(status(mode=0o666), owner_only=True) == ""
    assert describe_foreign_access(status(1000, 0, 0o666), owner_only=True) == "belongs to user 1000"
    assert describe_foreign_access(status(mode=0o664), root_group=False) == "can be written by group 0"
    assert describe_foreign_access(status(mode=0o1777), sticky_parent=True) == ""
    assert describe_foreign_access(status(mode=0o777), sticky_parent=True) == "can be written by every user"


def test_in_a_user_namespace_the_overflow_user_is_the_hosts_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_namespace, "read_uid_map", lambda: b"0 1000 1\n")
    with open("/proc/sys/kernel/overflowuid") as file:
        overflow = int(file.read())
    assert describe_foreign_access(status(overflow)) == ""
    assert describe_foreign_access(status(1000)) == "belongs to user 1000"
