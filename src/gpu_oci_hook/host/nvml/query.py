"""Asks NVML, in a child process, what neither /proc nor our tables can tell.

NVML is vendor code that can hang for seconds, crash, or not be there; a child keeps all of that away from us. What it
says is data of unknown worth: sizes are bounded here, and whoever asks compares it with what the kernel says. The
answers are remembered by the caller. Cost rule: cold; never in a start that the tables can answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.host.nvml.child_process import MAX_OUTPUT, run_bounded_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Inventory

NVML_SONAME = "libnvidia-ml.so.1"
NVML_QUESTIONS = ("cuda", "arch", "brand")
# NVML's nvmlBrandType_t in the words of NVIDIA_REQUIRE_*.
BRAND_NAMES = (
    "unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming",
    "quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx",
)  # fmt: skip

_MAX_MIG_DEVICES = 64  # devices of one GPU; the hardware has up to 8, each with up to 8 compute instances

# The child gets its import path from us: an interpreter started with -I looks at no PYTHONPATH and no cwd, and the
# launcher's knows no site-packages. Ours comes first, pynvml's is among the rest.
_CHILD_CODE = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from gpu_oci_hook.host.nvml.query import nvml_child_main; nvml_child_main()"
)


class NvmlGpu:
    """What NVML says about one GPU; None for what it does not say.

    Attributes:
        uuid, name: as NVML writes them.
        memory: bytes.
        compute_capability: compute capability, "8.0".
        mig_devices: (gi, ci, UUID) of its MIG devices, in the order of NVML's index.
        error: why NVML does not know this GPU, "GPU is lost" for one; all else is empty then.
    """

    __slots__ = ("compute_capability", "error", "memory", "mig_devices", "name", "uuid")

    def __init__(
        self,
        *,
        uuid: str = "",
        name: str = "",
        memory: int | None = None,
        compute_capability: str = "",
        mig_devices: list[tuple[int, int, str]],
        error: str = "",
    ) -> None:
        self.error = error
        self.uuid = uuid
        self.name = name
        self.memory = memory
        self.compute_capability = compute_capability
        self.mig_devices = mig_devices


def find_nvml_library(host: Host, inventory: Inventory) -> str:
    """The path of the host's NVML library; "" where only the loader can know it.

    Raises:
        Fault: the host is a directory and has none: this machine's own would speak of other GPUs. Or somebody else
            could change it, and we are root.
    """
    for file in inventory.files:
        if file.soname == NVML_SONAME and file.arch == host.machine:
            _require_trusted_library(file.source)
            return file.source
    if host.root != "/":
        raise Fault(f"NVML cannot be asked: this host has no {NVML_SONAME}", where=host.root)
    return ""


def _require_trusted_library(path: str) -> None:
    """Takes a library that is ours to run, or says why it is not.

    The child keeps our user: where the driver's nodes are for a group, or have to be made first, nobody else could ask.
    """
    for step in (path, os.path.dirname(path)):
        try:
            what = describe_foreign_access(os.stat(step))
        except OSError as error:
            what = f"cannot be looked at: {describe_os_error(error)}"
        if what:
            raise Fault(f"NVML is not asked: {step} {what}", hint="What root runs must be root's alone")


def query_nvml(question: str, pci: str = "", *, timeout: float = 10.0, library: str = "") -> str:
    """One answer of NVML about this machine.

    Arguments:
        question: "cuda" (the driver's CUDA version, "12.4"), "arch" (compute capability, "8.0"), "brand"
            ("tesla").
        pci: the GPU's PCI address; "cuda" needs none.
        timeout: seconds after which the child is killed.
        library: path of libnvidia-ml.so.1, where the loader does not find it by itself.

    Raises:
        Fault: NVML or its Python binding is missing, crashed, took too long, or does not know.
    """
    answer = _run_nvml_child(question, [pci], library, timeout).strip()
    if not answer:
        raise Fault("NVML does not answer: it says nothing")
    return answer


def query_nvml_gpus(addresses: Sequence[str], *, timeout: float = 10.0, library: str = "") -> list[NvmlGpu]:
    """What NVML says about these GPUs, in the same order.

    Arguments:
        addresses: PCI addresses. `timeout`, `find_nvml_library`: see `query_nvml`.

    Raises:
        Fault: as `query_nvml`, or the answer makes no sense. That it knows some of the GPUs only is no fault.
    """
    answer = _run_nvml_child("survey", addresses, library, timeout)
    try:
        said = json.loads(answer)
        cards = [
            NvmlGpu(error=str(one["error"]), mig_devices=[])
            if "error" in one
            else NvmlGpu(
                uuid=str(one["uuid"]),
                name=str(one["name"]),
                memory=None if one["memory"] is None else int(one["memory"]),
                compute_capability=str(one["arch"]),
                mig_devices=[(int(gi), int(ci), str(uuid)) for gi, ci, uuid in one["mig"]],
            )
            for one in said
        ]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise Fault(f"NVML cannot be understood: {clip_text(answer)!r}") from None
    if len(cards) != len(addresses):
        raise Fault(f"NVML was asked about {len(addresses)} GPUs and answers about {len(cards)}")
    if cards and all(card.error for card in cards):
        raise Fault(f"NVML does not answer: {cards[0].error}")
    return cards


def _run_nvml_child(question: str, addresses: Sequence[str], library: str, timeout: float) -> str:
    """Runs the child to its end or to the limit's; what it wrote to its answer's descriptor."""
    if not sys.executable:
        raise Fault("NVML cannot be asked: the Python interpreter does not know its own path")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    paths = [package, *(path for path in sys.path if path.startswith("/") and path != package and ":" not in path)]
    argv = [sys.executable, "-I", "-c", _CHILD_CODE, ":".join(paths), question, library, *addresses]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        status, out, err = run_bounded_program(argv, environment, timeout)
    except OSError as error:
        raise Fault(f"NVML cannot be asked: {sys.executable}: {describe_os_error(error)}") from None
    if status is None:
        if len(out) > MAX_OUTPUT or len(err) > MAX_OUTPUT:
            raise Fault("NVML cannot be understood: it does not stop talking")
        cure = "Persistence mode (nvidia-persistenced) keeps the driver initialised"
        raise Fault(f"NVML did not answer within {round(timeout, 1):g} seconds", hint=cure)
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        raise Fault(f"NVML crashed ({name}) when asked for {question}")
    if status:
        said = err.decode("utf-8", "replace").strip().splitlines()
        raise Fault(f"NVML does not answer: {clip_text(said[-1]) if said else f'status {status}'}")
    return out.decode("utf-8", "replace")


def nvml_child_main() -> None:
    """The child: question, library and PCI addresses in argv; the answer on stdout, else one line on stderr."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash in there leaves no file behind
    question, library, *addresses = sys.argv[1:]
    # What a library prints goes where errors go: an answer has a descriptor of its own.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        sys.exit("the Python package nvidia-ml-py is not installed")
    if library:
        import ctypes

        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # found by its SONAME from then on
        except OSError as error:
            sys.exit(str(error))
    try:
        pynvml.nvmlInit()
        if question == "survey":
            text = json.dumps([_query_gpu_or_error(pynvml, pynvml.NVMLError, address) for address in addresses])
        else:
            text = _answer_question(pynvml, question, addresses[0] if addresses else "")
    except pynvml.NVMLError as error:
        sys.exit(str(error))
    with os.fdopen(answer, "w") as file:
        file.write(text)
    os._exit(0)  # what a library does at its end is of no interest


def _answer_question(nvml: object, question: str, pci: str) -> str:
    def call(name: str, *arguments: object) -> object:
        return getattr(nvml, name)(*arguments)

    if question == "cuda":
        version = call("nvmlSystemGetCudaDriverVersion_v2")
        if not isinstance(version, int):
            sys.exit("NVML gives no CUDA version")
        return f"{version // 1000}.{version % 1000 // 10}"
    handle = call("nvmlDeviceGetHandleByPciBusId", pci.encode())
    if question == "arch":
        pair = call("nvmlDeviceGetCudaComputeCapability", handle)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            sys.exit("NVML gives no compute capability")
        return f"{pair[0]}.{pair[1]}"
    if question == "brand":
        brand = call("nvmlDeviceGetBrand", handle)
        return BRAND_NAMES[brand] if isinstance(brand, int) and 0 <= brand < len(BRAND_NAMES) else "unknown"
    sys.exit(f"{question} is none of {', '.join(NVML_QUESTIONS)}")


def _query_gpu_or_error(nvml: object, error: type[Exception], pci: str) -> dict[str, object]:
    """One GPU, or why there is nothing about it: another one's answer is not lost with it."""
    try:
        return _query_gpu(nvml, error, pci)
    except (error, UnicodeDecodeError) as fault:
        return {"error": _describe_nvml_error(fault)}


def _describe_nvml_error(error: Exception) -> str:
    """An error in words; the binding decodes texts as UTF-8, and NVML's need not be that."""
    return "it gives bytes that are no text" if isinstance(error, UnicodeDecodeError) else str(error)


def _query_gpu(nvml: object, error: type[Exception], pci: str) -> dict[str, object]:
    """One GPU; what a single call cannot tell is left empty, but not the GPU itself and not its MIG devices."""

    def call(name: str, *arguments: object) -> object:
        return getattr(nvml, name)(*arguments)

    def maybe(name: str, *arguments: object) -> object:
        try:
            return call(name, *arguments)
        except (error, UnicodeDecodeError):
            return None

    handle = call("nvmlDeviceGetHandleByPciBusId", pci.encode())
    pair = maybe("nvmlDeviceGetCudaComputeCapability", handle)
    found: dict[str, object] = {
        "uuid": _to_text(call("nvmlDeviceGetUUID", handle)),
        "name": _to_text(maybe("nvmlDeviceGetName", handle) or ""),
        "memory": getattr(maybe("nvmlDeviceGetMemoryInfo", handle), "total", None),
        "arch": f"{pair[0]}.{pair[1]}" if isinstance(pair, (tuple, list)) and len(pair) == 2 else "",
    }
    mode = maybe("nvmlDeviceGetMigMode", handle)  # not supported by most GPUs
    devices: list[tuple[object, object, str]] = []
    if isinstance(mode, (tuple, list)) and mode and mode[0] == 1:
        count = call("nvmlDeviceGetMaxMigDeviceCount", handle)
        for index in range(min(count, _MAX_MIG_DEVICES) if isinstance(count, int) else 0):
            one = maybe("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if one is None:
                continue  # a gap: later ones are there all the same
            gi, ci = call("nvmlDeviceGetGpuInstanceId", one), call("nvmlDeviceGetComputeInstanceId", one)
            devices.append((gi, ci, _to_text(call("nvmlDeviceGetUUID", one))))
    found["mig"] = devices
    return found


def _to_text(text: object) -> str:
    """Older bindings give bytes."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
