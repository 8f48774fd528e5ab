"""From what is asked, what is there and what the image is like to the list of edits; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.container.apply import generated_name
from gpu_oci_hook.formats import proc
from gpu_oci_hook.formats.oci import in_user_namespace, items, member
from gpu_oci_hook.plan import devices, files
from gpu_oci_hook.plan.edits import DropHook, File, Hook, Plan, Withheld
from gpu_oci_hook.request.capabilities import with_brought

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.plan.facts import Facts

# Hooks that would inject a second time, by the name of their program.
_FOREIGN_PRESTART = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_CDI_HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")
_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer")

MOUNT_PROGRAM = "/usr/bin/mount"
PARAMS = "/proc/driver/nvidia/params"


def build(facts: Facts) -> Plan:
    """The plan for a container that asks for the driver.

    Raises:
        Fault: something that the request cannot do without is not there, by name.
    """
    plan = Plan()
    plan.warnings += facts.request.warnings
    for name, reason in facts.request.withheld:
        plan.withheld.append(Withheld("request", name, reason))
    plan.withheld += [Withheld(kind, name, reason) for kind, name, reason in facts.extra.withheld]
    plan.warnings += facts.extra.warnings
    brought = with_brought(facts.request.capabilities)
    _drop_hooks(facts, plan)
    devices.add(facts, plan, brought)
    files.add(facts, plan, brought)
    _hide_params(facts, plan)
    return plan


def already_done(spec: object) -> str:
    """Who has injected into this spec already, through CDI; "" when nobody has."""
    for stage in _STAGES:
        for hook in items(spec, "hooks", stage):
            path = member(hook, "path")
            if isinstance(path, str) and (path.rpartition("/")[2] in _CDI_HOOKS or _of_our_file(path, hook)):
                return path
    return ""


def _of_our_file(path: str, hook: object) -> bool:
    """Whether a hook is the one of the CDI files that we make: gpu-oci-hook hook create-container …"""
    return path.rpartition("/")[2] == "gpu-oci-hook" and items(hook, "args")[1:3] == ["hook", "create-container"]


def _drop_hooks(facts: Facts, plan: Plan) -> None:
    for stage in _STAGES[:2]:
        for hook in items(facts.spec, "hooks", stage):
            path = member(hook, "path")
            if not isinstance(path, str):
                continue
            name = path.rpartition("/")[2]
            ours = name == "gpu-oci-hook" and "prestart" in items(hook, "args")
            if name in _FOREIGN_PRESTART or ours:
                plan.edits.append(DropHook(stage, path, "it would inject a second time"))


def _hide_params(facts: Facts, plan: Plan) -> None:
    """`ModifyDeviceFiles: 0` in the container's view, when it has not every GPU.

    Else NVIDIA's libraries in the container try to make the missing nodes. runc refuses mounts below /proc in
    a spec, so a hook binds a file there; below a procfs of the container's, which no image can redirect.
    """
    if len(facts.chosen) == len(facts.gpus):
        return
    name = "ModifyDeviceFiles: 0"
    if facts.params is None:
        reason = "the kernel of this machine shows containers no such file (simulated GPUs)"
        plan.withheld.append(Withheld("file", f"{PARAMS} ({name})", reason))
        return
    text = proc.closed_params(facts.params)
    if text == facts.params:
        return
    if not facts.config.hide_device_files:
        reason = "[inject] hide-device-files is off in the configuration"
        plan.withheld.append(Withheld("file", f"{PARAMS} ({name})", reason))
        return
    shown = any(
        member(mount, "destination") == "/proc"
        and member(mount, "type") == "proc"
        and "subset=pid" not in items(mount, "options")  # it has no drivers' files
        for mount in items(facts.spec, "mounts")
    )
    what = ""
    if not shown:
        what = "the container has no procfs on /proc that shows it"
    elif not facts.mount_program:
        what = f"the host has no {MOUNT_PROGRAM}"
    elif member(facts.spec, "linux", "rootfsPropagation") in ("shared", "rshared"):
        what = "the container shares its mounts with the host, which would then see it too"
    if what:
        plan.withheld.append(Withheld("file", f"{PARAMS} ({name})", what))
        return
    # Read-only, or the container's root could fill the host's /run through it. In a user namespace the file
    # belongs to nobody there, and a remount would have to repeat flags that we cannot know.
    how = () if facts.inside or in_user_namespace(facts.spec) else ("-o", "ro,nosuid,nodev,noexec")
    source = f"{facts.generated}/{generated_name(PARAMS)}"
    plan.edits.append(File(PARAMS, text, f"{name}: not every GPU was asked for", mounted=True))
    plan.edits.append(
        Hook(
            "createContainer",
            MOUNT_PROGRAM,
            ("mount", "--bind", *how, source, facts.rootfs + PARAMS),
            ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
            f"shows {name} to the driver's libraries, which else make nodes of other GPUs",
        )
    )
