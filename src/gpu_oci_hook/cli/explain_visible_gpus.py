"""Number the GPUs as the container's programs do, and check CUDA_VISIBLE_DEVICES against them.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.model.outcome import Outcome

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def check_cuda_visible_devices(environment: Mapping[str, str], outcome: Outcome) -> list[str]:
    """Warn of a CUDA_VISIBLE_DEVICES that hides every GPU or names one that the container lacks.

    CUDA counts inside the container, and uses the devices before the first one that does not exist
    (facts: cuda-visible-devices).
    """
    value = environment.get(CUDA_VISIBLE_DEVICES)
    visible = list_visible_gpus(outcome)
    if value is None or not visible or outcome.chosen_mig_devices:
        return []
    names = [name.strip() for name in value.split(",")]
    valid = 0
    for name in names:
        if not _names_visible_gpu(name, visible):
            break
        valid += 1
    if valid == len(names):
        return []
    text = f"{CUDA_VISIBLE_DEVICES}={clip_text(value)}"
    if valid == 0 and names[0] in ("", "-1", "NoDevFiles"):
        return [f"{text} hides every GPU from CUDA programs in the container"]
    indices = "0" if len(visible) == 1 else f"0 to {len(visible) - 1}"
    effect = f"CUDA programs see only the {valid} before it" if valid else "CUDA programs see no GPU"
    lacking = clip_text(names[valid]) or "nothing"
    hint = f"Inside, GPUs are counted from zero: its GPUs are {indices}"
    return [f"{text} names {lacking}, which the container does not have, so {effect}. {hint}"]


def _names_visible_gpu(name: str, visible: list[Gpu]) -> bool:
    if name.isascii() and name.isdigit():
        return len(name) < 10 and int(name) < len(visible)
    return name.startswith("GPU-") and any(gpu.uuid.lower().startswith(name.lower()) for gpu in visible)


def list_visible_gpus(outcome: Outcome) -> list[Gpu]:
    """List the GPUs that the container can open, in the order of their indices inside."""
    chosen = {gpu.index for gpu, _ in outcome.chosen_gpus}
    withheld = " ".join(item.name for item in outcome.plan.withheld)
    return [gpu for gpu in outcome.gpus if gpu.index in chosen or f"(GPU {gpu.index}," not in withheld]


def number_gpus_inside(outcome: Outcome) -> dict[int, int]:
    """Return the index that each GPU has inside the container, by its index on the host.

    NVML and CUDA number what the container can open, by PCI address; see CUDA_DEVICE_ORDER for CUDA's own order. A GPU
    without a PCI address has no such index, nor have the parents of MIG devices, which are numbered instead.
    """
    if outcome.mig_parents:
        return {}
    return {gpu.index: number for number, gpu in enumerate(list_visible_gpus(outcome)) if gpu.pci}
