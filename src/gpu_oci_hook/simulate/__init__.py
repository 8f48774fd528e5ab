"""Simulated GPU hosts: trees of files that stand for a host with NVIDIA GPUs, for tests on machines without a GPU.

A simulated host has the driver's libraries (tiny ones that really load), programs, firmware and configuration where a
real host of the chosen layout has them. It also has a loader cache and the /proc and /sys files of NVIDIA's modules.
Device nodes with the right numbers are added when root builds it.

Import budget: cold.
"""

from gpu_oci_hook.simulate.feature_files import FEATURES
from gpu_oci_hook.simulate.host_tree import DESKTOP_LAYOUTS, LAYOUTS, SimulatedHost, build_host
from gpu_oci_hook.simulate.kernel import SimulatedGpu

__all__ = ["DESKTOP_LAYOUTS", "FEATURES", "LAYOUTS", "SimulatedGpu", "SimulatedHost", "build_host"]
