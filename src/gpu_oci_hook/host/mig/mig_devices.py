"""MIG devices: which there are, by the capabilities that the driver shows below /proc, and NVML's names for them.

A MIG device is a GPU instance (gi) and a compute instance (ci) in it. Who may use it is decided by two device nodes,
one for each, beside the GPU's own. Its UUID is known to NVML alone: that is asked when a request names one, in a
child, and the answer is remembered until the GPU's capabilities change. Cost rule: imported only where a container
or a GPU has to do with MIG; lists one directory for each GPU instance.
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
    CachedIdentities = dict[
        tuple[str, str], tuple[MigSignature, tuple[MigIdentity, ...]]
    ]  # by the GPU's address and UUID

NVML_TIMEOUT = 10.0  # seconds for NVML: what the incumbent gives it

_CACHE_NAME = "mig"
_UUID_CHARACTERS = frozenset("0123456789abcdefABCDEF-GPUMI/")


class MigDevices:
    """The MIG devices of a machine, each GPU looked at when it is asked about.

    Arguments:
        gpus: all GPUs of the machine.
        version: the running driver's: what another driver's NVML has said does not count.
        find_library: gives the path of the host's NVML library, "" where there is none; called only to ask it.
        limit: seconds for NVML.
    """

    def __init__(
        self,
        host: Host,
        gpus: list[Gpu],
        version: str,
        cache: Cache,
        find_library: Callable[[], str],
        *,
        limit: float = NVML_TIMEOUT,
    ) -> None:
        self.host = host
        self.gpus = gpus
        self.version = version
        self.cache = cache
        self.find_library = find_library
        self.limit = limit
        self._devices_by_gpu: dict[int, list[MigDevice]] = {}
        self._cached_identities: CachedIdentities | None = None
        # What the memory had when it was last looked at, and what it had that is not to be believed any more.
        self._last_blob: bytes | None = None
        self._discarded_blob: bytes | None = None

    def _load_cached_identities(self) -> CachedIdentities:
        """What is remembered, read once."""
        if self._cached_identities is None:
            self._last_blob = self.cache.get(_CACHE_NAME)
            self._cached_identities = (
                {}
                if self._last_blob == self._discarded_blob
                else _parse_cached_identities(self._last_blob, self.version)
            )
        return self._cached_identities

    def list_for_gpu(self, gpu: Gpu) -> list[MigDevice]:
        """The GPU's MIG devices, in the order of their index; with UUIDs if those are known. Asks nobody."""
        found = self._devices_by_gpu.get(gpu.index)
        if found is None:
            signature = read_mig_signature(self.host, gpu)
            before, identities = self._load_cached_identities().get((gpu.pci, gpu.uuid), ((), ()))
            if before != signature:
                identities = tuple((gi, ci, "") for gi, ci, *_ in signature)
            found = self._devices_by_gpu[gpu.index] = [
                MigDevice(gpu=gpu, index=index, gi=gi, ci=ci, uuid=uuid)
                for index, (gi, ci, uuid) in enumerate(identities)
            ]
        return found

    def find_cached_device(self, uuid: str) -> MigDevice | None:
        """The device with this UUID, if that is known without asking; looks at its GPU alone."""
        known = self._load_cached_identities()
        lower = uuid.lower()
        for gpu in self.gpus:
            _, identities = known.get((gpu.pci, gpu.uuid), ((), ()))
            if any(said.lower() == lower for _, _, said in identities):
                return next((one for one in self.list_for_gpu(gpu) if one.uuid.lower() == lower), None)
        return None

    def list_with_uuids(self) -> list[MigDevice]:
        """Every MIG device of the machine, all with their UUIDs; asks NVML about the GPUs that lack some.

        Raises:
            Fault: NVML does not answer within the limit, or says something else than /proc.
        """
        if self._list_gpus_without_uuids():
            import time

            began = time.monotonic()
            with self.cache.lock(_CACHE_NAME):  # of many starts at once only one asks
                self._devices_by_gpu.clear()
                self._cached_identities = None
                lacking = self._list_gpus_without_uuids()
                if lacking:
                    # Whoever has waited for another start's question has used up his own time.
                    self._query_nvml(lacking, max(1.0, self.limit - (time.monotonic() - began)))
        return [one for gpu in self.gpus for one in self.list_for_gpu(gpu)]

    def discard_cached_uuids(self) -> None:
        """Makes `identified` ask NVML anew: a UUID is asked for that nobody has.

        What another start has learnt in the meantime counts, so that of many starts only one asks.
        """
        self._discarded_blob = self._last_blob
        self._devices_by_gpu.clear()
        self._cached_identities = None

    def _list_gpus_without_uuids(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if any(not one.uuid for one in self.list_for_gpu(gpu))]

    def _query_nvml(self, gpus: list[Gpu], limit: float) -> None:
        from gpu_oci_hook.host.nvml.query import query_nvml_gpus

        before = [read_mig_signature(self.host, gpu) for gpu in gpus]
        self.store_nvml_answer(
            gpus, query_nvml_gpus([gpu.pci for gpu in gpus], library=self.find_library(), timeout=limit), before
        )

    def store_nvml_answer(
        self, gpus: list[Gpu], cards: list[NvmlGpu], earlier_signatures: list[MigSignature] | None = None
    ) -> None:
        """Takes NVML's answer about these GPUs for true, and remembers it.

        Arguments:
            earlier_signatures: the GPUs' signatures when NVML was asked, so that a change in the meantime shows.

        Raises:
            Fault: it says something else than the kernel module, or nothing about one of them.
        """
        known = dict(self._cached_identities or {})
        asked = {(gpu.pci, gpu.uuid) for gpu in gpus}
        taken = {uuid.lower() for key, (_, said) in known.items() if key not in asked for _, _, uuid in said}
        for place, (gpu, card) in enumerate(zip(gpus, cards, strict=True)):
            if card.error:
                raise Fault(f"NVML does not know GPU {gpu.index} ({gpu.pci}): {clip_text(card.error)}")
            signature = read_mig_signature(self.host, gpu)
            said = tuple(card.mig_devices)
            what = _find_nvml_disagreement(gpu, card.uuid, {(gi, ci) for gi, ci, *_ in signature}, said, taken)
            if earlier_signatures is not None and earlier_signatures[place] != signature:
                what = f"the MIG devices of GPU {gpu.index} changed while it was asked"
            if what:
                raise Fault(
                    f"NVML cannot be believed: {what}",
                    hint="If MIG devices are being made or removed right now, try again when that is done",
                )
            known[gpu.pci, gpu.uuid] = (signature, said)
        there = {(gpu.pci, gpu.uuid) for gpu in self.gpus}
        self._cached_identities = {key: entry for key, entry in known.items() if key in there}
        self._devices_by_gpu.clear()
        self.cache.put(_CACHE_NAME, marshal.dumps((VERSION, self.version, self._cached_identities)))


def _find_nvml_disagreement(
    gpu: Gpu,
    uuid: str,
    kernel_ids: set[tuple[int, int]],
    nvml_identities: tuple[MigIdentity, ...],
    taken_uuids: set[str],
) -> str:
    """Where NVML's answer cannot be true; "" where it can."""
    if uuid.lower() != gpu.uuid.lower() and "?" not in gpu.uuid:
        return f"it says that GPU {gpu.pci} is {clip_text(uuid, 80)}, the kernel module that it is {gpu.uuid}"
    if {(gi, ci) for gi, ci, _ in nvml_identities} != kernel_ids or len(nvml_identities) != len(kernel_ids):
        listed = ", ".join(f"{gi}/{ci}" for gi, ci, _ in nvml_identities[:16]) or "none"
        there = ", ".join(f"{gi}/{ci}" for gi, ci in sorted(kernel_ids)) or "none"
        return f"it says that GPU {gpu.index} has the MIG devices (gi/ci) {listed}, the kernel module says {there}"
    for gi, ci, name in nvml_identities:
        if not name.startswith("MIG-") or not 8 <= len(name) <= 96 or not _UUID_CHARACTERS.issuperset(name):
            return f'it says that MIG device {gi}/{ci} of GPU {gpu.index} is "{clip_text(name, 80)}", which is no UUID'
        old = name.lower().startswith("mig-gpu-")
        if old and name.lower() != f"mig-{gpu.uuid.lower()}/{gi}/{ci}":
            return f"it says that MIG device {gi}/{ci} of GPU {gpu.index} is {name}"
        if name.lower() in taken_uuids:
            return f"it gives {name} to two MIG devices"
        taken_uuids.add(name.lower())
    return ""


def _parse_cached_identities(blob: bytes | None, version: str) -> CachedIdentities:
    """The remembered identities; none from damaged memory, another version of ours, or another driver."""
    if blob is not None:
        try:
            ours, driver, known = marshal.loads(blob)  # noqa: S302  the memory is ours alone
            if (ours, driver) == (VERSION, version) and isinstance(known, dict):
                for signature, identities in known.values():
                    if len(signature) != len(identities) or not all(
                        isinstance(gi, int) and isinstance(ci, int) and isinstance(uuid, str)
                        for gi, ci, uuid in identities
                    ):
                        return {}
                return known
        except Exception:  # noqa: S110  whatever a damaged blob does: it costs a question, never a start
            pass
    return {}
