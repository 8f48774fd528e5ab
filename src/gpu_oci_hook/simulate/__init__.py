"""A GPU host made of files: useful to anyone who tests GPU container set-ups without a GPU.

It has the driver's libraries (tiny ones that really load), programs, firmware and configuration where a real
host of the chosen layout has them, a loader cache, the /proc and /sys files of NVIDIA's modules, and, when root
makes it, device nodes with the right numbers. Cost rule: none, this is a tool of its own.
"""

from gpu_oci_hook.simulate.feature_files import FEATURES
from gpu_oci_hook.simulate.host_tree import DESKTOPS, LAYOUTS, SimulatedHost, build_host
from gpu_oci_hook.simulate.kernel import SimulatedGpu

__all__ = ["DESKTOPS", "FEATURES", "LAYOUTS", "SimulatedGpu", "SimulatedHost", "build_host"]
