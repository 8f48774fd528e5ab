"""Collect GPUs, device nodes and driver files for a request from the host modules.

The shim uses it for a container that is being created, the CDI generator for containers to come.

Import budget: GPU container.
"""

from __future__ import annotations

import os

from gpu_oci_hook.container.image import find_board_compat, inspect_image
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.formats.oci import can_make_writable
from gpu_oci_hook.host.device_nodes import (
    find_uncreated_nodes,
    read_device_majors,
    read_module_parameters,
    resolve_control_nodes,
    resolve_gpu_node,
)
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.gpus import read_driver_version, read_machine_gpus
from gpu_oci_hook.host.mig.capability_files import read_mig_enabled_gpus
from gpu_oci_hook.inject.optional_items import gather_optional_items
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.plan_input import ContainerFacts, PlanInput
from gpu_oci_hook.plan.build import MOUNT_PROGRAM
from gpu_oci_hook.plan.driver_params import DRIVER_PARAMS, DRIVER_PARAMS_LIMIT
from gpu_oci_hook.request.selectors import has_all_selector, is_mig_selector, resolve_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.host.device_nodes import DeviceMajors, ModuleParameters
    from gpu_oci_hook.host.gpus import MachineGpus
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, DeviceNode, Gpu, Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.plan_input import AbsentControlNode, ControlNode
    from gpu_oci_hook.model.request import Request


class Machine:
    """The machine as the kernel's files describe it, the same for every request.

    Attributes:
        host: the file system that it was read from.
        config, cache: what its driver files and MIG devices are searched and cached with.
        majors, module_params: see their classes.
        driver_version: version of the running kernel module; None when it is not loaded.
        gpus: its GPUs, as containers can request them.
        left_out: one sentence for each GPU that cannot be given to containers here.
        platform: the platform; None for a desktop or server.
        problems: one sentence for each oddity that was found; every reader adds its own.
    """

    __slots__ = (
        "cache", "config", "driver_version", "gpus", "host", "left_out", "majors", "module_params", "platform",
        "problems",
    )  # fmt: skip

    def __init__(
        self,
        *,
        host: Host,
        config: Config,
        cache: Cache,
        majors: DeviceMajors,
        module_params: ModuleParameters,
        driver_version: str | None,
        machine_gpus: MachineGpus,
    ) -> None:
        self.host = host
        self.config = config
        self.cache = cache
        self.majors = majors
        self.module_params = module_params
        self.driver_version = driver_version
        self.gpus = machine_gpus.gpus
        self.left_out = machine_gpus.left_out
        self.platform = machine_gpus.platform
        self.problems = machine_gpus.problems

    @property
    def driver_host(self) -> Host:
        """The root that has the driver's files: the machine's own, or a driver container's below it."""
        return self.host.driver_host(self.config.driver_root)


def gather_machine(
    request: Request, host: Host, config: Config, cache: Cache, *, load_modules: bool, warnings: list[str]
) -> Machine:
    """Read the machine: its GPUs, its platform, the kernel's device numbers and the driver's version.

    Arguments:
        load_modules: kernel modules that the request needs may be loaded, and missing nodes of loaded ones created.
        warnings: takes a sentence for what could not be loaded or created.
    """
    majors = read_device_majors(host)
    machine_gpus = read_machine_gpus(host, config.platform)
    if machine_gpus.platform is None and load_modules and _lacks_kernel_module(majors, request):
        from gpu_oci_hook.host.kernel_modules import load_needed_modules

        majors = load_needed_modules(host, majors, request.capabilities, warnings)
        machine_gpus = read_machine_gpus(host, "desktop")  # a module that was just loaded shows its GPUs only now
    if machine_gpus.platform is None and load_modules:
        minors = [gpu.minor for gpu in machine_gpus.gpus]
        missing = find_uncreated_nodes(host, majors, minors[0] if minors else None, request.capabilities)
        if missing:
            from gpu_oci_hook.host.kernel_modules import create_nodes

            create_nodes(host, missing, minors, warnings)
    return Machine(
        host=host,
        config=config,
        cache=cache,
        majors=majors,
        module_params=read_module_parameters(host),
        driver_version=read_driver_version(host),
        machine_gpus=machine_gpus,
    )


def lacks_requested_gpu(machine: Machine, request: Request) -> bool:
    """Tell whether a desktop or server has no driver, or no GPU for a request that names one."""
    if machine.platform is not None:
        return False
    return machine.driver_version is None or bool(request.device_requests and not machine.gpus)


def choose_devices(machine: Machine, request: Request, warnings: list[str]) -> ChosenDevices:
    """Choose the GPUs and MIG devices that the request's selectors name.

    Arguments:
        warnings: takes a sentence for each GPU in MIG mode that is of no use to the container.

    Raises:
        Fault: a selector names no device, or several.
    """
    selectors, gpus = request.device_requests, machine.gpus
    if request.management_origin:
        return ChosenDevices([(gpu, request.management_origin) for gpu in gpus])
    # MIG mode is read only where it matters: one directory for each GPU is little, but every start would pay for it.
    all_requested = has_all_selector(selectors)
    # A container that configures and watches MIG gets whole GPUs.
    use_mig_devices = all_requested and not request.mig_rights
    mig_enabled = read_mig_enabled_gpus(machine.host, gpus) if use_mig_devices else frozenset()
    if any("?" in gpu.uuid for gpu in gpus):
        from gpu_oci_hook.inject.nvml_queries import identify_requested_gpus

        identify_requested_gpus(machine, selectors)
    try:
        chosen = resolve_gpus(selectors, gpus, mig_enabled)
    except Fault as fault:
        if not machine.left_out:
            raise
        from gpu_oci_hook.inject.no_gpu import add_left_out_gpus

        raise add_left_out_gpus(fault, machine) from None
    whole_gpus = [gpu for gpu, _ in chosen]
    mig_enabled_whole = (
        read_mig_enabled_gpus(machine.host, whole_gpus) if mig_enabled or not all_requested else frozenset()
    )
    has_mig_selector = any(is_mig_selector(device_request.selector) for device_request in selectors)
    if not (mig_enabled or mig_enabled_whole or request.mig_rights or has_mig_selector):
        return ChosenDevices(chosen)
    from gpu_oci_hook.request.mig_selectors import (
        CREATE_MIG_DEVICE_HINT,
        add_parent_gpus,
        report_empty_mig_gpus,
        report_whole_mig_gpus,
        resolve_mig_devices,
    )

    version = machine.driver_version or ""
    all_mig_devices = gather_mig_devices(machine.host, machine.config, gpus, version, machine.cache)
    mig_devices = resolve_mig_devices(selectors, gpus, mig_enabled, all_mig_devices)
    if mig_enabled_whole and not request.mig_rights:
        warnings += report_whole_mig_gpus(whole_gpus, mig_enabled_whole, all_mig_devices)
    chosen, mig_parents = add_parent_gpus(chosen, mig_devices)
    empty_gpus = report_empty_mig_gpus(gpus, mig_enabled, all_mig_devices)
    if empty_gpus and not chosen and machine.config.missing_gpu == "fail":
        raise Fault(empty_gpus[0], where=selectors[0].origin, hint=CREATE_MIG_DEVICE_HINT)
    warnings += empty_gpus
    return ChosenDevices(chosen, mig_devices=mig_devices, mig_parents=mig_parents, all_mig_devices=all_mig_devices)


def gather_mig_devices(host: Host, config: Config, gpus: list[Gpu], version: str, cache: Cache) -> MigDevices:
    """Return all MIG devices of the machine; each GPU's are read when they are needed.

    Arguments:
        gpus: the machine's GPUs.
        version: the driver's, "" if it is unknown.
    """
    from gpu_oci_hook.host.mig.mig_devices import MigDevices

    def find_library() -> str:
        from gpu_oci_hook.inject.nvml_queries import locate_nvml_library

        return locate_nvml_library(host, config, version, cache)

    return MigDevices(host, gpus, version, cache, find_library)


def gather_inventory(machine: Machine, request: Request, chosen_gpus: list[tuple[Gpu, str]]) -> Inventory:
    """Return the driver's files, from the cache or searched."""
    config, version, cache = machine.config, machine.driver_version, machine.cache
    if machine.platform is None:
        return load_inventory(machine.host, machine.driver_host, config.library_paths, version or "", cache)
    gpus = [gpu for gpu, _ in chosen_gpus]
    all_lists = request.use_all_csv_lists
    return machine.platform.collect_inventory(machine.driver_host, config, gpus, version, cache, all_lists=all_lists)


def gather_plan_input(
    machine: Machine, request: Request, chosen: ChosenDevices, inventory: Inventory, container: ContainerFacts
) -> PlanInput:
    """Gather the nodes and files of the chosen devices.

    Raises:
        Fault: something that was requested does not exist.
    """
    control_nodes, absent_control_nodes, gpu_nodes, items = gather_nodes(machine, request, chosen, inventory)
    return PlanInput(
        request=request,
        config=machine.config,
        inventory=inventory,
        gpus=machine.gpus,
        chosen_gpus=chosen.gpus,
        control_nodes=control_nodes,
        absent_control_nodes=absent_control_nodes,
        gpu_nodes=gpu_nodes,
        optional_items=items,
        container=container,
    )


def gather_nodes(
    machine: Machine, request: Request, chosen: ChosenDevices, inventory: Inventory
) -> tuple[list[ControlNode], list[AbsentControlNode], dict[int, DeviceNode], OptionalItems]:
    """Gather the device nodes of the chosen devices and the optional items of the request.

    Returns:
        Control nodes, control nodes that cannot be given, nodes of GPUs by minor number, optional items.

    Raises:
        Fault: something that was requested does not exist.
    """
    host, platform, problems = machine.host, machine.platform, machine.problems
    control_nodes: list[ControlNode] = []
    absent_control_nodes: list[AbsentControlNode] = []
    if platform is None or platform.needs_desktop_driver([gpu for gpu, _ in chosen.gpus]):
        control_nodes, absent_control_nodes = resolve_control_nodes(
            host, machine.majors, machine.module_params, problems
        )
    gpu_nodes = {
        gpu.minor: resolve_gpu_node(host, machine.majors, gpu.minor, machine.module_params, problems)
        for gpu, _ in chosen.gpus
        if gpu.minor >= 0
    }
    items = gather_optional_items(machine, request, chosen, inventory)
    if platform is not None:
        node_paths = {node.path for node in gpu_nodes.values()}
        node_paths.update([node.path for node, _ in (*items.nodes, *items.best_effort_nodes)])
        platform.add_platform_items(chosen.gpus, node_paths, items)
        # The platform's own nodes replace control nodes of the same path.
        item_paths = {node.path for node, _ in items.nodes}
        control_nodes = [entry for entry in control_nodes if entry[1].path not in item_paths]
        absent_control_nodes = [entry for entry in absent_control_nodes if entry[1] not in item_paths]
    return control_nodes, absent_control_nodes, gpu_nodes, items


def gather_container_facts(
    spec: dict[str, object], bundle: str, rootfs: Rootfs, machine: Machine, chosen: ChosenDevices
) -> ContainerFacts:
    """Look at the container's image, and at what this process can do for it."""
    image = inspect_image(rootfs, machine.host.machine)
    board_cuda = ""
    if machine.platform is not None:
        compat_roots, board_cuda = machine.platform.get_cuda_compat([gpu for gpu, _ in chosen.gpus])
        find_board_compat(image, rootfs, compat_roots)
    datacenter_only = False
    if image.compat_libcudas:
        from gpu_oci_hook.host.model_tables import is_datacenter_gpu

        datacenter_only = all(is_datacenter_gpu(gpu.model) for gpu, _ in chosen.gpus)
    generated_dir = f"{bundle}/{GENERATED_DIR}"
    in_user_namespace = is_process_in_user_namespace()
    return ContainerFacts(
        spec=spec,
        image=image,
        rootfs_reader=rootfs,
        rootfs_path=rootfs.path,
        generated_dir=generated_dir,
        shared_dir=_choose_shared_directory(spec, in_user_namespace=in_user_namespace) or generated_dir,
        process_in_user_namespace=in_user_namespace,
        driver_params=_read_visible_params(machine.host),
        has_mount_program=os.path.exists(MOUNT_PROGRAM),
        datacenter_only=datacenter_only,
        board_cuda=board_cuda,
    )


def _choose_shared_directory(spec: dict[str, object], *, in_user_namespace: bool) -> str:
    """Return the state directory if no container that shares it could change what is in it; else "".

    A process in a user namespace shares with containers whose root is the directory's owner (rootless engines).
    """
    if in_user_namespace or can_make_writable(spec, os.geteuid()):
        return ""
    return state_dir.find_state_directory()


def _read_visible_params(host: Host) -> bytes | None:
    """Read the module's parameters if a container will see that file, else None.

    A container's procfs is always the running kernel's, so a simulated host's parameters cannot be seen there.
    """
    if not os.path.exists(DRIVER_PARAMS):
        return None
    try:
        return host.read_file(DRIVER_PARAMS, DRIVER_PARAMS_LIMIT)
    except Fault:
        return None


def _lacks_kernel_module(majors: DeviceMajors, request: Request) -> bool:
    if not majors.nvidia_loaded:
        return True
    needs_uvm = "compute" in request.capabilities or "video" in request.capabilities
    return needs_uvm and majors.uvm is None
