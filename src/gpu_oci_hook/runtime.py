"""Import `main` under the old module name, for launchers that earlier versions wrote; new ones import `shim.main`.

Without it an upgrade of the package would stop every container until `gpu-oci-hook install` runs again.

Import budget: pass-through.
"""

from __future__ import annotations

from gpu_oci_hook.shim.main import main

__all__ = ["main"]
