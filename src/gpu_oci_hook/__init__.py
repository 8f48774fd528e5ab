"""Gives containers the NVIDIA GPUs they ask for. Kept empty of imports: the shim pays for every one.

Import budget: pass-through.
"""

VERSION = "0.2.0"
