"""Look at a running container and change it, in the child process that enters its mount namespace.

Every function returns JSON-able data for the parent process. What is going to be changed is written into the record
before the first change.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.attach.container_plan import (
    ContainerPlanner,
    GivenGpu,
    list_nodes,
    list_spec_nodes,
)
from gpu_oci_hook.attach.running_container import RunningContainer
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.rootfs_edits import (
    GENERATED_DIR,
    RootfsEditor,
    generated_file_name,
    prepare_shared_directories,
)
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.formats.oci import get_list
from gpu_oci_hook.inject.device_links import make_device_links
from gpu_oci_hook.live.attachment_record import AttachmentRecord, Device, RecordStore
from gpu_oci_hook.live.container_changes import Change, ChangeReverter, list_changes
from gpu_oci_hook.live.container_entry import ContainerEntry
from gpu_oci_hook.live.missing_edits import find_missing_edits
from gpu_oci_hook.live.running_editor import RunningContainerEditor, restrict_writes_to_tmpfs
from gpu_oci_hook.model.edits import AddDeviceRule, AddGroup, AddMount, Edit, SetEnvVariable
from gpu_oci_hook.model.file_edits import AddFile, PrepareDirectory
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan.layout import Layout
from gpu_oci_hook.plan.live_edits import plan_live_edit

Report = dict[str, object]

# The edits that can be made in a container that runs.
_EDIT_KINDS = ("device", "rule", "mount", "directory", "link", "file", "hook")


class ContainerSession:
    """A container that this process can enter.

    Arguments:
        container, config, record: see their classes.
        store: has the record.
    """

    def __init__(
        self, container: RunningContainer, config: Config, record: AttachmentRecord, store: RecordStore
    ) -> None:
        self._container = container
        self._record = record
        self._store = store
        self._files = store.get_files_directory(record)
        self._generated_dir = f"{self._files}/{GENERATED_DIR}"
        self._entry = ContainerEntry(container.namespace_fd, container.uid_map)
        self._entry.open_root(writable_layer=container.has_writable_image())
        self._layout = Layout(container.spec, self._entry.layer, [], writable=True)
        self._planner = ContainerPlanner(container, config, record, self._entry, self._files)

    def attach(self, word: str, capabilities: tuple[str, ...]) -> Report:
        """Attach the GPUs that a word names; change nothing if the container has them.

        Raises:
            Fault: it cannot have them, or a change failed.
        """
        planner = self._planner
        named = planner.resolve(word, capabilities)
        current = planner.current_gpus
        known = {gpu.selector for gpu in current}
        added = [gpu for gpu in named if gpu.selector not in known]
        old_capabilities, new_capabilities = planner.choose_capabilities(()), planner.choose_capabilities(capabilities)
        before = planner.plan_gpus(current, old_capabilities)
        target = planner.plan_gpus([*current, *added], new_capabilities)
        if target is None or target.rootfs is None:
            raise Fault("nothing can be attached", where=f"--gpus {word}", hint="Run gpu-oci-hook list to see the GPUs")
        wanted = set(target.request.capabilities)
        if not added and before is not None and wanted <= set(before.request.capabilities):
            missing = find_missing_edits(_select_edits(before), self._entry.root, self._generated_dir)
            lacking = _describe_missing(missing)
            return {"state": "present", "gpus": named, "missing": lacking, "devices": _list_rule_devices(before)}
        report = self._apply(target, allowed=_list_rule_devices(before) if before is not None else [])
        return {**report, "state": "attached", "gpus": added or named, "selectors": [gpu.selector for gpu in added]}

    def plan_detachment(self, word: str) -> Report:
        """Find out what has to be taken away with the GPUs that a word names; change nothing.

        Arguments:
            word: "" for all that were attached.

        Raises:
            Fault: there is no such GPU.
        """
        planner, record = self._planner, self._record
        attached = planner.attached_gpus
        gone = self._choose_gone(word, attached)
        names = {gpu.selector for gpu in gone}
        remaining = [gpu for gpu in planner.current_gpus if gpu.selector not in names]
        kept_attached = [gpu for gpu in attached if gpu.selector not in names]
        capabilities = planner.choose_capabilities(())
        remaining_nodes = list_nodes(planner.plan_gpus(remaining, capabilities))
        kept = {node.numbers for node in remaining_nodes}
        try:
            current_nodes = list_nodes(planner.plan_gpus(planner.current_gpus, capabilities))
        except Fault:
            current_nodes = []  # a GPU that the machine has lost: the record has its nodes
        start_numbers = {node.numbers for node in current_nodes}
        gone_nodes = [node for node in current_nodes if node.numbers not in kept]
        gone_devices = [*dict.fromkeys([*[node.numbers for node in gone_nodes], *record.devices])]
        gone_devices = [numbers for numbers in gone_devices if numbers not in kept]
        spec_nodes = [node for node in list_spec_nodes(self._container.spec) if node.numbers in start_numbers - kept]
        paths = {node.path for node in (*gone_nodes, *spec_nodes)}
        removal = [
            change
            for change in record.changes
            if not kept_attached
            or (change.kind == "node" and change.numbers in gone_devices)
            or (change.kind in ("mount", "file-point") and change.path in paths)
        ]
        covered = {change.path for change in removal if change.kind in ("node", "mount")}
        extra = {
            node.path: Change("node", node.path, node.numbers)
            for node in (*gone_nodes, *spec_nodes)
            if node.path not in covered
        }
        start = {gpu.selector for gpu in planner.start_gpus}
        return {
            "gpus": gone,
            "remaining": remaining,
            "attached": [gpu.selector for gpu in kept_attached],
            "detached": [gpu.selector for gpu in gone if gpu.selector in start],
            "removal": [*removal, *extra.values()],
            "devices": gone_devices,
        }

    def _choose_gone(self, word: str, attached: list[GivenGpu]) -> list[GivenGpu]:
        """Return the GPUs of the container that a word names."""
        if not word:
            return attached
        by_selector = [gpu for gpu in self._planner.current_gpus if gpu.selector == word]
        if by_selector:
            return by_selector
        named = {gpu.selector for gpu in self._planner.resolve(word)}
        return [gpu for gpu in self._planner.current_gpus if gpu.selector in named]

    def repair(self) -> Report:
        """Put back what the container has lost of its plan.

        Raises:
            Fault: the plan cannot be made or carried out.
        """
        planner = self._planner
        gpus = planner.current_gpus
        target = planner.plan_gpus(gpus, planner.choose_capabilities(()))
        denied = self._list_denied_nodes(target)
        denied_devices = [numbers for _, numbers in denied]
        if target is None or target.plan.state != "inject":
            return {"state": "none", "gpus": gpus, "denied": denied, "denied_devices": denied_devices}
        report = self._apply(target, allowed=_list_rule_devices(target))
        return {**report, "state": "repaired", "gpus": gpus, "denied": denied, "denied_devices": denied_devices}

    def _list_denied_nodes(self, target: Outcome | None) -> list[tuple[str, Device]]:
        """Return the nodes of GPUs that the container was started with and that were detached."""
        if not self._record.detached:
            return []
        kept = {node.numbers for node in list_nodes(target)}
        try:
            start = list_nodes(self._planner.plan_gpus(self._planner.start_gpus))
        except Fault:
            return []  # the machine has lost the GPU
        return [(node.path, node.numbers) for node in start if node.numbers not in kept]

    def revert(self, changes: list[Change]) -> Report:
        """Take changes back."""
        restrict_writes_to_tmpfs(self._entry, self._layout.classify_resolved_path)
        self._entry.enter()
        reverter = ChangeReverter(self._entry.root, self._entry.layer, self._files)
        reverter.revert(changes)
        return {"notes": reverter.notes, "changes": reverter.reverted}

    def _apply(self, outcome: Outcome, *, allowed: list[Device]) -> Report:
        """Make the edits of a plan that the container lacks.

        Arguments:
            allowed: the devices whose rules stay if a later step fails.
        """
        edits = _select_edits(outcome)
        devices = _list_rule_devices(outcome)
        prepare_shared_directories(edits, self._generated_dir)
        missing = find_missing_edits(edits, self._entry.root, self._generated_dir)
        missing = _drop_unused_sources(missing, self._generated_dir)
        self._make_host_files(missing)
        editor = RunningContainerEditor(self._entry, self._generated_dir, self._layout.classify_resolved_path)
        try:
            editor.clone_sources(missing, f"{self._files}/scratch")
        except OSError as error:
            raise Fault(f"a mount for the container cannot be cloned: {describe_os_error(error)}") from None
        changes = list_changes(missing, self._entry.root, self._entry.layer, self._files)
        new_devices = [device for device in devices if device not in allowed]
        if changes or new_devices:
            self._record.pending, self._record.pending_devices = changes, new_devices
            self._store.save(self._record)
        links = make_device_links(outcome.plan)
        if missing:
            self._entry.enter()
            editor.apply_edits(missing)
        return {
            "changes": [*editor.changes, *links],
            "devices": devices,
            "notes": self._list_notes(outcome),
            "warnings": outcome.plan.warnings,
        }

    def _make_host_files(self, missing: list[Edit]) -> None:
        """Make the generated files and directories that are mounted, outside of the container."""
        if not any(isinstance(edit, (PrepareDirectory, AddFile)) for edit in missing):
            return
        os.makedirs(self._files, 0o700, exist_ok=True)
        editor = RootfsEditor(self._entry.layer, self._generated_dir)
        for edit in missing:
            if isinstance(edit, PrepareDirectory) or (isinstance(edit, AddFile) and edit.bind_mounted):
                edit.apply_to_rootfs(editor)

    def _list_notes(self, outcome: Outcome) -> list[str]:
        """Return a sentence for each edit that processes which run cannot get."""
        environment = get_list(self._container.spec, "process", "env")
        notes = []
        for edit in outcome.plan.edits:
            if isinstance(edit, SetEnvVariable) and f"{edit.name}={edit.value}" not in environment:
                notes.append(
                    f"a variable cannot be set in a container that runs: start processes with {edit.name}={edit.value}"
                )
            elif isinstance(edit, AddGroup):
                gids = get_list(self._container.spec, "process", "user", "additionalGids")
                if edit.gid not in gids:
                    notes.append(f"only root and group {edit.gid} of the container can open the nodes: {edit.reason}")
        return notes


def _select_edits(outcome: Outcome) -> list[Edit]:
    """Return what can be made in a container that runs. Hooks of other vendors' CDI files are not among it."""
    live = [plan_live_edit(edit) for edit in outcome.plan.edits if edit.kind in _EDIT_KINDS]
    return [each.edit for each in live if each.place in ("container", "cgroup")]


def _list_rule_devices(outcome: Outcome) -> list[Device]:
    return [(edit.major, edit.minor) for edit in outcome.plan.edits if isinstance(edit, AddDeviceRule)]


def _drop_unused_sources(edits: list[Edit], generated_dir: str) -> list[Edit]:
    """Return the edits without the generated files and directories that no other edit of them mounts."""
    sources = {edit.source for edit in edits if isinstance(edit, AddMount)}
    kept = []
    for edit in edits:
        if isinstance(edit, PrepareDirectory):
            is_used = edit.source in sources
        elif isinstance(edit, AddFile) and edit.bind_mounted:
            is_used = f"{generated_dir}/{generated_file_name(edit.path)}" in sources
        else:
            is_used = True
        if is_used:
            kept.append(edit)
    return kept


def _describe_missing(edits: list[Edit]) -> list[str]:
    """Describe the edits that a container lacks, without those that are only sources of others."""
    return [
        edit.describe()
        for edit in edits
        if not isinstance(edit, PrepareDirectory) and not (isinstance(edit, AddFile) and edit.bind_mounted)
    ]
