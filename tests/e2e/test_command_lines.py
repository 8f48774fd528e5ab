"""The ways to name a bundle and its configuration that the real crun accepts: each container gets its GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.e2e import machine
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.requirements import require_programs


@pytest.fixture(scope="module")
def crun(workspace: Path, image: Path, runtime_for: Callable[[str], Path]) -> Iterator[BareRuntime]:
    require_programs("crun")
    engine = BareRuntime("crun", "v1", "run")
    directory = workspace / "crun-lines"
    directory.mkdir()
    engine.start(EngineHome(directory, image, runtime_for))
    yield engine
    engine.stop()


@pytest.mark.parametrize(
    "words",
    [
        ["-b", "{bundle}"],
        ["-b{bundle}"],
        ["--bundle={bundle}"],
        ["--bun", "{bundle}"],
        ["--bun={bundle}"],
        ["-b", "{bundle}", "--config", "{file}"],
        ["-b{bundle}", "-f{file}"],
        ["--conf={file}", "--bundle", "{bundle}"],
    ],
    ids=" ".join,
)
def test_every_spelling_that_crun_accepts_leads_to_a_gpu(crun: BareRuntime, tmp_path: Path, words: list[str]) -> None:
    request = ContainerRequest(["/bin/sh", "-c", "ls /usr/local/nvidia/lib64"], ["NVIDIA_VISIBLE_DEVICES=0"])
    bundle = crun.bundle(request)
    if "{file}" in " ".join(words):
        # Relative to the current directory, the root; the bundle's own file asks for nothing.
        (tmp_path / "other.json").write_text((bundle / "config.json").read_text())
        (bundle / "other.json").write_text("{}")
        (bundle / "config.json").write_text("{}")
    line = [word.format(bundle=bundle, file=str(tmp_path / "other.json").lstrip("/")) for word in words]
    name = crun.fresh_name()
    try:
        done = machine.run_command(crun.command("run", *line, name), cwd=Path("/"))
    finally:
        machine.run_command(crun.command("delete", "--force", name))
    assert done.status == 0, done.text
    assert "libcuda.so.1" in done.stdout
    assert os.listdir(tmp_path) == (["other.json"] if "{file}" in " ".join(words) else [])
