"""NVML is asked once for what no table knows, and only about this driver and this GPU."""

from __future__ import annotations

import marshal

import pytest

import gpu_oci_hook
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.nvml import answer_cache
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.request.require_expressions import HostProperties
from support.fake_cache import FakeCache

GPU = Gpu(index=0, uuid="GPU-1", pci="0000:01:00.0", minor=0, model="Fake GPU")


def library() -> str:
    """The loader finds it."""
    return ""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What NVML was asked; it knows everything."""
    questions: list[tuple[str, str]] = []

    def ask(question: str, pci: str = "", library: str = "") -> str:
        questions.append((question, pci))
        return {"cuda": "13.4", "arch": "13.0", "brand": "nvidia"}[question]

    monkeypatch.setattr(answer_cache, "query_nvml", ask)
    return questions


def values(*, arch: str = "", brand: tuple[str, ...] = ()) -> HostProperties:
    """A host of which the driver is known."""
    return HostProperties("GPU 0", cuda="", cuda_at_least="13.1", driver="700.10", arch=arch, brand=brand)


def test_what_is_unknown_is_asked_once_and_cached(asked: list[tuple[str, str]]) -> None:
    cache = FakeCache()
    for _ in range(2):
        host = values()
        assert (
            answer_cache.fill_unknown_values([host], [GPU], "700.10", ("cuda", "arch", "brand"), cache, library) == ""
        )
        assert (host.cuda, host.arch, host.brand) == ("13.4", "13.0", ("nvidia",))
    assert asked == [("cuda", ""), ("arch", "0000:01:00.0"), ("brand", "0000:01:00.0")]
    answer_cache.fill_unknown_values([values()], [GPU], "701.10", ("arch",), cache, library)
    other = Gpu(index=0, uuid="GPU-2", pci="0000:01:00.0", minor=0, model="Other GPU")
    answer_cache.fill_unknown_values([values()], [other], "700.10", ("arch",), cache, library)
    assert len(asked) == 5


def test_what_is_known_is_not_asked(asked: list[tuple[str, str]]) -> None:
    host = values(arch="8.0", brand=("tesla",))
    assert answer_cache.fill_unknown_values([host], [GPU], "700.10", ("arch", "brand"), FakeCache(), library) == ""
    assert asked == []
    assert host.brand == ("tesla",)


def test_without_a_gpu_only_the_driver_can_be_asked(asked: list[tuple[str, str]]) -> None:
    host = values()
    assert answer_cache.fill_unknown_values([host], [], "700.10", ("cuda",), FakeCache(), library) == ""
    assert host.cuda == "13.4"
    assert "no GPU was chosen" in answer_cache.fill_unknown_values(
        [host], [], "700.10", ("arch",), FakeCache(), library
    )


def test_a_failure_is_the_reason_and_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(question: str, pci: str = "", library: str = "") -> str:
        raise Fault("NVML crashed (SIGSEGV)")

    monkeypatch.setattr(answer_cache, "query_nvml", ask)
    cache = FakeCache()
    reason = answer_cache.fill_unknown_values([values(), values()], [GPU, GPU], "700.10", ("arch",), cache, library)
    assert reason == "NVML crashed (SIGSEGV)"
    assert cache.puts == 0


@pytest.mark.parametrize(
    "blob", [b"", b"x", marshal.dumps(1), marshal.dumps(("0", {})), marshal.dumps((gpu_oci_hook.VERSION, 7))]
)
def test_a_damaged_cache_only_costs_a_question(asked: list[tuple[str, str]], blob: bytes) -> None:
    cache = FakeCache()
    cache.blobs["answers"] = blob
    assert answer_cache.fill_unknown_values([values()], [GPU], "700.10", ("arch",), cache, library) == ""
    assert len(asked) == 1
