"""The records of attached GPUs: what goes away by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpu_oci_hook.attach import repairable
from gpu_oci_hook.live.attachment_record import RecordStore
from gpu_oci_hook.live.monitors import read_start_time

TEMPORARY = ".gpu-oci-hook-0123456789abcdef"


def make_state_with_leftovers() -> tuple[Path, set[str]]:
    """Make records, and return the directory with the names that must stay in it.

    One container runs (this process), one has ended and its number was used again, and two commands were killed in the
    middle of writing, of which one may still run.
    """
    with RecordStore(create=True) as store:
        directory = Path(store.path)
    pid, start_time = os.getpid(), read_start_time(os.getpid())
    for name in (f"{pid}-{start_time}.json", f"{pid}-{start_time - 1}.json", f"{pid}-{start_time - 1}.lock"):
        (directory / name).write_text("{}")
    (directory / f"{pid}-{start_time - 1}.d/scratch").mkdir(parents=True)
    (directory / TEMPORARY).touch()
    os.utime(directory / TEMPORARY, (time.time() - 61, time.time() - 61))
    young = f"{TEMPORARY[:-1]}0"
    (directory / young).touch()
    return directory, {f"{pid}-{start_time}.json", young}


@pytest.mark.root
@pytest.mark.usefixtures("isolated_state")
def test_leftovers_of_ended_containers_and_of_killed_commands_are_removed() -> None:
    directory, kept = make_state_with_leftovers()
    with RecordStore(create=False) as store:
        store.remove_stale()
    assert set(os.listdir(directory)) == kept


@pytest.mark.root
@pytest.mark.usefixtures("isolated_state")
def test_a_repair_of_all_removes_them_although_no_container_has_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    directory, kept = make_state_with_leftovers()
    monkeypatch.setattr(repairable, "list_running_containers", list)
    assert repairable.list_repairable_containers() == []
    assert set(os.listdir(directory)) == kept
