"""Records of attached GPUs: written, read, removed with their container, and refused where another user wrote them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.live import attachment_record
from gpu_oci_hook.live.attachment_record import AttachmentRecord, RecordStore
from gpu_oci_hook.live.container_changes import Change

CHANGE = Change("link", "/usr/lib/libcuda.so.1", content="/usr/local/nvidia/lib64/libcuda.so.1", before="libcuda.so")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordStore]:
    monkeypatch.setattr(state_dir, "DIRECTORY", str(tmp_path / "state"))
    with RecordStore(create=True) as made:
        yield made


def fill(record: AttachmentRecord) -> AttachmentRecord:
    record.attached, record.detached, record.capabilities = ["GPU-1"], ["GPU-2"], ["utility"]
    record.devices, record.pending_devices = [(195, 0)], [(195, 1)]
    record.changes, record.pending = [CHANGE], [Change("node", "/dev/nvidia0", (195, 0))]
    return record


def test_a_record_is_read_as_it_was_written(store: RecordStore) -> None:
    record = fill(store.load(os.getpid(), "container x"))
    store.save(record)
    again = store.load(os.getpid(), "")
    assert again.to_data() == record.to_data() and again.title == "container x"
    assert store.list_pids() == [os.getpid()]


def test_an_empty_record_is_removed_with_its_files(store: RecordStore) -> None:
    record = fill(store.load(os.getpid(), "x"))
    store.save(record)
    files = Path(store.get_files_directory(record))
    files.mkdir()
    (files / "before").write_text("x")
    store.save(AttachmentRecord(record.pid, record.start_time, "x"))
    assert list(Path(store.path).iterdir()) == []


def test_a_record_of_a_container_that_has_ended_is_removed(store: RecordStore) -> None:
    process = subprocess.Popen(["sleep", "60"])
    record = fill(store.load(process.pid, "x"))
    store.save(record)
    Path(store.get_files_directory(record)).mkdir()
    store.remove_stale()
    assert store.list_pids() == [process.pid]
    process.kill()
    process.wait()
    store.remove_stale()
    assert list(Path(store.path).iterdir()) == []
    with pytest.raises(Fault, match="has ended"):
        store.load(process.pid, "x")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"changes": [["node"]]}', '{"changes": {}}', '{"devices": [[1]]}'])
def test_a_damaged_record_is_a_sentence(store: RecordStore, text: str) -> None:
    record = store.load(os.getpid(), "x")
    (Path(store.path) / f"{record.key}.json").write_text(text)
    with pytest.raises(Fault, match="it is damaged") as caught:
        store.load(os.getpid(), "x")
    assert record.key in caught.value.where


def test_a_record_that_another_user_could_write_is_refused(store: RecordStore) -> None:
    record = fill(store.load(os.getpid(), "x"))
    store.save(record)
    (Path(store.path) / f"{record.key}.json").chmod(0o666)
    with pytest.raises(Fault, match="another user could have written it"):
        store.load(os.getpid(), "x")


def test_a_directory_that_another_user_can_write_is_refused(store: RecordStore) -> None:
    Path(store.path).chmod(0o777)
    with pytest.raises(Fault, match="must belong to root alone"):
        RecordStore(create=True)


def test_one_command_at_a_time_changes_a_container(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record = store.load(os.getpid(), "container x")
    monkeypatch.setattr(attachment_record, "_LOCK_TIMEOUT", 0.2)
    with store.lock(record):
        begin = time.monotonic()
        with pytest.raises(Fault, match="another command is changing this container"), store.lock(record):
            pass
        assert time.monotonic() - begin < 10
    with store.lock(record):
        pass
    assert list(Path(store.path).iterdir()) == []


def test_the_state_of_a_record_can_be_restored(store: RecordStore) -> None:
    record = fill(store.load(os.getpid(), "x"))
    data = json.loads(json.dumps(record.to_data()))
    record.attached, record.pending = [], []
    record.restore_data(data)
    assert json.loads(json.dumps(record.to_data())) == data
