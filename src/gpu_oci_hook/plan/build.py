"""Build the injection plan from request, machine and container facts. No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.rootfs_edits import generated_file_name
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, has_user_namespace, is_bind_mount, is_utf8_text
from gpu_oci_hook.formats.program_names import is_cdi_hook, is_prestart_hook
from gpu_oci_hook.model.edits import DEFAULT_HOOK_ENV, AddHook, AddMount, DropHook, Plan, WithheldItem
from gpu_oci_hook.model.file_edits import AddFile
from gpu_oci_hook.plan.devices import add_device_nodes
from gpu_oci_hook.plan.driver_params import (
    DRIVER_PARAMS,
    MODIFY_DEVICE_FILES,
    NO_PROCFS_REASON,
    SHARED_MOUNTS_REASON,
    build_hidden_params,
)
from gpu_oci_hook.plan.files import add_driver_files
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.edits import Edit
    from gpu_oci_hook.model.plan_input import ContainerFacts, PlanInput

_HOOK_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer")
# Without startContainer, whose programs are the container's own.
_HOST_HOOK_STAGES = ("prestart", "createRuntime", "createContainer", "poststart", "poststop")

MOUNT_PROGRAM = "/usr/bin/mount"


def build_plan(plan_input: PlanInput) -> Plan:
    """Build the plan of a container that needs the driver.

    Raises:
        Fault: something that the request cannot do without is missing; names it.
    """
    plan = Plan()
    plan.warnings += plan_input.request.warnings
    plan.withheld += [WithheldItem("request", name, reason) for name, reason in plan_input.request.withheld]
    plan.withheld += [WithheldItem(kind, name, reason) for kind, name, reason in plan_input.optional_items.withheld]
    plan.warnings += plan_input.optional_items.warnings
    _refuse_mount_on_root(plan_input.container)
    implied_by = add_implied_capabilities(plan_input.request.capabilities)
    add_device_nodes(plan_input, plan, implied_by)
    add_driver_files(plan_input, plan, implied_by)
    _mask_driver_params(plan_input, plan)
    _refuse_unnameable_paths(plan)
    return plan


def _refuse_unnameable_paths(plan: Plan) -> None:
    """Refuse a plan whose config.json would have to name a bundle or a device node by a path that is not UTF-8.

    Raises:
        Fault: it is such a plan; names the path.
    """
    for edit in plan.edits:
        paths = (edit.source, edit.destination) if isinstance(edit, AddMount) else ()
        for path in edit.args if isinstance(edit, AddHook) else paths:
            if not is_utf8_text(path):
                from gpu_oci_hook.plan.unnameable_paths import make_unnameable_path_fault

                raise make_unnameable_path_fault(path)


def _refuse_mount_on_root(container: ContainerFacts) -> None:
    """Refuse a config.json that mounts a directory on "/" and nothing on /dev.

    runc creates device nodes after the mounts, so it would create them in the mounted directory of the host.

    Raises:
        Fault: it is such a config.json.
    """
    mounts = get_list(container.spec, "mounts")
    roots = [mount for mount in mounts if get_member(mount, "destination") == "/" and is_bind_mount(mount)]
    if roots and not any(get_member(mount, "destination") in ("/dev", "/dev/") for mount in mounts):
        raise Fault(
            f"{get_member(roots[-1], 'source')} is mounted on /, and device nodes would be created in it",
            where="config.json: mounts",
            hint="Name that directory as root.path, or mount a tmpfs on /dev",
        )


def find_injecting_cdi_hook(spec: object) -> str:
    """Return the program of a hook by which a CDI file has injected into this config.json already; "" without one."""
    for stage in _HOOK_STAGES:
        for hook in get_list(spec, "hooks", stage):
            if is_cdi_hook(hook):
                return str(get_member(hook, "path"))
    return ""


def list_gpu_hook_removals(spec: object) -> list[Edit]:
    """Return the edits that remove the hooks which inject GPUs by themselves, such as docker's for `--gpus`.

    They are removed from every container, whether it gets a GPU or not: this runtime decides that, and a second
    injector would decide otherwise or stop the start.
    """
    removals: list[Edit] = []
    for stage in _HOST_HOOK_STAGES:
        for hook in get_list(spec, "hooks", stage):
            if is_prestart_hook(hook):
                path = str(get_member(hook, "path"))
                if not any(
                    isinstance(edit, DropHook) and (edit.stage, edit.path) == (stage, path) for edit in removals
                ):
                    removals.append(DropHook(stage, path, "gpu-oci-runtime injects GPUs in its place"))
    return removals


def _mask_driver_params(plan_input: PlanInput, plan: Plan) -> None:
    """Show `ModifyDeviceFiles: 0` to a container that does not get every GPU; see `plan.driver_params`."""
    if len(plan_input.chosen_gpus) == len(plan_input.gpus):
        return
    container = plan_input.container
    content = build_hidden_params(container.driver_params)
    obstacle = ""
    if container.driver_params is None:
        obstacle = "containers have no such file, because the GPUs are simulated"
    elif content is None:
        return
    elif not plan_input.config.hide_device_files:
        obstacle = "[inject] hide-device-files is off in the configuration"
    else:
        obstacle = _find_masking_obstacle(container)
    if obstacle or content is None:
        plan.withheld.append(WithheldItem("file", f"{DRIVER_PARAMS} ({MODIFY_DEVICE_FILES})", obstacle))
        return
    reason = f"{MODIFY_DEVICE_FILES}: not every GPU was requested"
    plan.edits.append(AddFile(DRIVER_PARAMS, content, reason, bind_mounted=True))
    plan.edits.append(_build_masking_hook(container))


def _find_masking_obstacle(container: ContainerFacts) -> str:
    """Return why nothing can be mounted over the container's DRIVER_PARAMS; "" if it can."""
    shown = any(
        get_member(mount, "destination") == "/proc"
        and get_member(mount, "type") == "proc"
        and "subset=pid" not in get_list(mount, "options")  # without the files of drivers
        for mount in get_list(container.spec, "mounts")
    )
    if not shown:
        return NO_PROCFS_REASON
    if not container.has_mount_program:
        return f"the host has no {MOUNT_PROGRAM}"
    if get_member(container.spec, "linux", "rootfsPropagation") in ("shared", "rshared"):
        return SHARED_MOUNTS_REASON
    return ""


def _build_masking_hook(container: ContainerFacts) -> AddHook:
    """Build the hook that mounts the file: runc refuses mounts below /proc in a config.json.

    No image can redirect the mount, since it is below a procfs.
    """
    # Read-only, or the container's root could fill the host's /run through it. In a user namespace the file's owner
    # is not mapped, and a remount would have to repeat flags that are unknown here.
    in_user_namespace = container.process_in_user_namespace or has_user_namespace(container.spec)
    options = () if in_user_namespace else ("-o", "ro,nosuid,nodev,noexec")
    source = f"{container.generated_dir}/{generated_file_name(DRIVER_PARAMS)}"
    return AddHook(
        "createContainer",
        MOUNT_PROGRAM,
        ("mount", "--bind", *options, source, container.rootfs_path + DRIVER_PARAMS),
        DEFAULT_HOOK_ENV,
        f"shows {MODIFY_DEVICE_FILES} to the driver's libraries, which would create nodes of other GPUs",
    )
