"""Look for the driver's libraries below the usual roots, when the configured root has none.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.host.driver.catalogue import load_catalogue
from gpu_oci_hook.host.driver.libraries import DriverLibrarySearch
from gpu_oci_hook.host.driver.search import FileSearch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host

# The host itself, the GPU operator's driver container, and Container-Optimized OS on GKE.
USUAL_ROOTS = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia")
_MAIN_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def find_other_driver_root(host: Host, config: Config, version: str) -> str:
    """Return the first usual root other than the configured one that has the driver's libraries; "" without one.

    Arguments:
        version: the running kernel module's version, "" when it is not loaded.
    """
    configured = host.sub_host(config.driver_root).root
    for root in USUAL_ROOTS:
        driver = host.sub_host(root)
        if driver.root != configured and _has_driver_libraries(driver, version, host.machine):
            return root
    return ""


def suggest_driver_root(root: str, config: Config) -> str:
    """Return the hint for a root that has the driver: the line to set, and the file."""
    line = f'driver-root = "{root}" below [host] in {config.path or "the config file"}'
    return f"the driver's libraries are below {root}: set {line}"


def _has_driver_libraries(driver: Host, version: str, machine: str) -> bool:
    search = DriverLibrarySearch(FileSearch(driver), load_catalogue(), version, machine)
    search.find_libraries(())
    return any(file.soname in _MAIN_LIBRARIES for file in search.files)
