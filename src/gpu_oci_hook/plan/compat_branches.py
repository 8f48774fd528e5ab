"""Data: the driver branches on which each release of the CUDA compat libraries works.

To teach gpu-oci-hook a new release of the compat libraries, add a line to COMPAT_BRANCHES. No other code has to change.
A driver branch is the first number of a driver version.

Import budget: GPU container.
"""

from __future__ import annotations

# Branch of the compat libraries (that of their libcuda), and the older branches of kernel modules for which NVIDIA
# built them. The lists are those of NVIDIA_REQUIRE_CUDA in NVIDIA's CUDA images, and of the note in the libraries
# themselves since CUDA 12.9 (facts: cuda-compat-branches).
COMPAT_BRANCHES: dict[int, tuple[int, ...]] = {
    535: (450, 470, 525),                 # CUDA 12.2
    550: (470, 525, 535),                 # CUDA 12.4
    560: (470, 535, 550),                 # CUDA 12.6
    570: (470, 535, 550, 560, 565),       # CUDA 12.8
    575: (535, 550, 560, 565, 570),       # CUDA 12.9
    580: (535, 550, 565, 570, 575),       # CUDA 13.0
    590: (535, 550, 570, 575, 580),       # CUDA 13.1
}  # fmt: skip

# For compat libraries of another branch: the long term support and production branches of the data-centre driver,
# which every release of the compat libraries has served while they were supported.
LONG_LIVED_BRANCHES = (418, 450, 470, 525, 535, 550, 570, 580, 595, 620)
