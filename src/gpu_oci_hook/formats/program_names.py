"""Recognise our hook, NVIDIA's hooks and our launchers by program name, arguments and marker lines.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.formats.oci import get_list, get_member

# Our programs, and the first arguments of the one hook that our CDI files reference.
RUNTIME_PROGRAM = "gpu-oci-runtime"
HOOK_PROGRAM = "gpu-oci-hook"
CREATE_CONTAINER = "create-container"
HOOK_COMMAND = (HOOK_PROGRAM, "hook", CREATE_CONTAINER)
PRECREATE = "precreate"
"""Our name for the hook of podman and CRI-O that changes config.json."""
PRESTART = "prestart"
"""The command of NVIDIA's prestart hook, and our name for that hook."""

# NVIDIA's programs. An older release of the prestart hook has the name of the whole toolkit.
NVIDIA_RUNTIME = "nvidia-container-runtime"
NVIDIA_PRESTART_HOOK = "nvidia-container-runtime-hook"
NVIDIA_CDI_HOOK = "nvidia-cdi-hook"
NVIDIA_CTK = "nvidia-ctk"
NVIDIA_CONTAINER_CLI = "nvidia-container-cli"
NVIDIA_PRESTART_HOOKS = (NVIDIA_PRESTART_HOOK, "nvidia-container-toolkit")
_NVIDIA_CDI_HOOKS = (NVIDIA_CDI_HOOK, NVIDIA_CTK)

SIMULATED_HOST_MARKER = ".gpu-oci-hook-simulate"
"""File at the root of every host that `simulate` made."""

# Programs of engines, which are sometimes taken for OCI runtimes.
ENGINE_PROGRAMS = (
    "docker", "dockerd", "podman", "containerd", "containerd-shim-runc-v2", "ctr", "nerdctl", "crictl", "crio",
    "conmon", "buildah", "kubelet",
)  # fmt: skip

LAUNCHER_MARKER = b"# Launcher of gpu-oci-hook, written by `gpu-oci-hook install`"
"""The line that marks a launcher written by `install`."""
LAUNCHER_HEAD_SIZE = 4096
"""Bytes at the beginning of a launcher that have the line: a compiled one has it in a note of its first page."""

# Import lines of a launcher of the runtime. Earlier versions wrote launchers that import `gpu_oci_hook.runtime`.
_RUNTIME_LAUNCHER_MARKS = (b"gpu_oci_hook.shim.main", b"gpu_oci_hook.runtime")


def get_program_name(path: object) -> str:
    """Return the file name of a program's path, or "" when the value is not text."""
    return path.rpartition("/")[2] if isinstance(path, str) else ""


def has_own_hook_arguments(hook: object) -> bool:
    """Tell whether a hook object has the arguments of our CDI hook, whatever its program (`cdi generate --hook`)."""
    return get_list(hook, "args")[1:3] == list(HOOK_COMMAND[1:])


def is_own_cdi_hook(hook: object) -> bool:
    """Tell whether a hook object is our program with the arguments of our CDI files."""
    return get_program_name(get_member(hook, "path")) == HOOK_PROGRAM and has_own_hook_arguments(hook)


def is_cdi_hook(hook: object) -> bool:
    """Tell whether a hook object comes from a CDI file of ours or of NVIDIA's generator."""
    return get_program_name(get_member(hook, "path")) in _NVIDIA_CDI_HOOKS or is_own_cdi_hook(hook)


def is_prestart_hook(hook: object) -> bool:
    """Tell whether a hook object injects GPUs by itself, as NVIDIA's prestart hook does."""
    name = get_program_name(get_member(hook, "path"))
    return name in NVIDIA_PRESTART_HOOKS or (name == HOOK_PROGRAM and PRESTART in get_list(hook, "args"))


def find_nvidia_hook_arguments(hook: object, name: str) -> list[str] | None:
    """Return the arguments after NAME of a hook object that runs NVIDIA's hook NAME, or None for any other hook."""
    # Our own program runs these hooks too.
    if get_program_name(get_member(hook, "path")) not in (*_NVIDIA_CDI_HOOKS, HOOK_PROGRAM):
        return None
    args = [arg for arg in get_list(hook, "args") if isinstance(arg, str)]
    return args[args.index(name) + 1 :] if name in args else None


def is_launcher(head: bytes) -> bool:
    """Tell whether a file that begins with these bytes is a launcher written by `install`."""
    return LAUNCHER_MARKER in head


def is_runtime_launcher(head: bytes) -> bool:
    """Tell whether a file that begins with these bytes starts our runtime: a script, or the compiled launcher."""
    is_program = head.startswith(b"#!") or (head.startswith(b"\x7fELF") and LAUNCHER_MARKER in head)
    return is_program and any(mark in head for mark in _RUNTIME_LAUNCHER_MARKS)
