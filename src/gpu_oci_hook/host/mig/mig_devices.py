"""List MIG devices by the capabilities that the driver shows below /proc, with the UUIDs that NVML knows.

A MIG device is a GPU instance (gi) and a compute instance (ci) in it. Two device nodes, one for each instance, decide
who may use it. Its UUID is known to NVML only (facts: mig-uuid-forms). NVML is queried in a child process, and only for
a request that names a UUID. What invalidates the cached answer:

- another version of gpu-oci-hook, or of the running kernel module
- another MIG signature of the GPU, see `capability_files.read_mig_signature`
- `MigDevices.discard_cached_uuids`, for a UUID that the cache lacks
- damaged data, or the loss of the state directory

Import budget: GPU container.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.host.mig.capability_files import read_mig_signature
from gpu_oci_hook.model.mig import MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.host.mig.capability_files import MigSignature
    from gpu_oci_hook.host.nvml.query import NvmlGpu
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, Gpu

    MigIdentity = tuple[int, int, str]  # gi, ci, UUID
    # By the GPU's PCI address and UUID.
    CachedIdentities = dict[tuple[str, str], tuple[MigSignature, tuple[MigIdentity, ...]]]

NVML_TIMEOUT = 10.0  # seconds, as in NVIDIA's toolkit

_CACHE_NAME = "mig"
_UUID_CHARACTERS = frozenset("0123456789abcdefABCDEF-GPUMI/")


class MigDevices:
    """The MIG devices of a machine. Each GPU's files are read when its devices are needed.

    Arguments:
        gpus: all GPUs of the machine.
        version: the running driver's. Answers of another driver's NVML are not used.
        find_library: returns the path of the host's NVML library, "" if there is none. Called only to query NVML.
        timeout: seconds for NVML.
    """

    def __init__(
        self,
        host: Host,
        gpus: list[Gpu],
        version: str,
        cache: Cache,
        find_library: Callable[[], str],
        *,
        timeout: float = NVML_TIMEOUT,
    ) -> None:
        self.host = host
        self.gpus = gpus
        self.version = version
        self.cache = cache
        self.find_library = find_library
        self.timeout = timeout
        # (gi, ci) of the devices that can draw, by GPU index; `graphics_devices` fills it in.
        self.graphics_devices: dict[int, frozenset[tuple[int, int]]] = {}
        self._devices_by_gpu: dict[int, list[MigDevice]] = {}
        self._cached_identities: CachedIdentities | None = None
        # The cache's content when it was last read, and a content that is not to be used again.
        self._last_blob: bytes | None = None
        self._discarded_blob: bytes | None = None

    def _load_cached_identities(self) -> CachedIdentities:
        """Return the cached identities; the cache is read once."""
        if self._cached_identities is None:
            self._last_blob = self.cache.get(_CACHE_NAME)
            self._cached_identities = (
                {}
                if self._last_blob == self._discarded_blob
                else _parse_cached_identities(self._last_blob, self.version)
            )
        return self._cached_identities

    def list_for_gpu(self, gpu: Gpu) -> list[MigDevice]:
        """Return the GPU's MIG devices in the order of their index, with UUIDs if the cache has them.

        NVML is not queried.
        """
        devices = self._devices_by_gpu.get(gpu.index)
        if devices is None:
            signature = read_mig_signature(self.host, gpu)
            cached_signature, identities = self._load_cached_identities().get((gpu.pci, gpu.uuid), ((), ()))
            if cached_signature != signature:
                identities = tuple((gi, ci, "") for gi, ci, *_ in signature)
            devices = self._devices_by_gpu[gpu.index] = [
                MigDevice(gpu=gpu, index=index, gi=gi, ci=ci, uuid=uuid)
                for index, (gi, ci, uuid) in enumerate(identities)
            ]
        return devices

    def find_cached_device(self, uuid: str) -> MigDevice | None:
        """Return the device with this UUID if the cache has it. Only that device's GPU is read."""
        cached_identities = self._load_cached_identities()
        wanted = uuid.lower()
        for gpu in self.gpus:
            _, identities = cached_identities.get((gpu.pci, gpu.uuid), ((), ()))
            if any(cached_uuid.lower() == wanted for _, _, cached_uuid in identities):
                return next((device for device in self.list_for_gpu(gpu) if device.uuid.lower() == wanted), None)
        return None

    def list_with_uuids(self) -> list[MigDevice]:
        """Return every MIG device of the machine with its UUID. NVML is queried about GPUs that lack some.

        Raises:
            Fault: NVML does not answer in time, or contradicts the files below /proc.
        """
        if self._list_gpus_without_uuids():
            import time

            started = time.monotonic()
            with self.cache.lock(_CACHE_NAME):  # of many starts at once only one queries NVML
                self._devices_by_gpu.clear()
                self._cached_identities = None
                gpus_without_uuids = self._list_gpus_without_uuids()
                if gpus_without_uuids:
                    # The time that was spent waiting for another start's query counts too.
                    self._query_nvml(gpus_without_uuids, max(1.0, self.timeout - (time.monotonic() - started)))
        return [device for gpu in self.gpus for device in self.list_for_gpu(gpu)]

    def discard_cached_uuids(self) -> None:
        """Make `list_with_uuids` query NVML again, for a requested UUID that the cache lacks.

        An answer that another start has cached in the meantime is used, so that of many starts only one queries NVML.
        """
        self._discarded_blob = self._last_blob
        self._devices_by_gpu.clear()
        self._cached_identities = None

    def _list_gpus_without_uuids(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if any(not device.uuid for device in self.list_for_gpu(gpu))]

    def _query_nvml(self, gpus: list[Gpu], timeout: float) -> None:
        from gpu_oci_hook.host.nvml.failure_cache import query_unless_failed
        from gpu_oci_hook.host.nvml.query import query_nvml_gpus

        earlier_signatures = [read_mig_signature(self.host, gpu) for gpu in gpus]
        addresses = [gpu.pci for gpu in gpus]
        answers = query_unless_failed(
            lambda: query_nvml_gpus(addresses, library=self.find_library(), timeout=timeout), self.version, self.cache
        )
        self.store_nvml_answer(gpus, answers, earlier_signatures)

    def store_nvml_answer(
        self, gpus: list[Gpu], answers: list[NvmlGpu], earlier_signatures: list[MigSignature] | None = None
    ) -> None:
        """Check NVML's answers about these GPUs and cache them.

        Arguments:
            earlier_signatures: the GPUs' signatures when NVML was queried, to detect changes in the meantime.

        Raises:
            Fault: an answer contradicts the kernel module, or NVML does not know one of the GPUs.
        """
        identities_by_gpu = dict(self._cached_identities or {})
        queried = {(gpu.pci, gpu.uuid) for gpu in gpus}
        taken_uuids = {
            uuid.lower()
            for key, (_, identities) in identities_by_gpu.items()
            if key not in queried
            for _, _, uuid in identities
        }
        for position, (gpu, answer) in enumerate(zip(gpus, answers, strict=True)):
            if answer.error:
                raise Fault(f"NVML does not know GPU {gpu.index} ({gpu.pci}): {clip_text(answer.error)}")
            signature = read_mig_signature(self.host, gpu)
            identities = tuple(answer.mig_devices)
            kernel_ids = {(gi, ci) for gi, ci, *_ in signature}
            reason = _find_nvml_contradiction(gpu, answer.uuid, kernel_ids, identities, taken_uuids)
            if earlier_signatures is not None and earlier_signatures[position] != signature:
                reason = f"the MIG devices of GPU {gpu.index} changed during the query"
            if reason:
                raise Fault(
                    f"NVML answers wrongly: {reason}",
                    hint="If MIG devices are being created or removed right now, try again afterwards",
                )
            identities_by_gpu[gpu.pci, gpu.uuid] = (signature, identities)
        present = {(gpu.pci, gpu.uuid) for gpu in self.gpus}
        self._cached_identities = {key: entry for key, entry in identities_by_gpu.items() if key in present}
        self._devices_by_gpu.clear()
        self.cache.put(_CACHE_NAME, marshal.dumps((VERSION, self.version, self._cached_identities)))


def _find_nvml_contradiction(
    gpu: Gpu,
    uuid: str,
    kernel_ids: set[tuple[int, int]],
    nvml_identities: tuple[MigIdentity, ...],
    taken_uuids: set[str],
) -> str:
    """Return how NVML's answer about a GPU contradicts the kernel module or itself, "" if it does not.

    Arguments:
        uuid: the GPU's, as NVML reports it.
        kernel_ids: (gi, ci) of the GPU's devices, as the kernel module reports them.
        taken_uuids: UUIDs of other MIG devices, lower case; takes those of this GPU.
    """
    if uuid.lower() != gpu.uuid.lower() and "?" not in gpu.uuid:
        return f"it reports {clip_text(uuid, 80)} for GPU {gpu.pci}, the kernel module {gpu.uuid}"
    if {(gi, ci) for gi, ci, _ in nvml_identities} != kernel_ids or len(nvml_identities) != len(kernel_ids):
        nvml_list = ", ".join(f"{gi}/{ci}" for gi, ci, _ in nvml_identities[:16]) or "none"
        kernel_list = ", ".join(f"{gi}/{ci}" for gi, ci in sorted(kernel_ids)) or "none"
        return f"it reports the MIG devices (gi/ci) {nvml_list} for GPU {gpu.index}, the kernel module {kernel_list}"
    for gi, ci, mig_uuid in nvml_identities:
        device = f"MIG device {gi}/{ci} of GPU {gpu.index}"
        if not mig_uuid.startswith("MIG-") or not 8 <= len(mig_uuid) <= 96 or not _UUID_CHARACTERS.issuperset(mig_uuid):
            return f'it reports "{clip_text(mig_uuid, 80)}" for {device}, which is not a UUID'
        has_old_form = mig_uuid.lower().startswith("mig-gpu-")
        if has_old_form and mig_uuid.lower() != f"mig-{gpu.uuid.lower()}/{gi}/{ci}":
            return f"it reports {mig_uuid} for {device}"
        if mig_uuid.lower() in taken_uuids:
            return f"it reports {mig_uuid} for two MIG devices"
        taken_uuids.add(mig_uuid.lower())
    return ""


def _parse_cached_identities(blob: bytes | None, version: str) -> CachedIdentities:
    """Return a blob's identities, {} if it is damaged or of another version of gpu-oci-hook or of the driver."""
    if blob is not None:
        try:
            own_version, driver_version, cached = marshal.loads(blob)  # noqa: S302  only this user can write the cache
            if (own_version, driver_version) == (VERSION, version) and isinstance(cached, dict):
                for signature, identities in cached.values():
                    if len(signature) != len(identities) or not all(
                        isinstance(gi, int) and isinstance(ci, int) and isinstance(uuid, str)
                        for gi, ci, uuid in identities
                    ):
                        return {}
                return cached
        except Exception:  # noqa: S110  a damaged blob may raise anything; it costs a query, never a start
            pass
    return {}
