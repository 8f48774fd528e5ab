"""CDI files with hooks, ours and those of NVIDIA's generator, and the program that both call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import cdi_edits
from support.e2e.host import InstalledRuntime, SimulatedHost

LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
PROBE = ["/probe", *(word for name in LIBRARIES for word in ("--library", name))]
SPEC_MAKERS = ("ours", "theirs")
OK = dict.fromkeys(LIBRARIES, "ok")


class HookProgram:
    """Our program under both names, and the edits that call it.

    Arguments:
        directory: for the launchers. prelude: Python that the launcher runs first.
    """

    def __init__(self, directory: Path, runtime: InstalledRuntime, simulated: SimulatedHost, prelude: str = "") -> None:
        directory.mkdir(exist_ok=True)
        self.host = simulated.root
        self.hook_arguments = cdi_edits.build_hook_arguments(simulated.root, simulated.version)
        root = f"from gpu_oci_hook.hook import nvidia_hooks; nvidia_hooks.HOST_ROOT = {str(simulated.root)!r}\n"
        self.paths = {}
        for way, name in (("ours", "gpu-oci-hook"), ("theirs", "nvidia-cdi-hook")):
            text = (root if way == "theirs" else "") + prelude
            self.paths[way] = cdi_edits.write_hook_launcher(directory / name, text, runtime.code)

    def edit(self, spec: dict[str, Any], way: str, nodes: dict[str, tuple[int, int]] | None = None) -> None:
        """Add a file's edits to a spec."""
        if nodes:
            cdi_edits.add_devices(spec, nodes)
        if way == "ours":
            cdi_edits.add_our_edits(spec, self.host, self.paths[way], self.hook_arguments)
        else:
            cdi_edits.add_nvidia_edits(spec, self.host, self.paths[way])


def build_spec_document(
    program: HookProgram, way: str, node: Path, *, bound: bool = False, kind: str = "nvidia.com/gpu"
) -> dict[str, Any]:
    """Build a CDI file with the edits of a bundle.

    Arguments:
        node: of the GPU. bound: it is a bind mount; runtimes without the right to make nodes bind the path of the
            node itself, which no machine of the tests has.
    """
    spec: dict[str, Any] = {"process": {"env": []}, "mounts": []}
    program.edit(spec, way)
    mounts = [
        {"hostPath": mount["source"], "containerPath": mount["destination"], "options": mount["options"]}
        for mount in spec["mounts"]
    ]
    hooks = [{"hookName": "createContainer", **hook} for hook in spec["hooks"]["createContainer"]]
    own: dict[str, Any] = {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": str(node)}]}
    if bound:
        options = ["bind", "nosuid", "noexec", "rprivate"]
        own = {"mounts": [{"hostPath": str(node), "containerPath": "/dev/nvidia0", "options": options}]}
    gpu = {"name": "gpu0", "containerEdits": own}
    edits = {"env": spec["process"]["env"], "mounts": mounts, "hooks": hooks}
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": [gpu], "containerEdits": edits}
