"""Many containers created at once: the time until the last one exists, and the slowest ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR


class Crowd:
    """Bundles whose containers are created at the same time.

    Arguments:
        directory: for bundles and layers, on a file system that overlays can lie on.
        image: the root file system that all of them have below their own layer.
        runc: the low-level runtime.
        size: how many there are.
    """

    def __init__(self, directory: Path, image: Path, runc: str, size: int) -> None:
        self.directory = directory
        self.image = image
        self.runc = runc
        self.bundles = [directory / f"bundle-{number}" for number in range(size)]
        self.generation = 0
        directory.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory], check=True)
        for bundle in self.bundles:
            (bundle / "rootfs").mkdir(parents=True)

    def close(self) -> None:
        """Remove what lies on the machine."""
        subprocess.run(["umount", "--lazy", self.directory], check=False)

    def create(self, runtime: str, configs: list[bytes], generated: list[Path | None]) -> list[float]:
        """Create one container in each bundle, all at once, and delete them.

        Arguments:
            configs: the config.json of each bundle.
            generated: the files beside it, which an edited config.json mounts; None without any.

        Returns:
            Seconds from the common start to the end of each create, sorted; the last one is that of all.
        """
        self.generation += 1
        names = [f"gpu-oci-hook-crowd-{os.getpid()}-{self.generation}-{number}" for number in range(len(configs))]
        try:
            for bundle, config, files in zip(self.bundles, configs, generated, strict=True):
                self._prepare(bundle, config, files)
            took = self._create_all(runtime, names)
        finally:
            for name in names:
                subprocess.run([self.runc, "delete", "--force", name], check=False, stderr=subprocess.DEVNULL)
            for bundle in self.bundles:
                subprocess.run(["umount", "--lazy", bundle / "rootfs"], check=False, stderr=subprocess.DEVNULL)
        time.sleep(1)  # the kernel takes dead containers apart behind our back
        return sorted(took)

    def keep_generated(self, target: Path) -> tuple[list[bytes], list[Path]]:
        """Return the config.json that the shim has written in each bundle, and copies of the files beside it."""
        target.mkdir()
        copies = []
        for number, bundle in enumerate(self.bundles):
            copies.append(target / str(number))
            shutil.copytree(bundle / GENERATED_DIR, copies[-1], symlinks=True)
        return [(bundle / "config.json").read_bytes() for bundle in self.bundles], copies

    def _prepare(self, bundle: Path, config: bytes, generated: Path | None) -> None:
        layer = self.directory / "layers" / bundle.name
        shutil.rmtree(layer, ignore_errors=True)
        shutil.rmtree(bundle / GENERATED_DIR, ignore_errors=True)
        if generated is not None:
            shutil.copytree(generated, bundle / GENERATED_DIR, symlinks=True)
        for part in ("upper", "work"):
            (layer / part).mkdir(parents=True)
        options = f"lowerdir={self.image},upperdir={layer}/upper,workdir={layer}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, bundle / "rootfs"], check=True)
        (bundle / "config.json").write_bytes(config)

    def _create_all(self, runtime: str, names: list[str]) -> list[float]:
        took = [0.0] * len(names)
        failures: list[str] = []
        barrier = threading.Barrier(len(names) + 1)
        start = [0.0]

        def create(number: int) -> None:
            errors = self.directory / f"errors-{number}"
            words = [runtime, "create", "--bundle", str(self.bundles[number]), names[number]]
            barrier.wait()
            with open(errors, "wb") as file, open(os.devnull, "r+b") as null:
                code = subprocess.run(words, stdin=null, stdout=null, stderr=file, check=False).returncode
            took[number] = time.perf_counter() - start[0]
            if code:
                failures.append(errors.read_text())

        threads = [threading.Thread(target=create, args=(number,)) for number in range(len(names))]
        for thread in threads:
            thread.start()
        start[0] = time.perf_counter()
        barrier.wait()
        for thread in threads:
            thread.join()
        if failures:
            raise SystemExit(f"{len(failures)} of {len(names)} creates failed: {failures[0]}")
        return took
