"""Attach, detach and repair: the steps of each, in an order from which every failure can be taken back.

1. A child process looks at the container, plans, and writes the list of changes into the record as pending.
2. It makes the changes in the container. The parent kills it at the deadline.
3. Device rules come last.
4. The record says that the changes are made.

Whatever fails or is killed before the last step leaves a pending list. It is taken back at once, or by the next command
for the container. A detachment is such a list from the start.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from gpu_oci_hook.attach.container_plan import ALL, GivenGpu
from gpu_oci_hook.attach.container_session import ContainerSession, Report
from gpu_oci_hook.attach.device_rules import (
    allow_container_devices,
    deny_container_devices,
    list_denied_devices,
)
from gpu_oci_hook.attach.running_container import RunningContainer
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.attachment_record import AttachmentRecord, Device, RecordStore, parse_change
from gpu_oci_hook.live.container_changes import Change
from gpu_oci_hook.live.device_holders import DeviceHolder, list_device_holders
from gpu_oci_hook.live.found_container import FoundContainer
from gpu_oci_hook.live.namespace_process import run_with_deadline


class Result:
    """What a command has done.

    Attributes:
        container: its title.
        reference: how the command line names it.
        pid: its first process.
        state: "attached", "present", "detached", "absent", "repaired", "complete" or "none".
        gpus: the GPUs that the command was about.
        changes: one line for each change in the container.
        missing: what the container lacks of its plan, if nothing was changed.
        notes: sentences about what could not be done, or what running processes do not see.
        holders: the processes that hold a detached device open.
    """

    def __init__(self, container: RunningContainer, state: str, gpus: list[GivenGpu]) -> None:
        self.container = container.title
        self.reference = container.reference
        self.pid = container.pid
        self.state = state
        self.gpus = gpus
        self.changes: list[str] = []
        self.missing: list[str] = []
        self.notes: list[str] = []
        self.holders: list[DeviceHolder] = []


class ContainerOperations:
    """The operations on one running container, which no other command changes meanwhile. It is a context manager.

    What a command that was killed has left pending is taken back first.

    Arguments:
        found: the container.
        config: the configuration.

    Raises:
        Fault: it is not running, or cannot be entered, or another command does not end.
    """

    def __init__(self, found: FoundContainer, config: Config) -> None:
        self._config = config
        self.container = RunningContainer(found)
        self._store = RecordStore(create=True)
        self._store.remove_stale()
        self._lock = self._store.lock(self._store.load(self.container.pid, self.container.title))
        self.record: AttachmentRecord

    def __enter__(self) -> ContainerOperations:
        try:
            self._lock.__enter__()
            self.record = self._load_record()
            self._take_back_pending()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()
        self._store.remove_stale()  # the container may have ended meanwhile
        self._store.__exit__(None, None, None)
        self.container.__exit__(None, None, None)

    def attach(self, word: str, capabilities: tuple[str, ...]) -> Result:
        """Give the container the GPUs that a word names.

        Raises:
            Fault: it cannot have them, or a step failed and everything was taken back.
        """
        report = self._run_change(lambda session: session.attach(word, capabilities))
        result = self._make_result(report)
        if result.state == "present":
            result.missing += self._describe_denied(report)
            return result
        record = self.record
        added = cast("list[str]", report["selectors"])
        again = [selector for selector in added if selector in record.detached]
        record.detached = [selector for selector in record.detached if selector not in again]
        new = [selector for selector in added if selector not in again]
        # `all` is kept as it is: MIG devices that are made later belong to it.
        record.attached += [ALL] if new and word.strip().lower() == ALL else new
        record.capabilities = list(dict.fromkeys([*record.capabilities, *capabilities]))
        result.changes += self._describe_denied(report)
        result.notes += self._finish_change(report)
        return result

    def _describe_denied(self, report: Report) -> list[str]:
        """Return a line for each device of a report that the container may not open yet."""
        denied = list_denied_devices(self.container, _parse_devices(report["devices"]))
        return [f"allow c {major}:{minor} rw" for major, minor in denied]

    def detach(self, word: str) -> Result:
        """Take the GPUs away that a word names, or all attached ones for "".

        Raises:
            Fault: there is no such GPU, or the kernel refuses.
        """
        report = self._run(lambda session: session.plan_detachment(word))
        gpus = _parse_gpus(report["gpus"])
        result = Result(self.container, "detached" if gpus else "absent", gpus)
        if not gpus:
            return result
        removal = [parse_change(change) for change in cast("list[object]", report["removal"])]
        devices = _parse_devices(report["devices"])
        record = self.record
        old_data = record.to_data()
        record.attached = cast("list[str]", report["attached"])
        record.detached += [name for name in cast("list[str]", report["detached"]) if name not in record.detached]
        record.changes = [change for change in record.changes if change not in removal]
        record.devices = [device for device in record.devices if device not in devices]
        if not record.attached:
            record.capabilities = []
        record.pending, record.pending_devices = removal, devices
        self._store.save(record)
        try:
            result.notes += deny_container_devices(self.container, devices)
        except Fault:
            record.restore_data(old_data)
            self._store.save(record)
            allow_container_devices(self.container, devices)  # version 1 may have denied some of them
            raise
        record.pending_devices = []
        done = self._take_back_pending()
        result.changes += cast("list[str]", done.get("changes", []))
        result.notes += cast("list[str]", done.get("notes", []))
        self._find_holders(result, devices)
        if report["remaining"]:
            self._complete_remaining(result)
        return result

    def _complete_remaining(self, result: Result) -> None:
        """Put in what only a container with fewer GPUs needs; the detachment is done, whatever comes of it."""
        try:
            result.notes += self.repair().notes
        except Fault as fault:
            result.notes.append(f"the container keeps its other GPUs, but could not be completed: {fault}")

    def _find_holders(self, result: Result, devices: list[Device]) -> None:
        try:
            result.holders = list_device_holders(self.container.pid, devices)
        except Fault as fault:
            result.notes.append(f"whether a process holds the device open could not be found out: {fault.what}")

    def repair(self) -> Result:
        """Put back what the container has lost of its plan.

        Raises:
            Fault: a step failed and everything was taken back.
        """
        report = self._run_change(lambda session: session.repair())
        result = self._make_result(report)
        denied_devices = _parse_devices(report["denied_devices"])
        denied = [(path, numbers) for path, numbers in cast("list[tuple[str, list[int]]]", report["denied"])]
        if result.state == "repaired":
            result.changes += self._describe_denied(report)
            result.notes += self._finish_change(report)
            result.state = "repaired" if result.changes else "complete"
        result.notes += deny_container_devices(self.container, denied_devices)
        if denied:
            changes = [Change("node", path, (numbers[0], numbers[1])) for path, numbers in denied]
            removed = self._run(lambda session: session.revert(changes))
            if removed["changes"]:
                result.state = "repaired"
                result.changes += [f"removed {line}" for line in cast("list[str]", removed["changes"])]
        return result

    def _run(self, function: Callable[[ContainerSession], Report]) -> Report:
        """Call a function with a session in a child process."""

        def call() -> Report:
            return function(ContainerSession(self.container, self._config, self.record, self._store))

        return cast("Report", run_with_deadline(call))

    def _run_change(self, function: Callable[[ContainerSession], Report]) -> Report:
        """Do the same with a function that changes the container; take back what it has done if it fails."""
        try:
            report = self._run(function)
        except BaseException as error:
            self.record = self._load_record()
            self._take_back_after(error)
            raise
        self.record = self._load_record()  # the child has written what is pending
        return report

    def _finish_change(self, report: Report) -> list[str]:
        """Allow the devices and record that the changes are made; take everything back if that fails."""
        record, devices = self.record, _parse_devices(report["devices"])
        try:
            notes = allow_container_devices(self.container, devices)
            record.changes += record.pending
            record.devices += [device for device in record.pending_devices if device not in record.devices]
            record.pending, record.pending_devices = [], []
            self._store.save(record)
        except BaseException as error:
            self.record = self._load_record()
            self._take_back_after(error)
            raise
        return notes

    def _take_back_after(self, error: BaseException) -> None:
        """Take back what is pending after a failure, which is reported itself."""
        try:
            self._take_back_pending()
        except Fault as fault:
            if isinstance(error, Fault):
                error.hint = (
                    f"What was done could not be taken back ({fault.what}). "
                    f"Run gpu-oci-hook repair {self.container.reference}"
                )

    def _take_back_pending(self) -> Report:
        """Take back what is pending: the rules first, then the changes, the last one first."""
        record, done = self.record, cast("Report", {})
        if record.pending or record.pending_devices:
            deny_container_devices(self.container, record.pending_devices)
            pending = record.pending
            if pending:
                done = self._run(lambda session: session.revert(pending))
            record.pending, record.pending_devices = [], []
        self._store.save(record)
        return done

    def _load_record(self) -> AttachmentRecord:
        return self._store.load(self.container.pid, self.container.title)

    def _make_result(self, report: Report) -> Result:
        result = Result(self.container, str(report["state"]), _parse_gpus(report["gpus"]))
        result.changes = cast("list[str]", report.get("changes", []))
        result.missing = cast("list[str]", report.get("missing", []))
        result.notes = [*cast("list[str]", report.get("notes", [])), *cast("list[str]", report.get("warnings", []))]
        return result


def _parse_gpus(value: object) -> list[GivenGpu]:
    return [GivenGpu(*gpu) for gpu in cast("list[list[str]]", value)]


def _parse_devices(value: object) -> list[Device]:
    return [(major, minor) for major, minor in cast("list[list[int]]", value)]
