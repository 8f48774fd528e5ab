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

from gpu_oci_hook import absent, supply
from gpu_oci_hook.cdi import content, fingerprint, names, origin
from gpu_oci_hook.cdi.content import Content, Edits
from gpu_oci_hook.cdi.errand import Errand
from gpu_oci_hook.cdi.options import ALL, CHANNEL, GPU, MANAGEMENT, NONE, Options, request_for
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host.inventory import Gpu, Inventory
from gpu_oci_hook.host.mig import Instances, Mig
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.pipeline import Outcome
from gpu_oci_hook.plan import build, devices, lasting
from gpu_oci_hook.plan.edits import Plan
from gpu_oci_hook.plan.facts import Facts
from gpu_oci_hook.plan.lasting import Missing
from gpu_oci_hook.request import Ask, Request, capabilities

if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Memory

HOOK = ("gpu-oci-hook", "hook", "create-container")
HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)


class Gone(Fault):
    """There is no driver, or no GPU, and so nothing to write a file about."""


@dataclass
class Made:
    """A file's content, and what is to be said about it.

    Attributes:
        spec: as it was planned, whichever version of CDI that needs; `cdiVersion` is not in it yet.
        driver: version of the running kernel module; "" where none is loaded.
        made_from: see `fingerprint`.
        missing: what the host did not have; `warnings`: sentences about the rest.
    """

    spec: Edits
    driver: str
    made_from: str
    missing: list[Missing] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Device:
    """One device: its name for people, its names in the file, and what goes in for it."""

    label: str
    names: list[str]
    chosen: list[tuple[Gpu, str]] = field(default_factory=list)
    mig: list[tuple[Mig, str]] = field(default_factory=list)
    in_all: bool = True
    content: Content = field(default_factory=Content)


def generate(config: Config, options: Options, memory: Memory) -> Made:
    """The file's content.

    Arguments:
        config: decides as it does for the shim.
        memory: where the driver's files and the MIG devices' UUIDs may be known from.

    Raises:
        Gone: there is no driver, or no GPU.
        Fault: something that is asked for, or required, is not there; or the driver is half upgraded.
    """
    return _Maker(config, options, memory).make()


class _Maker:
    """One file in the making: the machine is looked at once, in the constructor."""

    def __init__(self, config: Config, options: Options, memory: Memory) -> None:
        self.config = config
        self.options = options
        self.kind = options.kind(config)
        self.request = request_for(config, options)
        self.outcome = Outcome(self.request, Plan())
        self.host = Host(config.root)
        self.machine: supply.Machine = supply.survey(self.outcome, self.host, config, load_modules=config.load_modules)
        version = self.machine.version
        no_gpu = not self.outcome.gpus and options.words != (NONE,)
        if self.outcome.special is None and (version is None or no_gpu):
            loaded = self.machine.numbers.loaded
            text, cures = absent.missing(self.outcome, self.host, config, version, memory, loaded=loaded)
            raise Gone(text, cure=absent.sentence(cures))
        self.version = version or ""
        self.outcome.chosen = [(gpu, "") for gpu in self.outcome.gpus]
        self.inventory: Inventory = supply.files_of(self.outcome, self.host, config, self.version, memory)
        if self.inventory.mismatch and config.version_mismatch == "fail":
            raise Fault(self.inventory.problems[0])
        self.instances: Instances = supply.mig_instances(self.outcome, self.host, config, self.version, memory)
        self.memory = memory
        self.divided = host_gpus.in_mig_mode(self.host, self.outcome.gpus)
        self.brought = capabilities.with_brought(self.request.capabilities)
        self.missing: dict[str, Missing] = {}
        self.warnings: list[str] = []

    def make(self) -> Made:
        """See `generate`."""
        made = self._files(self.request)
        if self.options.mode == GPU:
            found, common = self._devices(), self._common(made)
        elif self.options.mode == MANAGEMENT:
            found, common = [_Device("all", [ALL], content=Content(nodes=made.nodes, gids=made.gids))], made
            common.nodes, common.gids, common.env = {}, [], [content.VOID, *made.env]
        else:
            found, common = self._beside(made), Content()
            self.missing.clear()  # GPUs' nodes, and the driver's, are in none of these
        required = [missing for missing in self.missing.values() if missing.required]
        if required and not self.options.allow_incomplete:
            raise Fault(
                "; ".join(str(missing) for missing in required),
                cure="Make the nodes as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced. "
                "--allow-incomplete writes a file without them that says so",
            )
        made_from = fingerprint.of(self.version, self.outcome.gpus, self._parts(), self.inventory.files)
        incomplete = "; ".join(str(missing) for missing in required)
        hook = self._hook(common, made_from, incomplete) if self.options.mode in (GPU, MANAGEMENT) else None
        spec: Edits = {"kind": self.kind}
        if required:
            spec["annotations"] = {origin.ANNOTATION: incomplete}
        spec["devices"] = [
            {"name": name, "containerEdits": one.content.edits()} for one in found for name in one.names
        ]
        edits = common.edits(hook)
        if edits:
            spec["containerEdits"] = edits
        if not spec["devices"]:
            raise Fault("no device is left to be written", cure="Name others with --device, or others with --name")
        warnings = [str(missing) for missing in self.missing.values()] + self.outcome.plan.warnings + self.warnings
        warnings += [*self.machine.problems, *self.inventory.problems]
        return Made(spec, self.version, made_from, list(self.missing.values()), list(dict.fromkeys(warnings)))

    def _facts(self, request: Request, chosen: list[tuple[Gpu, str]], mig: list[tuple[Mig, str]]) -> Facts:
        """What the machine gives for these devices, to a container that does not exist yet."""
        one = Outcome(request, self.outcome.plan)
        one.gpus, one.special, one.inventory = self.outcome.gpus, self.outcome.special, self.inventory
        one.chosen, one.mig = chosen, mig
        if mig:
            one.instances = self.instances
            one.parents = frozenset(gpu.index for gpu, _ in chosen)
        facts = supply.given(one, self.machine, self.config, {})
        content.without_image(facts, self.host.machine)
        return facts

    def _files(self, request: Request) -> Content:
        """What goes in for all GPUs together, the files among it."""
        facts = self._facts(request, [(gpu, "") for gpu in self.outcome.gpus], [])
        self._note(lasting.control(facts, self.brought))
        if self.options.mode == MANAGEMENT:
            self._note(lasting.own(facts, "management"))
            facts.chosen = [(gpu, origin) for gpu, origin in facts.chosen if facts.gpu_nodes[gpu.minor].exists]
        plan = build.build(facts)
        self.warnings += plan.warnings
        return content.of(plan, facts)

    @cached_property
    def _none(self) -> Content:
        """The nodes of a container without a GPU, which every other one has too."""
        return self._nodes(_Device("none", []))

    def _common(self, made: Content) -> Content:
        """What every device of the file needs: nodes of a container without a GPU, and all files."""
        made.nodes, made.gids = self._none.nodes, self._none.gids
        made.env.insert(0, content.VOID)
        return made

    def _nodes(self, device: _Device) -> Content:
        """The nodes of a plan for one device, the control nodes among them."""
        facts = self._facts(self.request, device.chosen, device.mig)
        self._note(lasting.control(facts, self.brought))
        missing = lasting.own(facts, device.label)
        self._note(missing)
        if any(one.required for one in missing):
            device.names = []  # it would be another device than its name says
            return Content()
        plan = Plan()
        devices.add(facts, plan, self.brought)
        self.warnings += facts.extra.warnings
        return content.of(plan, facts)

    def _note(self, missing: list[Missing]) -> None:
        for one in missing:
            self.missing.setdefault(one.path, one)

    def _devices(self) -> list[_Device]:
        """The devices that the options name, with their content."""
        found = self._named()
        for one in found:
            one.content = self._nodes(one).beyond(self._none)
        if ALL in self.options.words:
            together = Content()
            for one in found:
                if one.in_all:
                    together.nodes.update(one.content.nodes)
                    together.gids += [gid for gid in one.content.gids if gid not in together.gids]
            if together.nodes:
                found.append(_Device("all", [ALL], content=together))
        if NONE in self.options.words:
            # The reference library refuses a device without any edits: this is one that all containers have anyway.
            found.append(_Device("none", [NONE], content=Content(env=[content.VOID])))
        return found

    def _named(self) -> list[_Device]:
        """The devices without `all` and `none`, in order."""
        gpus, divided = self.outcome.gpus, self.divided
        self._identify([gpu for gpu in gpus if gpu.index in divided])
        words = [word for word in self.options.words if word not in (ALL, NONE)]
        if ALL in self.options.words:
            whole = gpus
            parts = [one for gpu in gpus if gpu.index in divided for one in self.instances.of(gpu)]
        else:
            wanted = Outcome(self.request, self.outcome.plan)
            wanted.gpus, wanted.special = gpus, self.outcome.special
            self.request.asks = tuple(Ask(word, "--device") for word in words)
            supply.choose(wanted, self.host, self.config, self.version, self.memory)
            whole = [gpu for gpu, _ in wanted.chosen if gpu.index not in wanted.parents]
            parts = [one for one, _ in wanted.mig]
        found = [
            _Device(f"GPU {gpu.index}", self._names_of(gpu), [(gpu, "")], in_all=gpu.index not in divided)
            for gpu in whole
        ]
        for one in parts:
            given = self._names_of_part(one)
            found.append(_Device(f"MIG device {one.name}", given, [(one.gpu, "")], [(one, "")]))
        return sorted(found, key=lambda one: (one.chosen[0][0].index, *[part.index for part, _ in one.mig]))

    def _identify(self, divided: list[Gpu]) -> None:
        """Asks NVML for the MIG devices' order and UUIDs, which only it knows; a sentence when it does not say."""
        if not any(self.instances.of(gpu) for gpu in divided):
            return
        try:
            self.instances.identified()
        except Fault as fault:
            if self.options.names == ("uuid",):
                raise
            self.warnings.append(
                f"MIG devices are written without their UUIDs, in the order of their ids, as NVML says neither: {fault}"
            )

    def _names_of(self, gpu: Gpu) -> list[str]:
        by = {"index": str(gpu.index), "uuid": gpu.uuid, "type-index": f"gpu{gpu.index}"}
        if gpu.uuid and not names.is_device(gpu.uuid) and "uuid" in self.options.names:
            self.warnings.append(f"GPU {gpu.index} has no name by UUID: the driver does not know it yet ({gpu.uuid})")
        return self._usable(by)

    def _names_of_part(self, one: Mig) -> list[str]:
        by = {"index": one.name, "uuid": one.uuid, "type-index": f"mig{one.name}"}
        if one.uuid and not names.is_device(one.uuid) and "uuid" in self.options.names:
            self.warnings.append(f"{one.uuid} is no name that CDI allows: MIG device {one.name} has none by UUID")
        return self._usable(by)

    def _usable(self, by: dict[str, str]) -> list[str]:
        found = [by[way] for way in dict.fromkeys(self.options.names) if names.is_device(by[way])]
        if not found:
            self.warnings.append(f"{by['type-index']} is left out: it has no name by {', '.join(self.options.names)}")
        return found

    def _beside(self, made: Content) -> list[_Device]:
        """Devices for what comes beside GPUs: what the request's feature or channels add to a plan without them."""
        plain = request_for(self.config, Options(capabilities=self.options.capabilities))
        added = made.beyond(self._files(plain))
        found = []
        if self.options.mode == CHANNEL:
            for path, node in added.nodes.items():
                number = path.rpartition("channel")[2]
                found.append(_Device(f"channel {number}", [number], content=Content(nodes={path: node})))
        return [*found, _Device("all", [ALL], content=added)]

    def _parts(self) -> list[tuple[int, int, int]]:
        return [
            (gpu.index, one.gi, one.ci)
            for gpu in self.outcome.gpus
            if gpu.index in self.divided
            for one in self.instances.of(gpu)
        ]

    def _hook(self, common: Content, made_from: str, incomplete: str) -> Edits | None:
        """The one hook; without it the links become mounts."""
        if not self.options.hook:
            for path in common.bind_links():
                self.warnings.append(f"{path} is left out: without a hook nobody makes links")
            self.warnings.append(
                "a file without a hook leaves the loader to the image: it must look in "
                f"{', '.join(common.folders + common.folders32) or 'the usual directories'} by itself"
            )
            return None
        errand = self._errand(common)
        errand.made_from, errand.made_by, errand.incomplete = made_from, self.options.command, incomplete
        return {
            "hookName": "createContainer",
            "path": self.options.hook,
            "args": [*HOOK, *errand.words()],
            "env": list(HOOK_ENVIRONMENT),
        }

    def _errand(self, common: Content) -> Errand:
        special, config = self.outcome.special, self.config
        errand = common.errand()
        errand.driver_version = self.version
        errand.cuda_compat = config.cuda_compat if "compute" in self.brought else "never"
        errand.root = config.root
        errand.requirements = not config.disable_require
        errand.log = self.options.hook_log or config.log_file
        if self.options.mode == GPU and (special is None or special.ordinary(self.outcome.gpus)):
            draws = "graphics" in self.brought
            errand.hide_device_files = config.hide_device_files
            errand.egl_profile = errand.drm_links = draws
        return errand


def device_names(spec: Edits) -> list[str]:
    """The names of a file's devices, in its order."""
    found: list[Any] = spec["devices"]
    return [str(one["name"]) for one in found]
