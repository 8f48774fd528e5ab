"""From what is asked, what is there and what the image is like to the list of edits; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.container.rootfs_edits import generated_file_name
from gpu_oci_hook.formats.oci import get_list, get_member, has_user_namespace
from gpu_oci_hook.formats.proc import disable_modify_device_files
from gpu_oci_hook.formats.program_names import is_cdi_hook, is_prestart_hook
from gpu_oci_hook.model.edits import AddFile, AddHook, DropHook, Plan, WithheldItem
from gpu_oci_hook.plan.devices import add_device_nodes
from gpu_oci_hook.plan.files import add_driver_files
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.plan_input import PlanInput

_HOOK_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer")

MOUNT_PROGRAM = "/usr/bin/mount"
DRIVER_PARAMS = "/proc/driver/nvidia/params"


def build_plan(plan_input: PlanInput) -> Plan:
    """The plan for a container that asks for the driver.

    Raises:
        Fault: something that the request cannot do without is not there, by name.
    """
    plan = Plan()
    plan.warnings += plan_input.request.warnings
    for name, reason in plan_input.request.withheld:
        plan.withheld.append(WithheldItem("request", name, reason))
    plan.withheld += [WithheldItem(kind, name, reason) for kind, name, reason in plan_input.optional_items.withheld]
    plan.warnings += plan_input.optional_items.warnings
    brought = add_implied_capabilities(plan_input.request.capabilities)
    _drop_prestart_hooks(plan_input, plan)
    add_device_nodes(plan_input, plan, brought)
    add_driver_files(plan_input, plan, brought)
    _mask_driver_params(plan_input, plan)
    return plan


def find_injecting_cdi_hook(spec: object) -> str:
    """Who has injected into this spec already, through CDI; "" when nobody has."""
    for stage in _HOOK_STAGES:
        for hook in get_list(spec, "hooks", stage):
            if is_cdi_hook(hook):
                return str(get_member(hook, "path"))
    return ""


def _drop_prestart_hooks(plan_input: PlanInput, plan: Plan) -> None:
    for stage in _HOOK_STAGES[:2]:
        for hook in get_list(plan_input.container.spec, "hooks", stage):
            if is_prestart_hook(hook):
                plan.edits.append(DropHook(stage, str(get_member(hook, "path")), "it would inject a second time"))


def _mask_driver_params(plan_input: PlanInput, plan: Plan) -> None:
    """`ModifyDeviceFiles: 0` in the container's view, when it has not every GPU.

    Else NVIDIA's libraries in the container try to make the missing nodes. runc refuses mounts below /proc in
    a spec, so a hook binds a file there; below a procfs of the container's, which no image can redirect.
    """
    if len(plan_input.chosen_gpus) == len(plan_input.gpus):
        return
    name = "ModifyDeviceFiles: 0"
    if plan_input.container.driver_params is None:
        reason = "the kernel of this machine shows containers no such file (simulated GPUs)"
        plan.withheld.append(WithheldItem("file", f"{DRIVER_PARAMS} ({name})", reason))
        return
    text = disable_modify_device_files(plan_input.container.driver_params)
    if text == plan_input.container.driver_params:
        return
    if not plan_input.config.hide_device_files:
        reason = "[inject] hide-device-files is off in the configuration"
        plan.withheld.append(WithheldItem("file", f"{DRIVER_PARAMS} ({name})", reason))
        return
    shown = any(
        get_member(mount, "destination") == "/proc"
        and get_member(mount, "type") == "proc"
        and "subset=pid" not in get_list(mount, "options")  # it has no drivers' files
        for mount in get_list(plan_input.container.spec, "mounts")
    )
    what = ""
    if not shown:
        what = "the container has no procfs on /proc that shows it"
    elif not plan_input.container.has_mount_program:
        what = f"the host has no {MOUNT_PROGRAM}"
    elif get_member(plan_input.container.spec, "linux", "rootfsPropagation") in ("shared", "rshared"):
        what = "the container shares its mounts with the host, which would then see it too"
    if what:
        plan.withheld.append(WithheldItem("file", f"{DRIVER_PARAMS} ({name})", what))
        return
    # Read-only, or the container's root could fill the host's /run through it. In a user namespace the file
    # belongs to nobody there, and a remount would have to repeat flags that we cannot know.
    how = (
        ()
        if plan_input.container.process_in_user_namespace or has_user_namespace(plan_input.container.spec)
        else ("-o", "ro,nosuid,nodev,noexec")
    )
    source = f"{plan_input.container.generated_dir}/{generated_file_name(DRIVER_PARAMS)}"
    plan.edits.append(AddFile(DRIVER_PARAMS, text, f"{name}: not every GPU was asked for", bind_mounted=True))
    plan.edits.append(
        AddHook(
            "createContainer",
            MOUNT_PROGRAM,
            ("mount", "--bind", *how, source, plan_input.container.rootfs_path + DRIVER_PARAMS),
            ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
            f"shows {name} to the driver's libraries, which else make nodes of other GPUs",
        )
    )
