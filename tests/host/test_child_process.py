"""NVML in a child: whatever happens to it, we get an answer or one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.nvml import query


def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program in the place of the interpreter."""
    place = tmp_path / "python"
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(place))


def test_the_childs_answer_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(tmp_path, monkeypatch, 'test "$1" = -I && test "$5" = cuda && echo 12.4')
    assert query.query_nvml("cuda") == "12.4"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exec sleep 60", "within 0.3 seconds"),
        ("kill -SEGV $$", "crashed (SIGSEGV)"),
        ("echo 'Driver Not Loaded' >&2; exit 1", "NVML does not answer: Driver Not Loaded"),
        ("exit 4", "status 4"),
        ("exit 0", "does not answer"),
    ],
)
def test_whatever_happens_to_the_child_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    interpreter(tmp_path, monkeypatch, script)
    with pytest.raises(Fault) as caught:
        query.query_nvml("arch", "0000:01:00.0", timeout=0.3)
    assert words in str(caught.value)


def test_an_interpreter_that_is_gone_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Fault, match="it is missing"):
        query.query_nvml("cuda")
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(Fault, match="does not know its own path"):
        query.query_nvml("cuda")


def test_a_library_that_is_none_is_named_by_the_real_child(tmp_path: Path) -> None:
    fake = tmp_path / "libnvidia-ml.so.1"
    fake.write_text("no library")
    with pytest.raises(Fault, match="NVML does not answer") as caught:
        query.query_nvml("cuda", library=str(fake))
    assert str(fake) in str(caught.value)


def test_nvmls_numbers_become_words() -> None:
    fake = SimpleNamespace(
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12040,
        nvmlDeviceGetHandleByPciBusId=lambda pci: pci,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (8, 6),
        nvmlDeviceGetBrand=lambda handle: 14,
    )
    assert query._answer_question(fake, "cuda", "") == "12.4"
    assert query._answer_question(fake, "arch", "0000:01:00.0") == "8.6"
    assert query._answer_question(fake, "brand", "0000:01:00.0") == "nvidia"
    fake.nvmlDeviceGetBrand = lambda handle: 99
    assert query._answer_question(fake, "brand", "0000:01:00.0") == "unknown"
    with pytest.raises(SystemExit, match="expected one of"):
        query._answer_question(fake, "colour", "0000:01:00.0")


def test_our_brands_are_the_bindings_brands() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = {
        name.removeprefix("NVML_BRAND_").replace("_", "").lower().removeprefix("nvidia") or "nvidia": getattr(
            pynvml, name
        )
        for name in dir(pynvml)
        if name.startswith("NVML_BRAND_") and name != "NVML_BRAND_COUNT"
    }
    names["nvidiartx"] = pynvml.NVML_BRAND_NVIDIA_RTX
    for number, brand in enumerate(query.BRAND_NAMES):
        assert names[brand] == number, brand
