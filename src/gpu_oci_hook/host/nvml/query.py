"""Query NVML in a child process, for properties that neither /proc nor our tables have.

NVML is vendor code that can hang for seconds, crash, or be missing. A child process keeps all of that out of this one.
Its answers are not trusted: their size is bounded here, and the callers compare them with the kernel's data. The
callers also cache them. A start that the tables can answer never gets here.

Import budget: cold.
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
# NVML's nvmlBrandType_t, by number, as NVIDIA_REQUIRE_* spells the brands.
BRAND_NAMES = (
    "unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming",
    "quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx",
)  # fmt: skip

_MAX_MIG_DEVICES = 64  # of one GPU: the hardware has up to 8 GPU instances with up to 8 compute instances each

# In the name of a MIG device whose profile includes graphics: "NVIDIA RTX PRO 6000 ... MIG 1g.24gb+gfx".
_GRAPHICS_PROFILE = "+gfx"

# The child gets its import path as an argument: -I ignores PYTHONPATH and the current directory, and the launcher's
# interpreter has no site-packages. Our package comes first, and pynvml is found in one of the others.
_CHILD_CODE = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from gpu_oci_hook.host.nvml.query import nvml_child_main; nvml_child_main()"
)


class NvmlGpu:
    """NVML's answer about one GPU. A property that it does not know is None or "".

    Attributes:
        uuid, name: as NVML writes them.
        memory: bytes.
        compute_capability: such as "8.0".
        graphics_devices: (gi, ci) of those MIG devices that can draw (a profile with "+gfx").
        mig_devices: (gi, ci, UUID) of its MIG devices, in the order of NVML's index.
        mig_mode: it is in MIG mode, with or without MIG devices.
        error: why NVML does not know this GPU, such as "GPU is lost". Everything else is empty then.
    """

    __slots__ = ("compute_capability", "error", "graphics_devices", "memory", "mig_devices", "mig_mode", "name", "uuid")

    def __init__(
        self,
        *,
        uuid: str = "",
        name: str = "",
        memory: int | None = None,
        compute_capability: str = "",
        mig_devices: list[tuple[int, int, str]],
        graphics_devices: list[tuple[int, int]] | None = None,
        mig_mode: bool = False,
        error: str = "",
    ) -> None:
        self.graphics_devices = graphics_devices or []
        self.mig_mode = mig_mode
        self.error = error
        self.uuid = uuid
        self.name = name
        self.memory = memory
        self.compute_capability = compute_capability
        self.mig_devices = mig_devices


def find_nvml_library(host: Host, inventory: Inventory) -> str:
    """Return the path of the host's NVML library, or "" when the loader has to find it.

    Raises:
        Fault: the host is a directory without the library (the running machine's library would report other GPUs),
            or another user can change the library while this process runs as root.
    """
    for file in inventory.files:
        if file.soname == NVML_SONAME and file.arch == host.machine:
            _require_trusted_library(file.source)
            return file.source
    if host.root != "/":
        raise Fault(f"NVML cannot be queried: this host has no {NVML_SONAME}", where=host.root)
    return ""


def _require_trusted_library(path: str) -> None:
    """Refuse a library that another user can change.

    The child runs as the same user as this process: a less privileged user may not open the driver's nodes, or cannot
    create missing ones.

    Raises:
        Fault: another user can change the library or its directory, and this process runs as root.
    """
    for guarded_path in (path, os.path.dirname(path)):
        try:
            refusal = describe_foreign_access(os.stat(guarded_path))
        except OSError as error:
            refusal = f"cannot be inspected: {describe_os_error(error)}"
        if refusal:
            raise Fault(
                f"NVML is not queried: {guarded_path} {refusal}",
                hint="Make root its owner and the only user who can write it, since root would load it",
            )


def query_nvml(question: str, pci: str = "", *, timeout: float = 10.0, library: str = "") -> str:
    """Return one property of this machine from NVML.

    Arguments:
        question: "cuda" (the driver's CUDA version, "12.4"), "arch" (compute capability, "8.0") or "brand" ("tesla").
        pci: the GPU's PCI address. "cuda" needs none.
        timeout: seconds after which the child is killed.
        library: path of libnvidia-ml.so.1, or "" to let the loader find it.

    Raises:
        Fault: NVML or its Python binding is missing, crashed, took too long, or does not know the property.
    """
    answer = _run_nvml_child(question, [pci], library, timeout).strip()
    if not answer:
        raise Fault("NVML does not answer: the output is empty")
    return answer


def query_nvml_gpus(addresses: Sequence[str], *, timeout: float = 10.0, library: str = "") -> list[NvmlGpu]:
    """Return NVML's answers about these GPUs, in the same order.

    Arguments:
        addresses: PCI addresses.
        timeout, library: see `query_nvml`.

    Raises:
        Fault: as `query_nvml`, or the answer is invalid, or NVML knows none of the GPUs. A GPU that it does not know
            among others has an `error` instead.
    """
    answer = _run_nvml_child("survey", addresses, library, timeout)
    try:
        nvml_gpus = [
            NvmlGpu(error=str(table["error"]), mig_devices=[])
            if "error" in table
            else NvmlGpu(
                uuid=str(table["uuid"]),
                name=str(table["name"]),
                memory=None if table["memory"] is None else int(table["memory"]),
                compute_capability=str(table["arch"]),
                mig_devices=[(int(gi), int(ci), str(uuid)) for gi, ci, uuid in table["mig"]],
                graphics_devices=[(int(gi), int(ci)) for gi, ci in table["graphics"]],
                mig_mode=table["mig_mode"] is True,
            )
            for table in json.loads(answer)
        ]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise Fault(f"NVML returned an invalid answer: {clip_text(answer)!r}") from None
    if len(nvml_gpus) != len(addresses):
        raise Fault(f"NVML was queried for {len(addresses)} GPUs and answered for {len(nvml_gpus)}")
    if nvml_gpus and all(gpu.error for gpu in nvml_gpus):
        raise Fault(f"NVML does not answer: {nvml_gpus[0].error}")
    return nvml_gpus


def _run_nvml_child(question: str, addresses: Sequence[str], library: str, timeout: float) -> str:
    """Run the child until it ends or reaches a limit, and return its answer."""
    if not sys.executable:
        raise Fault("NVML cannot be queried: the Python interpreter does not know its own path")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    paths = [package, *(path for path in sys.path if path.startswith("/") and path != package and ":" not in path)]
    argv = [sys.executable, "-I", "-c", _CHILD_CODE, ":".join(paths), question, library, *addresses]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        status, stdout, stderr = run_bounded_program(argv, environment, timeout)
    except OSError as error:
        raise Fault(f"NVML cannot be queried: {sys.executable}: {describe_os_error(error)}") from None
    if status is None:
        if len(stdout) > MAX_OUTPUT or len(stderr) > MAX_OUTPUT:
            raise Fault(f"NVML wrote more than {MAX_OUTPUT} bytes and was killed")
        raise Fault(
            f"NVML did not answer within {round(timeout, 1):g} seconds",
            hint="Turn persistence mode on (nvidia-persistenced): it keeps the driver initialised",
        )
    if status < 0:
        try:
            signal_name = signal.Signals(-status).name
        except ValueError:
            signal_name = f"signal {-status}"
        raise Fault(f"NVML crashed ({signal_name}) when queried for {question}")
    if status:
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        raise Fault(f"NVML does not answer: {clip_text(lines[-1]) if lines else f'status {status}'}")
    return stdout.decode("utf-8", "replace")


def nvml_child_main() -> None:
    """Be the child: take question, library and PCI addresses from argv, and write the answer to stdout.

    After a failure, write one line to stderr instead.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no core file behind
    question, library, *addresses = sys.argv[1:]
    # Output printed by the library itself goes to stderr, so that stdout carries the answer alone.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        sys.exit("the Python package nvidia-ml-py is not installed")
    if library:
        import ctypes

        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # the loader then finds it by its SONAME
        except OSError as error:
            sys.exit(str(error))
    try:
        pynvml.nvmlInit()
        if question == "survey":
            answer = json.dumps([_query_gpu_or_error(pynvml, pynvml.NVMLError, address) for address in addresses])
        else:
            answer = _answer_question(pynvml, question, addresses[0] if addresses else "")
    except pynvml.NVMLError as error:
        sys.exit(str(error))
    with os.fdopen(answer_fd, "w") as file:
        file.write(answer)
    os._exit(0)  # skips the library's exit handlers


def _answer_question(nvml: object, question: str, pci: str) -> str:
    """Return the answer to one question of `query_nvml`, or exit with a line on stderr."""

    def call_nvml(name: str, *arguments: object) -> object:
        return getattr(nvml, name)(*arguments)

    if question == "cuda":
        version = call_nvml("nvmlSystemGetCudaDriverVersion_v2")
        if not isinstance(version, int):
            sys.exit("NVML returned no CUDA version")
        return f"{version // 1000}.{version % 1000 // 10}"
    handle = call_nvml("nvmlDeviceGetHandleByPciBusId", pci.encode())
    if question == "arch":
        pair = call_nvml("nvmlDeviceGetCudaComputeCapability", handle)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            sys.exit("NVML returned no compute capability")
        return f"{pair[0]}.{pair[1]}"
    if question == "brand":
        brand = call_nvml("nvmlDeviceGetBrand", handle)
        return BRAND_NAMES[brand] if isinstance(brand, int) and 0 <= brand < len(BRAND_NAMES) else "unknown"
    sys.exit(f"unknown question {question}; expected one of {', '.join(NVML_QUESTIONS)}")


def _query_gpu_or_error(nvml: object, error: type[Exception], pci: str) -> dict[str, object]:
    """Return the properties of one GPU, or its error: the answers about the other GPUs still count."""
    try:
        return _query_gpu(nvml, error, pci)
    except (error, UnicodeDecodeError) as exception:
        return {"error": _describe_nvml_error(exception)}


def _describe_nvml_error(error: Exception) -> str:
    """Return the text of an error. The binding decodes strings as UTF-8, which NVML does not guarantee."""
    return "a value is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def _query_gpu(nvml: object, error: type[Exception], pci: str) -> dict[str, object]:
    """Return the properties of one GPU. One that NVML does not know is empty.

    Raises:
        error: NVML does not know the GPU, its UUID, or the identity of one of its MIG devices.
    """

    def call_nvml(name: str, *arguments: object) -> object:
        return getattr(nvml, name)(*arguments)

    def try_call_nvml(name: str, *arguments: object) -> object:
        try:
            return call_nvml(name, *arguments)
        except (error, UnicodeDecodeError):
            return None

    handle = call_nvml("nvmlDeviceGetHandleByPciBusId", pci.encode())
    pair = try_call_nvml("nvmlDeviceGetCudaComputeCapability", handle)
    properties: dict[str, object] = {
        "uuid": _to_text(call_nvml("nvmlDeviceGetUUID", handle)),
        "name": _to_text(try_call_nvml("nvmlDeviceGetName", handle) or ""),
        "memory": getattr(try_call_nvml("nvmlDeviceGetMemoryInfo", handle), "total", None),
        "arch": f"{pair[0]}.{pair[1]}" if isinstance(pair, (tuple, list)) and len(pair) == 2 else "",
    }
    mode = try_call_nvml("nvmlDeviceGetMigMode", handle)  # most GPUs do not support it
    devices: list[tuple[object, object, str]] = []
    graphics: list[tuple[object, object]] = []
    if isinstance(mode, (tuple, list)) and mode and mode[0] == 1:
        count = call_nvml("nvmlDeviceGetMaxMigDeviceCount", handle)
        for index in range(min(count, _MAX_MIG_DEVICES) if isinstance(count, int) else 0):
            device = try_call_nvml("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if device is None:
                continue  # indices may have gaps
            gi, ci = (
                call_nvml("nvmlDeviceGetGpuInstanceId", device),
                call_nvml("nvmlDeviceGetComputeInstanceId", device),
            )
            devices.append((gi, ci, _to_text(call_nvml("nvmlDeviceGetUUID", device))))
            if _GRAPHICS_PROFILE in _to_text(try_call_nvml("nvmlDeviceGetName", device) or ""):
                graphics.append((gi, ci))
    properties["mig"] = devices
    properties["graphics"] = graphics
    properties["mig_mode"] = isinstance(mode, (tuple, list)) and bool(mode) and mode[0] == 1
    return properties


def _to_text(value: object) -> str:
    """Return a string of NVML as text: older bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
