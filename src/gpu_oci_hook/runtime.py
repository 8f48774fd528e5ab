"""Entry point of launchers that earlier versions wrote; new launchers call `shim.main`.

Without it an upgrade of the package alone would stop every container until `gpu-oci-hook install` runs again.
Import budget: pass-through.
"""

from __future__ import annotations

from gpu_oci_hook.shim.main import main

__all__ = ["main"]
