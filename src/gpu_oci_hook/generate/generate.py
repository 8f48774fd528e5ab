"""This machine as one CDI file: a device for each GPU, each MIG device, all of them, and none of them.

The facts are gathered once and the files planned once; what a single device adds to that is a plan of its nodes alone,
so sixteen GPUs in seven parts each take hardly longer than one GPU. All decisions are `plan`'s.

In the file `containerEdits` has what every device needs: NVIDIA_VISIBLE_DEVICES=void, so that nobody injects a second
time, the control nodes, the driver's files, and one hook. A device has its own nodes and groups. Cost rule: cold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpu_oci_hook.cdi.own_kinds import (
    ALL_DEVICE,
    CHANNEL_MODE,
    GPU_MODE,
    MANAGEMENT_MODE,
    NONE_DEVICE,
    ContentOptions,
    build_generate_request,
)
from gpu_oci_hook.cdi.provenance import (
    INCOMPLETE_ANNOTATION,
    INCOMPLETE_COMMENT,
    REGENERATE_COMMENT,
    compute_fingerprint,
)
from gpu_oci_hook.cdi.spec.versions import (
    find_minimum_version,
    is_newer_version,
    list_reading_engines,
    list_refusing_engines,
)
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.cdi_names import is_device_name
from gpu_oci_hook.formats.program_names import HOOK_COMMAND
from gpu_oci_hook.generate.content import (
    VISIBLE_DEVICES_VOID,
    ContainerEdits,
    SpecContent,
    build_spec_content,
    build_unknown_container,
)
from gpu_oci_hook.generate.downgrade import downgrade_spec
from gpu_oci_hook.generate.emit import serialise_spec
from gpu_oci_hook.generate.missing_nodes import MissingNode, extract_missing_control_nodes, extract_missing_device_nodes
from gpu_oci_hook.hook.arguments import HookArguments
from gpu_oci_hook.host.mig.capability_files import read_mig_enabled_gpus
from gpu_oci_hook.host.mig.mig_devices import MigDevices
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import (
    choose_devices,
    gather_inventory,
    gather_machine,
    gather_mig_devices,
    gather_plan_input,
)
from gpu_oci_hook.inject.no_gpu import describe_missing_gpu, join_hints
from gpu_oci_hook.model.edits import Plan
from gpu_oci_hook.model.machine import Gpu, Inventory
from gpu_oci_hook.model.mig import MigDevice
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.plan_input import PlanInput
from gpu_oci_hook.model.request import DeviceRequest, Request
from gpu_oci_hook.plan.build import build_plan
from gpu_oci_hook.plan.devices import add_device_nodes
from gpu_oci_hook.plan.driver_problems import describe_version_mismatch
from gpu_oci_hook.request.capabilities import add_implied_capabilities

if TYPE_CHECKING:
    from gpu_oci_hook.cdi.own_kinds import ContentOptions
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.generate.content import ContainerEdits
    from gpu_oci_hook.model.machine import Cache

HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)


class NoDriverError(Fault):
    """There is no driver, or no GPU, and so nothing to write a file about."""


@dataclass
class PlannedSpec:
    """A file's content, and what is to be said about it.

    Attributes:
        spec: as it was planned, whichever version of CDI that needs; `cdiVersion` is not in it yet.
        driver_version: version of the running kernel module; "" where none is loaded.
        made_from: see `fingerprint`.
        missing_nodes: what the host did not have; `warnings`: sentences about the rest.
    """

    spec: ContainerEdits
    driver_version: str
    made_from: str
    missing_nodes: list[MissingNode] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class _PlannedDevice:
    """One device: its name for people, its names in the file, and what goes in for it."""

    label: str
    names: list[str]
    chosen_gpus: list[tuple[Gpu, str]] = field(default_factory=list)
    chosen_mig_devices: list[tuple[MigDevice, str]] = field(default_factory=list)
    in_all: bool = True
    content: SpecContent = field(default_factory=SpecContent)


def plan_spec(config: Config, options: ContentOptions, cache: Cache) -> PlannedSpec:
    """The file's content.

    Arguments:
        config: decides as it does for the shim.
        cache: where the driver's files and the MIG devices' UUIDs may be known from.

    Raises:
        Gone: there is no driver, or no GPU.
        Fault: something that is asked for, or required, is not there; or the driver is half upgraded.
    """
    return _SpecPlanner(config, options, cache).plan_spec()


class _SpecPlanner:
    """One file in the making: the machine is looked at once, in the constructor."""

    def __init__(self, config: Config, options: ContentOptions, cache: Cache) -> None:
        self.config = config
        self.options = options
        self.kind = options.build_cdi_kind(config)
        self.request = build_generate_request(config, options)
        self.warnings: list[str] = []
        self.host = Host(config.root)
        self.machine = gather_machine(
            self.request, self.host, config, cache, load_modules=config.load_modules, warnings=self.warnings
        )
        self.gpus, self.platform = self.machine.gpus, self.machine.platform
        version = self.machine.driver_version
        no_gpu = not self.gpus and options.selectors != (NONE_DEVICE,)
        if self.platform is None and (version is None or no_gpu):
            text, hints = describe_missing_gpu(self.machine)
            raise NoDriverError(text, hint=join_hints(hints))
        self.driver_version = version or ""
        self.all_gpus = ChosenDevices([(gpu, "") for gpu in self.gpus])
        self.inventory: Inventory = gather_inventory(self.machine, self.request, self.all_gpus.gpus)
        if self.inventory.has_version_mismatch and config.version_mismatch == "fail":
            raise Fault(describe_version_mismatch(self.inventory))
        self.mig_devices: MigDevices = gather_mig_devices(self.host, config, self.gpus, self.driver_version, cache)
        self.mig_enabled = read_mig_enabled_gpus(self.host, self.gpus)
        self.implied_by = add_implied_capabilities(self.request.capabilities)
        self.missing_nodes: dict[str, MissingNode] = {}

    def plan_spec(self) -> PlannedSpec:
        """See `plan_spec`."""
        made = self._plan_shared_content(self.request)
        if self.options.mode == GPU_MODE:
            found, common = self._plan_devices(), self._build_common_content(made)
        elif self.options.mode == MANAGEMENT_MODE:
            found, common = (
                [_PlannedDevice("all", [ALL_DEVICE], content=SpecContent(nodes=made.nodes, gids=made.gids))],
                made,
            )
            common.nodes, common.gids, common.env = {}, [], [VISIBLE_DEVICES_VOID, *made.env]
        else:
            found, common = self._plan_feature_devices(made), SpecContent()
            self.missing_nodes.clear()  # GPUs' nodes, and the driver's, are in none of these
        required = [missing for missing in self.missing_nodes.values() if missing.required]
        if required and not self.options.allow_incomplete:
            raise Fault(
                "; ".join(str(missing) for missing in required),
                hint="Make the nodes as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced. "
                "--allow-incomplete writes a file without them that says so",
            )
        made_from = compute_fingerprint(self.driver_version, self.gpus, self._list_mig_ids(), self.inventory.files)
        incomplete = "; ".join(str(missing) for missing in required)
        hook = (
            self._build_hook(common, made_from, incomplete)
            if self.options.mode in (GPU_MODE, MANAGEMENT_MODE)
            else None
        )
        spec: ContainerEdits = {"kind": self.kind}
        if required:
            spec["annotations"] = {INCOMPLETE_ANNOTATION: incomplete}
        spec["devices"] = [
            {"name": name, "containerEdits": one.content.to_container_edits()} for one in found for name in one.names
        ]
        edits = common.to_container_edits(hook)
        if edits:
            spec["containerEdits"] = edits
        if not spec["devices"]:
            raise Fault("no device is left to be written", hint="Name others with --device, or others with --name")
        warnings = [str(missing) for missing in self.missing_nodes.values()] + self.warnings
        warnings += self.machine.problems
        if self.inventory.has_version_mismatch:
            warnings.append(describe_version_mismatch(self.inventory))
        warnings += self.inventory.problems
        return PlannedSpec(
            spec, self.driver_version, made_from, list(self.missing_nodes.values()), list(dict.fromkeys(warnings))
        )

    def _build_plan_input(self, request: Request, chosen: ChosenDevices) -> PlanInput:
        """Gather what the machine has of these devices, for a container that does not exist yet."""
        container = build_unknown_container(self.host.machine)
        return gather_plan_input(self.machine, request, chosen, self.inventory, container)

    def _plan_shared_content(self, request: Request) -> SpecContent:
        """What goes in for all GPUs together, the files among it."""
        facts = self._build_plan_input(request, self.all_gpus)
        self._record_missing_nodes(extract_missing_control_nodes(facts, self.implied_by))
        if self.options.mode == MANAGEMENT_MODE:
            self._record_missing_nodes(extract_missing_device_nodes(facts, "management"))
            facts.chosen_gpus = [
                (gpu, origin) for gpu, origin in facts.chosen_gpus if facts.gpu_nodes[gpu.minor].exists
            ]
        plan = build_plan(facts)
        self.warnings += plan.warnings
        return build_spec_content(plan, facts)

    @cached_property
    def _no_gpu_content(self) -> SpecContent:
        """The nodes of a container without a GPU, which every other one has too."""
        return self._plan_device_nodes(_PlannedDevice("none", []))

    def _build_common_content(self, shared_content: SpecContent) -> SpecContent:
        """What every device of the file needs: nodes of a container without a GPU, and all files."""
        shared_content.nodes, shared_content.gids = self._no_gpu_content.nodes, self._no_gpu_content.gids
        shared_content.env.insert(0, VISIBLE_DEVICES_VOID)
        return shared_content

    def _plan_device_nodes(self, device: _PlannedDevice) -> SpecContent:
        """The nodes of a plan for one device, the control nodes among them."""
        chosen = ChosenDevices(device.chosen_gpus)
        if device.chosen_mig_devices:
            chosen = ChosenDevices(
                device.chosen_gpus,
                mig_devices=device.chosen_mig_devices,
                mig_parents=frozenset(gpu.index for gpu, _ in device.chosen_gpus),
                all_mig_devices=self.mig_devices,
            )
        facts = self._build_plan_input(self.request, chosen)
        self._record_missing_nodes(extract_missing_control_nodes(facts, self.implied_by))
        missing = extract_missing_device_nodes(facts, device.label)
        self._record_missing_nodes(missing)
        if any(one.required for one in missing):
            device.names = []  # it would be another device than its name says
            return SpecContent()
        plan = Plan()
        add_device_nodes(facts, plan, self.implied_by)
        self.warnings += facts.optional_items.warnings
        return build_spec_content(plan, facts)

    def _record_missing_nodes(self, missing_nodes: list[MissingNode]) -> None:
        for one in missing_nodes:
            self.missing_nodes.setdefault(one.path, one)

    def _plan_devices(self) -> list[_PlannedDevice]:
        """The devices that the options name, with their content."""
        found = self._select_devices()
        for one in found:
            one.content = self._plan_device_nodes(one).subtract_content(self._no_gpu_content)
        if ALL_DEVICE in self.options.selectors:
            together = SpecContent()
            for one in found:
                if one.in_all:
                    together.nodes.update(one.content.nodes)
                    together.gids += [gid for gid in one.content.gids if gid not in together.gids]
            if together.nodes:
                found.append(_PlannedDevice("all", [ALL_DEVICE], content=together))
        if NONE_DEVICE in self.options.selectors:
            # The reference library refuses a device without any edits: this is one that all containers have anyway.
            found.append(_PlannedDevice("none", [NONE_DEVICE], content=SpecContent(env=[VISIBLE_DEVICES_VOID])))
        return found

    def _select_devices(self) -> list[_PlannedDevice]:
        """The devices without `all` and `none`, in order."""
        gpus, divided = self.gpus, self.mig_enabled
        self._identify_mig_devices([gpu for gpu in gpus if gpu.index in divided])
        words = [word for word in self.options.selectors if word not in (ALL_DEVICE, NONE_DEVICE)]
        if ALL_DEVICE in self.options.selectors:
            whole = gpus
            parts = [one for gpu in gpus if gpu.index in divided for one in self.mig_devices.list_for_gpu(gpu)]
        else:
            self.request.device_requests = tuple(DeviceRequest(word, "--device") for word in words)
            chosen = choose_devices(self.machine, self.request, self.warnings)
            whole = [gpu for gpu, _ in chosen.gpus if gpu.index not in chosen.mig_parents]
            parts = [one for one, _ in chosen.mig_devices]
        found = [
            _PlannedDevice(f"GPU {gpu.index}", self._list_gpu_names(gpu), [(gpu, "")], in_all=gpu.index not in divided)
            for gpu in whole
        ]
        for one in parts:
            given = self._list_mig_device_names(one)
            found.append(_PlannedDevice(f"MIG device {one.name}", given, [(one.gpu, "")], [(one, "")]))
        return sorted(
            found, key=lambda one: (one.chosen_gpus[0][0].index, *[part.index for part, _ in one.chosen_mig_devices])
        )

    def _identify_mig_devices(self, mig_gpus: list[Gpu]) -> None:
        """Asks NVML for the MIG devices' order and UUIDs, which only it knows; a sentence when it does not say."""
        if not any(self.mig_devices.list_for_gpu(gpu) for gpu in mig_gpus):
            return
        try:
            self.mig_devices.list_with_uuids()
        except Fault as fault:
            if self.options.name_strategies == ("uuid",):
                raise
            self.warnings.append(
                f"MIG devices are written without their UUIDs, in the order of their ids, as NVML says neither: {fault}"
            )

    def _list_gpu_names(self, gpu: Gpu) -> list[str]:
        by = {"index": str(gpu.index), "uuid": gpu.uuid, "type-index": f"gpu{gpu.index}"}
        if gpu.uuid and not is_device_name(gpu.uuid) and "uuid" in self.options.name_strategies:
            self.warnings.append(f"GPU {gpu.index} has no name by UUID: the driver does not know it yet ({gpu.uuid})")
        return self._choose_valid_names(by)

    def _list_mig_device_names(self, mig_device: MigDevice) -> list[str]:
        by = {"index": mig_device.name, "uuid": mig_device.uuid, "type-index": f"mig{mig_device.name}"}
        if mig_device.uuid and not is_device_name(mig_device.uuid) and "uuid" in self.options.name_strategies:
            self.warnings.append(
                f"{mig_device.uuid} is no name that CDI allows: MIG device {mig_device.name} has none by UUID"
            )
        return self._choose_valid_names(by)

    def _choose_valid_names(self, names_by_strategy: dict[str, str]) -> list[str]:
        found = [
            names_by_strategy[way]
            for way in dict.fromkeys(self.options.name_strategies)
            if is_device_name(names_by_strategy[way])
        ]
        if not found:
            self.warnings.append(
                f"{names_by_strategy['type-index']} is left out: it has no name by {', '.join(self.options.name_strategies)}"
            )
        return found

    def _plan_feature_devices(self, all_content: SpecContent) -> list[_PlannedDevice]:
        """Devices for what comes beside GPUs: what the request's feature or channels add to a plan without them."""
        plain = build_generate_request(self.config, ContentOptions(capabilities=self.options.capabilities))
        added = all_content.subtract_content(self._plan_shared_content(plain))
        found = []
        if self.options.mode == CHANNEL_MODE:
            for path, node in added.nodes.items():
                number = path.rpartition("channel")[2]
                found.append(_PlannedDevice(f"channel {number}", [number], content=SpecContent(nodes={path: node})))
        return [*found, _PlannedDevice("all", [ALL_DEVICE], content=added)]

    def _list_mig_ids(self) -> list[tuple[int, int, int]]:
        return [
            (gpu.index, one.gi, one.ci)
            for gpu in self.gpus
            if gpu.index in self.mig_enabled
            for one in self.mig_devices.list_for_gpu(gpu)
        ]

    def _build_hook(self, common: SpecContent, made_from: str, incomplete: str) -> ContainerEdits | None:
        """The one hook; without it the links become mounts."""
        if not self.options.hook_path:
            for path in common.replace_links_by_mounts():
                self.warnings.append(f"{path} is left out: without a hook nobody makes links")
            self.warnings.append(
                "a file without a hook leaves the loader to the image: it must look in "
                f"{', '.join(common.folders + common.folders32) or 'the usual directories'} by itself"
            )
            return None
        errand = self._build_hook_arguments(common)
        errand.made_from, errand.made_by, errand.incomplete = made_from, self.options.rewrite_command, incomplete
        return {
            "hookName": "createContainer",
            "path": self.options.hook_path,
            "args": [*HOOK_COMMAND, *errand.to_command_line()],
            "env": list(HOOK_ENV),
        }

    def _build_hook_arguments(self, common: SpecContent) -> HookArguments:
        special, config = self.platform, self.config
        errand = common.to_hook_arguments()
        errand.driver_version = self.driver_version
        errand.cuda_compat = config.cuda_compat if "compute" in self.implied_by else "never"
        errand.root = config.root
        errand.requirements = not config.disable_require
        errand.log = self.options.hook_log or config.log_file
        if self.options.mode == GPU_MODE and (special is None or special.needs_desktop_driver(self.gpus)):
            draws = "graphics" in self.implied_by
            errand.hide_device_files = config.hide_device_files
            errand.egl_profile = errand.drm_links = draws
        return errand


def get_device_names(spec: ContainerEdits) -> list[str]:
    """The names of a file's devices, in its order."""
    found: list[Any] = spec["devices"]
    return [str(one["name"]) for one in found]


BASELINE_VERSION = "0.5.0"


@dataclass(frozen=True)
class SpecRecipe:
    """By what a file is made.

    Attributes:
        options: see its class. output_format: "yaml" or "json".
        max_version: the greatest version of CDI that may be needed, "" for any; reader: the engine that reads no more.
    """

    options: ContentOptions
    output_format: str = "yaml"
    max_version: str = ""
    target_engine: str = ""


@dataclass(frozen=True)
class BuiltSpec:
    """A file's bytes and what they say, with sentences for people.

    Attributes:
        unreadable_warning: a sentence about the engines that cannot read the file at all; "" where there are none to speak of, or
            where somebody has said who reads it.
    """

    data: bytes
    spec: ContainerEdits
    warnings: tuple[str, ...]
    unreadable_warning: str = ""

    def summarise(self) -> str:
        """The file in a few words."""
        names = get_device_names(self.spec)
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        count = f"{len(names)} device{'' if len(names) == 1 else 's'}"
        version = self.spec["cdiVersion"]
        readers = ", ".join(list_reading_engines(version))
        return f"{self.spec['kind']}, {count} ({shown}), CDI {version}, which {readers} and later read"


def build_spec(recipe: SpecRecipe, config: Config, cache: Cache) -> BuiltSpec:
    """Makes the file; raises as `generate.plan_spec` and `downgrade.downgrade_spec` do."""
    made = plan_spec(config, recipe.options, cache)
    warnings = list(made.warnings)
    if recipe.max_version:
        warnings += downgrade_spec(made.spec, recipe.max_version, recipe.target_engine)
    version, why = find_minimum_version(made.spec)
    spec: ContainerEdits = {"cdiVersion": version, **made.spec}
    command = recipe.options.rewrite_command
    comments = [f"{REGENERATE_COMMENT}{command}"] if command else []
    comments.append(f"made from {made.made_from}")
    if made.driver_version:
        comments.append(f"driver {made.driver_version}")
    comments += [f"{INCOMPLETE_COMMENT}{missing}" for missing in made.missing_nodes if missing.required]
    data = serialise_spec(spec, recipe.output_format, tuple(comments))
    if recipe.output_format == "json" and not spec.get("containerEdits", {}).get("hooks"):
        warnings.append("JSON without a hook cannot say that the file is ours: refresh will leave it alone; YAML can")
    refused = ""
    if not recipe.max_version and is_newer_version(version, BASELINE_VERSION):
        refused = (
            f"the file needs CDI {version} ({why.rpartition(': ')[2]}), and {', '.join(list_refusing_engines(version))} "
            "refuse it as a whole. Write one that they can read with --target ENGINE-VERSION, as in --target podman-4.3"
        )
    return BuiltSpec(data, spec, tuple(warnings), refused)
