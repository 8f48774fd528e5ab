"""The user namespace of this process, from the text of /proc/self/uid_map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.files import user_namespace


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("         0          0 4294967295\n", True),
        ("0 1000 1\n1 100000 65536\n", False),
        ("0 0 65536\n", False),
        ("0 0 4294967295\n1 1 1\n", False),
        ("", False),
    ],
)
def test_only_the_full_map_is_the_initial_user_namespace(text: str, identity: bool) -> None:
    assert user_namespace.is_identity_map(text.encode()) is identity


@given(st.binary(max_size=400))
def test_no_text_at_all_raises(text: bytes) -> None:
    user_namespace.is_identity_map(text)


@pytest.mark.parametrize(("uid", "outside"), [(0, 1000), (1, 100000), (65536, 165535), (65537, None)])
def test_a_user_has_the_number_of_the_row_that_maps_it(
    uid: int, outside: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_namespace, "read_uid_map", lambda: b"0 1000 1\n1 100000 65536\n")
    assert user_namespace.map_uid_to_parent(uid) == outside


def test_without_proc_the_caller_says_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_namespace, "UID_MAP_PATH", "/proc/nowhere")
    assert not user_namespace.is_process_in_user_namespace()
    assert user_namespace.is_process_in_user_namespace(unknown=True)
    assert user_namespace.map_uid_to_parent(0) is None
