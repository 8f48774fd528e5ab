"""Plan what a running container has to have: what it was started with, what was attached, less what was detached.

The plan is the one that a start makes, for the container's root without its mounts. It is made in the child process
that looks at the container.

Import budget: cold.
"""

from __future__ import annotations

import functools
import os
import stat
from typing import NamedTuple

from gpu_oci_hook.attach.requested_spec import add_user_namespace, build_operator_config, build_requested_spec
from gpu_oci_hook.attach.running_container import RunningContainer
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.formats.program_names import is_prestart_hook
from gpu_oci_hook.host.device_nodes import read_device_majors
from gpu_oci_hook.host.gpus import read_machine_gpus
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.earlier_injection import strip_earlier_injection
from gpu_oci_hook.inject.pipeline import prepare_injection
from gpu_oci_hook.live.attachment_record import AttachmentRecord
from gpu_oci_hook.live.container_entry import ContainerEntry
from gpu_oci_hook.live.container_reality import describe_wrong_node
from gpu_oci_hook.live.device_access import DeviceRules, read_device_rules
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount, Edit
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan.build import find_injecting_cdi_hook
from gpu_oci_hook.request.capabilities import CAPABILITIES_VARIABLE
from gpu_oci_hook.request.environment import VISIBLE_DEVICES

ALL = "all"
_INJECTING_STAGES = ("prestart", "createRuntime")
_LIBCUDA_PREFIX = "libcuda.so."


class GivenGpu(NamedTuple):
    """A GPU or MIG device that a container has or gets.

    Attributes:
        selector: what names it for good: its UUID, or the index of a GPU without one.
        name: its index, or for a MIG device both indices.
        model: of the GPU.
    """

    selector: str
    name: str
    model: str

    def describe(self) -> str:
        """Return it for people."""
        kind = "MIG device" if ":" in self.name else "GPU"
        return f"{kind} {self.name} ({self.selector})" if self.selector != self.name else f"{kind} {self.name}"


class NodeNumbers(NamedTuple):
    """A device node in a container.

    Attributes:
        path: in the container.
        numbers: its major and minor.
    """

    path: str
    numbers: tuple[int, int]


class ContainerPlanner:
    """Plans for one running container.

    Arguments:
        container: the container.
        config: the configuration.
        record: what was attached and detached.
        entry: the way into the container, whose root is open.
        work_bundle: the directory that stands in for the bundle: the container's own may belong to a user.
    """

    def __init__(
        self,
        container: RunningContainer,
        config: Config,
        record: AttachmentRecord,
        entry: ContainerEntry,
        work_bundle: str,
    ) -> None:
        self._container = container
        self._config = config
        self._record = record
        self._root, self._layer = entry.root, entry.layer
        self._work_bundle = work_bundle
        self._stripped = strip_earlier_injection(container.spec, f"{container.bundle}/{GENERATED_DIR}")
        self._base = self._stripped or container.spec

    @functools.cached_property
    def start_outcome(self) -> Outcome | None:
        """The plan of the container's start; None if our runtime or a prestart hook has injected nothing."""
        hooks = [hook for stage in _INJECTING_STAGES for hook in get_list(self._container.spec, "hooks", stage)]
        if self._stripped is None and not any(map(is_prestart_hook, hooks)):
            return None
        spec = self._base
        if self._container.in_user_namespace:
            spec = add_user_namespace(spec)
        return prepare_injection(spec, self._config, self._work_bundle, state_dir.StateCache(), self._layer)

    @functools.cached_property
    def start_gpus(self) -> list[GivenGpu]:
        """The GPUs that the container was started with.

        Of those that a user's config.json claims, only the ones count that the container has: a change for one GPU
        would else bring all the others.
        """
        return list(filter(self._has_gpu, self._claimed_gpus)) if self._container.owner else self._claimed_gpus

    def _has_gpu(self, gpu: GivenGpu) -> bool:
        """Tell whether the container has the nodes of a GPU, and the kernel lets it open them."""
        try:
            nodes = list_nodes(self.plan([gpu.selector], ()))
        except Fault:
            return False
        accesses = self._device_rules.query([(*node.numbers, "rw") for node in nodes])
        return all(access.allowed for access in accesses) and not any(
            describe_wrong_node(self._root.stat_path(node.path), *node.numbers) for node in nodes
        )

    @functools.cached_property
    def _device_rules(self) -> DeviceRules:
        return read_device_rules(self._container.pid)

    @functools.cached_property
    def _claimed_gpus(self) -> list[GivenGpu]:
        if self.start_outcome is not None:
            return list_given_gpus(self.start_outcome)
        numbers = [node.numbers for node in list_spec_nodes(self._container.spec)]
        if not numbers:
            return []
        host = Host(self._config.root)
        major = read_device_majors(host).nvidia
        gpus = read_machine_gpus(host, self._config.platform).gpus
        return [
            GivenGpu(gpu.uuid or str(gpu.index), str(gpu.index), gpu.model)
            for gpu in gpus
            if (major, gpu.minor) in numbers
        ]

    @functools.cached_property
    def has_driver_of_its_own(self) -> bool:
        """Whether a CDI file or the user has put the driver's files in: then only device nodes are ours."""
        if self.start_outcome is not None:
            return False
        destinations = [get_text(mount, "destination") for mount in get_list(self._base, "mounts")]
        has_libcuda = any(path.rpartition("/")[2].startswith(_LIBCUDA_PREFIX) for path in destinations)
        return has_libcuda or bool(find_injecting_cdi_hook(self._base))

    @functools.cached_property
    def current_gpus(self) -> list[GivenGpu]:
        """The GPUs that the container has: from its start and attached, less those detached."""
        return self._kept_start_gpus + self.attached_gpus

    @functools.cached_property
    def _kept_start_gpus(self) -> list[GivenGpu]:
        return [gpu for gpu in self.start_gpus if gpu.selector not in self._record.detached]

    @functools.cached_property
    def attached_gpus(self) -> list[GivenGpu]:
        """The GPUs that were attached and are still there. `all` means those that the machine has now."""
        words = self._record.attached
        try:
            gpus = list_given_gpus(self.plan(words, ())) if words else []
        except Fault:
            gpus = [gpu for word in words for gpu in self._resolve_leniently(word)]
        known = {gpu.selector for gpu in self._kept_start_gpus}
        return [gpu for gpu in gpus if gpu.selector not in known]

    def _resolve_leniently(self, word: str) -> list[GivenGpu]:
        """Return the GPUs of one word; for a GPU that the machine has lost, one of that name."""
        try:
            return list_given_gpus(self.plan([word], ()))
        except Fault:
            return [GivenGpu(word, word, "")]

    def resolve(self, word: str, capabilities: tuple[str, ...] = ()) -> list[GivenGpu]:
        """Return the GPUs that the command line names.

        Raises:
            Fault: there is no such GPU, or the container cannot have it.
        """
        try:
            return list_given_gpus(self.plan([word], capabilities))
        except Fault as fault:
            where = fault.where
            for variable, option in ((VISIBLE_DEVICES, "--gpus"), (CAPABILITIES_VARIABLE, "--capabilities")):
                if where.startswith(f"{variable}="):
                    where = f"{option} {word if option == '--gpus' else ','.join(capabilities)}"
            raise Fault(fault.what, where=where, hint=fault.hint) from None

    def choose_capabilities(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """Return the capabilities to plan with: never fewer than the container has; empty for its own request."""
        if not requested and not self._record.capabilities:
            return ()
        known = [*requested, *self._record.capabilities]
        if self.start_outcome is not None:
            known += self.start_outcome.request.capabilities
        return (ALL,) if ALL in known else tuple(dict.fromkeys(known))

    def plan(self, selectors: list[str], capabilities: tuple[str, ...]) -> Outcome:
        """Plan for the container as if it had requested these GPUs; change nothing.

        Raises:
            Fault: it cannot have them.
        """
        spec = build_requested_spec(
            self._base,
            selectors,
            capabilities,
            self._config,
            in_user_namespace=self._container.in_user_namespace,
        )
        config = build_operator_config(self._config)
        outcome = prepare_injection(spec, config, self._work_bundle, state_dir.StateCache(), self._layer)
        if self.has_driver_of_its_own:
            outcome.plan.edits = list_device_edits(outcome.plan.edits)
        return outcome

    def plan_gpus(self, gpus: list[GivenGpu], capabilities: tuple[str, ...] = ()) -> Outcome | None:
        """Plan for exactly these GPUs; None for none.

        The plan of an unchanged start is used as it is, but not a user's: it can have more than GPUs.
        """
        is_unchanged = gpus == self.start_gpus and not capabilities and not self._container.owner
        if self.start_outcome is not None and is_unchanged:
            return self.start_outcome
        outcome = self.plan([gpu.selector for gpu in gpus], capabilities) if gpus else None
        if outcome is not None and self.start_outcome is None and all(gpu in self.start_gpus for gpu in gpus):
            # Somebody else has started it with these nodes, and with whatever else it has.
            numbers = {node.numbers for node in list_spec_nodes(self._container.spec)}
            outcome.plan.edits = list_device_edits(outcome.plan.edits, numbers)
        return outcome


def list_given_gpus(outcome: Outcome) -> list[GivenGpu]:
    """Return the GPUs and MIG devices that a plan gives, without the parents of MIG devices."""
    gpus = [
        GivenGpu(gpu.uuid if gpu.uuid and "?" not in gpu.uuid else str(gpu.index), str(gpu.index), gpu.model)
        for gpu, _ in outcome.chosen_gpus
        if gpu.index not in outcome.mig_parents
    ]
    return gpus + [
        GivenGpu(device.uuid or device.old_name, device.name, device.gpu.model)
        for device, _ in outcome.chosen_mig_devices
    ]


def list_device_edits(edits: list[Edit], numbers: set[tuple[int, int]] | None = None) -> list[Edit]:
    """Return the edits that bring device nodes and their rules. A node is made or bound by the edit before its rule.

    Arguments:
        numbers: of the devices that count; None for all.
    """
    kept: list[Edit] = []
    for previous, edit in zip([None, *edits], edits, strict=False):
        if isinstance(edit, AddDeviceRule) and (numbers is None or (edit.major, edit.minor) in numbers):
            if isinstance(previous, (AddDeviceNode, AddMount)):
                kept.append(previous)
            kept.append(edit)
    return kept


def list_nodes(outcome: Outcome | None) -> list[NodeNumbers]:
    """Return the device nodes that a plan brings, made or bound."""
    nodes: list[NodeNumbers] = []
    path = ""
    for edit in list_device_edits(outcome.plan.edits) if outcome is not None else ():
        if isinstance(edit, AddDeviceNode):
            path = edit.path
        elif isinstance(edit, AddMount):
            path = edit.destination
        elif isinstance(edit, AddDeviceRule):
            nodes.append(NodeNumbers(path, (edit.major, edit.minor)))
    return nodes


def list_spec_nodes(spec: object) -> list[NodeNumbers]:
    """Return the character devices that a config.json has: made, or bound from the host."""
    nodes: list[NodeNumbers] = []
    for device in get_list(spec, "linux", "devices"):
        path, major, minor = (get_member(device, key) for key in ("path", "major", "minor"))
        if isinstance(path, str) and isinstance(major, int) and isinstance(minor, int):
            nodes.append(NodeNumbers(path, (major, minor)))
    for mount in get_list(spec, "mounts"):
        path, source = get_text(mount, "destination"), get_text(mount, "source")
        if path.startswith("/dev/") and source.startswith("/dev/"):
            try:
                status = os.stat(source)
            except (OSError, ValueError):
                continue
            if stat.S_ISCHR(status.st_mode):
                nodes.append(NodeNumbers(path, (os.major(status.st_rdev), os.minor(status.st_rdev))))
    return nodes
