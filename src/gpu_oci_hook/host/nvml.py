"""Asks NVML, in a child process, what neither /proc nor our tables can tell.

NVML is vendor code that can hang for seconds, crash, or not be there; a child keeps all of that away from us.
The answers are remembered by the caller. Cost rule: cold; never in a start that the tables can answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from gpu_oci_hook.errors import Fault, words

QUESTIONS = ("cuda", "arch", "brand")
# NVML's nvmlBrandType_t in the words of NVIDIA_REQUIRE_*.
BRANDS = (
    "unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloudgaming",
    "quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx",
)  # fmt: skip

# The child gets its import path from us: an interpreter started with -I looks at no PYTHONPATH and no cwd.
_CHILD = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gpu_oci_hook.host import nvml; nvml.child()"


def ask(question: str, pci: str = "", *, timeout: float = 10.0, library: str = "") -> str:
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
    if not sys.executable:
        raise Fault("NVML cannot be asked: the Python interpreter does not know its own path")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    argv = [sys.executable, "-I", "-c", _CHILD, package, question, pci, library]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv, env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        cure = "Persistence mode (nvidia-persistenced) keeps the driver initialised"
        raise Fault(f"NVML did not answer within {timeout:g} seconds", cure=cure) from None
    except OSError as error:
        raise Fault(f"NVML cannot be asked: {sys.executable}: {words(error)}") from None
    if done.returncode < 0:
        try:
            name = signal.Signals(-done.returncode).name
        except ValueError:
            name = f"signal {-done.returncode}"
        raise Fault(f"NVML crashed ({name}) when asked for {question}")
    answer = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode or not answer:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Fault(f"NVML does not answer: {said[-1] if said else f'status {done.returncode}'}")
    return answer


def child() -> None:
    """The child: question, PCI address and library in argv; the answer on stdout, else one line on stderr."""
    question, pci, library = sys.argv[1:4]
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
        print(_answer(pynvml, question, pci))
    except pynvml.NVMLError as error:
        sys.exit(str(error))


def _answer(nvml: object, question: str, pci: str) -> str:
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
        return BRANDS[brand] if isinstance(brand, int) and 0 <= brand < len(BRANDS) else "unknown"
    sys.exit(f"{question} is none of {', '.join(QUESTIONS)}")
