"""Plan the content of a CDI file for this host: a device for each GPU and MIG device, one for all, one for none.

The host is read once and the driver files are planned once. A single device adds only a plan of its nodes, so 16 GPUs
with 7 MIG instances each take hardly longer than one GPU. All decisions are made in the room `plan`.

`containerEdits` of the file has what every device needs: NVIDIA_VISIBLE_DEVICES=void (so that nothing injects a second
time), the control nodes, the driver files and one hook. Each device has its own nodes and groups.

Import budget: cold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gpu_oci_hook.cdi.own_kinds import (
    ALL_DEVICE,
    CHANNEL_MODE,
    GPU_MODE,
    MANAGEMENT_MODE,
    NONE_DEVICE,
    ContentOptions,
    build_generate_request,
)
from gpu_oci_hook.cdi.provenance import INCOMPLETE_ANNOTATION, compute_fingerprint
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate.content import (
    VISIBLE_DEVICES_VOID,
    ContainerEdits,
    SpecContent,
    build_spec_content,
)
from gpu_oci_hook.generate.device_selection import PlannedDevice, select_devices
from gpu_oci_hook.generate.hook_entry import build_hook_arguments, build_hook_entry
from gpu_oci_hook.generate.host_facts import HostFacts
from gpu_oci_hook.generate.host_libraries import find_loader_directories
from gpu_oci_hook.generate.missing_nodes import MissingNode, extract_missing_control_nodes, extract_missing_device_nodes
from gpu_oci_hook.model.edits import Plan
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.plan.build import build_plan
from gpu_oci_hook.plan.devices import add_device_nodes
from gpu_oci_hook.plan.driver_problems import describe_absent_files, describe_version_mismatch

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Cache


@dataclass
class PlannedSpec:
    """The planned content of a CDI file, with its warnings.

    Attributes:
        spec: the content without `cdiVersion`, whichever version of CDI it needs.
        driver_version: version of the loaded kernel module; "" if none is loaded.
        fingerprint: hash of the host, see `compute_fingerprint`.
        missing_nodes: device nodes that the host lacks.
        warnings: sentences for people.
    """

    spec: ContainerEdits
    driver_version: str
    fingerprint: str
    missing_nodes: list[MissingNode] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def plan_spec(config: Config, options: ContentOptions, cache: Cache) -> PlannedSpec:
    """Plan the content of a CDI file.

    Arguments:
        config: decides as it does for the runtime.
        options: what the file shall contain.
        cache: cached driver files and MIG UUIDs.

    Raises:
        NoDriverError: there is no driver or no GPU.
        Fault: a requested or required device or file is missing, or the driver is half upgraded.
    """
    return _SpecPlanner(config, options, cache).plan_spec()


class _SpecPlanner:
    """Plans one file; the constructor reads the host."""

    def __init__(self, config: Config, options: ContentOptions, cache: Cache) -> None:
        self.config = config
        self.options = options
        self.kind = options.build_cdi_kind(config)
        self.facts = HostFacts(config, options, cache)
        self.missing_nodes: dict[str, MissingNode] = {}
        self.warnings = self.facts.warnings

    def plan_spec(self) -> PlannedSpec:
        """Plan the content; see the function of this name."""
        devices, common = self._plan_content()
        incomplete = self._describe_required_missing_nodes()
        fingerprint = compute_fingerprint(
            self.facts.driver_version, self.facts.gpus, self.facts.list_mig_ids(), self.facts.inventory.files
        )
        hook = self._build_hook(common, fingerprint, incomplete)
        spec: ContainerEdits = {"kind": self.kind}
        if incomplete:
            spec["annotations"] = {INCOMPLETE_ANNOTATION: incomplete}
        spec["devices"] = [
            {"name": name, "containerEdits": device.content.to_container_edits()}
            for device in devices
            for name in device.names
        ]
        edits = common.to_container_edits(hook)
        if edits:
            spec["containerEdits"] = edits
        if not spec["devices"]:
            raise Fault(
                "no device is left to write", hint="Choose other devices with --device, or other names with --name"
            )
        return PlannedSpec(
            spec, self.facts.driver_version, fingerprint, list(self.missing_nodes.values()), self._collect_warnings()
        )

    def _plan_content(self) -> tuple[list[PlannedDevice], SpecContent]:
        """Plan the devices, and the content that all of them need."""
        shared = self._plan_shared_content(self.facts.request)
        if self.options.mode == GPU_MODE:
            return self._plan_devices(), self._build_common_content(shared)
        if self.options.mode == MANAGEMENT_MODE:
            content = SpecContent(nodes=shared.nodes, gids=shared.gids)
            shared.nodes, shared.gids, shared.env = {}, [], [VISIBLE_DEVICES_VOID, *shared.env]
            return [PlannedDevice("all", [ALL_DEVICE], content=content)], shared
        devices = self._plan_feature_devices(shared)
        self.missing_nodes.clear()  # these files have neither GPU nodes nor control nodes
        return devices, SpecContent()

    def _describe_required_missing_nodes(self) -> str:
        """Describe the required nodes that the host lacks; "" for none.

        Raises:
            Fault: there are some, and the options do not allow that.
        """
        required = "; ".join(str(missing) for missing in self.missing_nodes.values() if missing.required)
        if required and not self.options.allow_incomplete:
            attempts = "".join(f"; {warning}" for warning in self.facts.load_problems)
            raise Fault(
                f"{required}{attempts}",
                hint="Create the nodes as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced. "
                "--allow-incomplete writes a file without them and marks it as incomplete",
            )
        return required

    def _collect_warnings(self) -> list[str]:
        """Collect all warnings, each once."""
        warnings = [str(missing) for missing in self.missing_nodes.values()]
        warnings += [*self.warnings, *self.facts.machine.problems]
        if self.facts.inventory.has_version_mismatch:
            warnings.append(describe_version_mismatch(self.facts.inventory))
        warnings += self.facts.inventory.problems
        return list(dict.fromkeys(warnings))

    def _plan_shared_content(self, request: Request) -> SpecContent:
        """Plan the content for all GPUs together, with the driver files."""
        plan_input = self.facts.build_plan_input(request, self.facts.all_gpus)
        self._record_missing_nodes(extract_missing_control_nodes(plan_input, self.facts.implied_by))
        if self.options.mode == MANAGEMENT_MODE:
            self._record_missing_nodes(extract_missing_device_nodes(plan_input, "management"))
            plan_input.chosen_gpus = [
                (gpu, origin) for gpu, origin in plan_input.chosen_gpus if plan_input.gpu_nodes[gpu.minor].exists
            ]
        plan = build_plan(plan_input)
        self.warnings += plan.warnings + describe_absent_files(plan.withheld)
        return build_spec_content(plan, plan_input)

    @cached_property
    def _no_gpu_content(self) -> SpecContent:
        """The nodes of a container without a GPU, which every other container has too."""
        return self._plan_device_nodes(PlannedDevice("none", []))

    def _build_common_content(self, shared_content: SpecContent) -> SpecContent:
        """Build the content that every device of the file needs: control nodes and all driver files."""
        shared_content.nodes, shared_content.gids = self._no_gpu_content.nodes, self._no_gpu_content.gids
        shared_content.env.insert(0, VISIBLE_DEVICES_VOID)
        return shared_content

    def _plan_device_nodes(self, device: PlannedDevice) -> SpecContent:
        """Plan the nodes of one device, with the control nodes. A device without a required node loses its names."""
        plan_input = self.facts.build_plan_input(self.facts.request, device.to_chosen_devices(self.facts))
        self._record_missing_nodes(extract_missing_control_nodes(plan_input, self.facts.implied_by))
        missing_nodes = extract_missing_device_nodes(plan_input, device.label)
        self._record_missing_nodes(missing_nodes)
        if any(missing.required for missing in missing_nodes):
            device.names = []  # without the node it would not be the device that the name promises
            return SpecContent()
        plan = Plan()
        add_device_nodes(plan_input, plan, self.facts.implied_by)
        self.warnings += plan_input.optional_items.warnings
        return build_spec_content(plan, plan_input)

    def _record_missing_nodes(self, missing_nodes: list[MissingNode]) -> None:
        for missing in missing_nodes:
            self.missing_nodes.setdefault(missing.path, missing)

    def _plan_devices(self) -> list[PlannedDevice]:
        """Plan the devices that the options name, with their content."""
        devices = select_devices(self.facts, self.options, self.warnings)
        for device in devices:
            device.content = self._plan_device_nodes(device).subtract_content(self._no_gpu_content)
        if ALL_DEVICE in self.options.selectors:
            content = SpecContent()
            for device in devices:
                if device.in_all:
                    content.nodes.update(device.content.nodes)
                    content.gids += [gid for gid in device.content.gids if gid not in content.gids]
            if content.nodes:
                devices.append(PlannedDevice("all", [ALL_DEVICE], content=content))
        if NONE_DEVICE in self.options.selectors:
            # The reference library refuses a device without edits. Every container has this variable anyway.
            devices.append(PlannedDevice("none", [NONE_DEVICE], content=SpecContent(env=[VISIBLE_DEVICES_VOID])))
        return devices

    def _plan_feature_devices(self, all_content: SpecContent) -> list[PlannedDevice]:
        """Plan the devices of an optional feature: what the request adds to a plan without the feature."""
        plain_request = build_generate_request(self.config, ContentOptions(capabilities=self.options.capabilities))
        added = all_content.subtract_content(self._plan_shared_content(plain_request))
        devices = []
        if self.options.mode == CHANNEL_MODE:
            for path, node in added.nodes.items():
                number = path.rpartition("channel")[2]
                devices.append(PlannedDevice(f"channel {number}", [number], content=SpecContent(nodes={path: node})))
        return [*devices, PlannedDevice("all", [ALL_DEVICE], content=added)]

    def _build_hook(self, common: SpecContent, fingerprint: str, incomplete: str) -> ContainerEdits | None:
        """Build the one hook of the file. Without a hook the links become mounts."""
        if self.options.mode not in (GPU_MODE, MANAGEMENT_MODE):
            return None
        if not self.options.hook_path:
            directories = find_loader_directories(self.facts.host, self.facts.inventory.files)
            common.move_libraries(*directories)
            for path in common.replace_links_by_mounts():
                self.warnings.append(f"{path} is left out: links need the hook")
            for _, path in common.sockets:
                self.warnings.append(f"{path} is left out: a mount would fail every start without its daemon")
            moved = any(path.startswith(f"{directories[0]}/") for path in common.mounts)
            folder = directories[0] if moved else ", ".join(common.folders)
            if folder:
                self.warnings.append(
                    f"a file without a hook does not configure the loader: the libraries are in {folder}. Images whose "
                    f"loader does not look there need LD_LIBRARY_PATH={folder.replace(', ', ':')}"
                )
            return None
        arguments = build_hook_arguments(common, self.facts, self.config, self.options)
        arguments.made_from = fingerprint
        arguments.made_by = self.options.rewrite_command
        arguments.incomplete = incomplete
        return build_hook_entry(self.options.hook_path, arguments)
