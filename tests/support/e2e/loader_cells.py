"""Images in which several libcudas could be loaded, and what a container of each loads.

An image is a root of one distribution's layout with one situation in it. `run_cell` asks `explain` which libcuda
programs will load, starts the container, and looks in it at the file that dlopen has mapped: at the start, and after
`ldconfig` has run in it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_oci_hook.simulate import host_tree
from support.e2e import images, machine
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.host import InstalledRuntime
from support.e2e.images import LOADER, TRIPLE

DRIVER = "550.163.01"
OLDER, NEWER, FAR = "535.183.06", "575.57.08", "470.57.02"
MODELS = {"data-centre": "NVIDIA A100-SXM4-40GB", "desktop": "NVIDIA GeForce RTX 3090"}
STUBS = "/usr/local/cuda/lib64/stubs"
COMPAT = "/usr/local/cuda-12.9/compat"
CUDA_IMAGE_PATH = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"


@dataclass
class Root:
    """A root file system that a situation is made in.

    Arguments:
        path: the root on the host.
        library: a shared object with SONAME libcuda.so.1.
        library_dir: the image's own library directory.
        musl: its C library is musl.
        env: the environment of its containers.
    """

    path: Path
    library: Path
    library_dir: str
    musl: bool = False
    env: list[str] = field(default_factory=list)

    def add_libcuda(self, directory: str, version: str, *, soname_link: bool = True) -> None:
        """Add a libcuda with its links."""
        where = self.path / directory[1:]
        where.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self.library, where / f"libcuda.so.{version}")
        if soname_link:
            (where / "libcuda.so.1").unlink(missing_ok=True)
            (where / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")

    def add_compat(self, version: str) -> None:
        """Add the compat libcuda of a CUDA image, and the link by which programs know that CUDA."""
        self.add_libcuda(COMPAT, version)
        (self.path / "usr/local/cuda").symlink_to("cuda-12.9")

    def add_stub(self) -> None:
        """Add the toolkit's stub of libcuda."""
        stubs = self.path / STUBS[1:]
        stubs.mkdir(parents=True)
        shutil.copy2(self.library, stubs / "libcuda.so")

    def add_loader_directory(self, directory: str, drop_in: str = "") -> None:
        """Name a directory in the loader's configuration, in a drop-in or before everything else."""
        if self.musl:
            path = self.path / f"etc/ld-musl-{os.uname().machine}.path"
            path.write_text(f"{directory}\n/lib\n/usr/local/lib\n/usr/lib\n")
        elif drop_in:
            (self.path / f"etc/ld.so.conf.d/{drop_in}").write_text(f"{directory}\n")
        else:
            path = self.path / "etc/ld.so.conf"
            path.write_text(f"{directory}\n{path.read_text()}")


# ------------------------------------------------------------------------------------------------- situations


def add_nothing(root: Root) -> None:
    """A plain image."""


def add_cuda_image_compat(root: Root) -> None:
    """NVIDIA's CUDA image: compat libraries, and LD_LIBRARY_PATH with the directories of nvidia-docker 1."""
    root.add_compat(NEWER)
    root.env.append(f"LD_LIBRARY_PATH={CUDA_IMAGE_PATH}")


def add_compat_drop_in(root: Root) -> None:
    """Compat libraries newer than the driver, with the drop-in of NVIDIA's packages."""
    root.add_compat(NEWER)
    root.add_loader_directory("/usr/local/cuda/compat", "00-cuda-compat.conf")


def add_older_compat_drop_in(root: Root) -> None:
    """Compat libraries older than the driver, with the drop-in of NVIDIA's packages."""
    root.add_compat(OLDER)
    root.add_loader_directory("/usr/local/cuda/compat", "00-cuda-compat.conf")


def add_compat_search_path(root: Root) -> None:
    """Compat libraries newer than the driver, named by LD_LIBRARY_PATH."""
    root.add_compat(NEWER)
    root.env.append(f"LD_LIBRARY_PATH=/usr/local/cuda/compat:{CUDA_IMAGE_PATH}")


def add_older_compat_search_path(root: Root) -> None:
    """Compat libraries older than the driver, named by LD_LIBRARY_PATH."""
    root.add_compat(OLDER)
    root.env.append("LD_LIBRARY_PATH=/usr/local/cuda/compat")


def add_conda_search_path(root: Root) -> None:
    """conda's libcuda, named by LD_LIBRARY_PATH."""
    root.add_libcuda("/opt/conda/lib", OLDER)
    root.env.append("LD_LIBRARY_PATH=/opt/conda/lib")


def add_conda_conf(root: Root) -> None:
    """conda's libcuda, named by the loader's configuration before everything else."""
    root.add_libcuda("/opt/conda/lib", OLDER)
    root.add_loader_directory("/opt/conda/lib")


def add_conda_include(root: Root) -> None:
    """conda's libcuda, named by a file that another file includes, in an odd order."""
    root.add_libcuda("/opt/conda/lib", OLDER)
    root.add_loader_directory("/opt/conda/lib", "!conda.conf")
    if not root.musl:
        (root.path / "etc/ld.so.conf").write_text("include conf.d/*.conf\ninclude ld.so.conf.d/*.conf\n")
        (root.path / "etc/conf.d").mkdir()
        (root.path / "etc/conf.d/0.conf").write_text("include /etc/ld.so.conf.d/!conda.conf\n")


def add_stub_search_path(root: Root) -> None:
    """The toolkit's stub, which has no link with the SONAME until ldconfig makes one."""
    root.add_stub()
    root.add_loader_directory(STUBS, "aa-stubs.conf")
    root.env.append(f"LD_LIBRARY_PATH={STUBS}")


def add_stub_conf(root: Root) -> None:
    """The toolkit's stub, named by the loader's configuration before everything else."""
    root.add_stub()
    root.add_loader_directory(STUBS, "000-stubs.conf")


def add_second_driver(root: Root) -> None:
    """A driver of another version in the image's own library directory."""
    root.add_libcuda(root.library_dir, FAR)
    (root.path / root.library_dir[1:] / "libcuda.so").symlink_to("libcuda.so.1")


def add_second_driver_search_path(root: Root) -> None:
    """Two drivers in a directory that LD_LIBRARY_PATH and the configuration name; the link leads to the older one."""
    root.add_libcuda("/opt/drivers", OLDER, soname_link=False)
    root.add_libcuda("/opt/drivers", FAR)
    root.add_loader_directory("/opt/drivers", "zz-drivers.conf")
    root.env.append("LD_LIBRARY_PATH=/nowhere:/opt/drivers")


SITUATIONS: dict[str, Callable[[Root], None]] = {
    function.__name__.removeprefix("add_"): function
    for function in (
        add_nothing, add_cuda_image_compat, add_compat_drop_in, add_older_compat_drop_in, add_compat_search_path,
        add_older_compat_search_path, add_conda_search_path, add_conda_conf, add_conda_include, add_stub_search_path,
        add_stub_conf, add_second_driver, add_second_driver_search_path,
    )
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- layouts


def build_debian(path: Path) -> str:
    """Debian 12: merged /usr, multiarch."""
    images.build_glibc_image(path)
    return f"/usr/lib/{TRIPLE}"


def build_ubuntu(path: Path) -> str:
    """Ubuntu: as Debian, and /sbin/ldconfig runs ldconfig.real."""
    images.build_glibc_image(path)
    (path / "usr/sbin/ldconfig").rename(path / "usr/sbin/ldconfig.real")
    (path / "usr/sbin/ldconfig").write_text('#!/bin/sh\nexec /sbin/ldconfig.real "$@"\n')
    (path / "usr/sbin/ldconfig").chmod(0o755)
    (path / "etc/ld.so.conf.d/fakeroot-x86_64-linux-gnu.conf").write_text(f"/usr/lib/{TRIPLE}/libfakeroot\n")
    (path / "etc/ld.so.conf.d/nvidia.conf").write_text("/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n")
    return f"/usr/lib/{TRIPLE}"


def build_fedora(path: Path) -> str:
    """Fedora: /usr/lib64; the loader of this machine has to be told of it."""
    images.build_glibc_image(path)
    _move_libraries(path, path / "usr/lib64")
    (path / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    (path / "etc/ld.so.conf.d/zz-lib64.conf").write_text("/usr/lib64\n")
    images.refresh_ld_cache(path)
    return "/usr/lib64"


def build_arch(path: Path) -> str:
    """Arch: everything in /usr/lib."""
    images.build_glibc_image(path)
    _move_libraries(path, path / "usr/lib")
    loader = path / f"usr/lib64/{LOADER}"
    if loader.exists():
        loader.rename(path / f"usr/lib/{LOADER}")
        loader.parent.rmdir()
        (path / "lib64").unlink()
        (path / "usr/lib64").symlink_to("lib")
        (path / "lib64").symlink_to("usr/lib")
    images.refresh_ld_cache(path)
    return "/usr/lib"


def build_alpine(path: Path) -> str:
    """Alpine: musl, and an ldconfig that does nothing."""
    images.build_musl_image(path)
    (path / "sbin/ldconfig").write_text("#!/bin/sh\nexit 0\n")
    (path / "sbin/ldconfig").chmod(0o755)
    return "/usr/lib"


LAYOUTS: dict[str, Callable[[Path], str]] = {
    "debian": build_debian,
    "ubuntu": build_ubuntu,
    "fedora": build_fedora,
    "arch": build_arch,
    "alpine": build_alpine,
}


def _move_libraries(path: Path, target: Path) -> None:
    source = path / f"usr/lib/{TRIPLE}"
    for file in source.iterdir():
        file.rename(target / file.name)
    source.rmdir()
    for name in ("libc.conf", f"{TRIPLE}.conf"):
        (path / f"etc/ld.so.conf.d/{name}").unlink()


# -------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class CellResult:
    """What a container of one image loads, and what was said before.

    Attributes:
        loaded, loaded_later: the file that dlopen maps for libcuda.so.1, at the start and after ldconfig.
        named, named_later: the file that `explain` names.
        warnings: the warnings of `explain`.
        ldconfig_text: what ldconfig wrote.
    """

    loaded: str
    loaded_later: str
    named: str
    named_later: str
    warnings: tuple[str, ...]
    ldconfig_text: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the files that are loaded are those that were named."""
        return (self.loaded, self.loaded_later) == (self.named, self.named_later)


def add_cdi_device(spec: dict, document: dict, device: str) -> None:  # type: ignore[type-arg]
    """Add the edits of a CDI file for one device to a config.json, without the device nodes."""
    own = next(entry["containerEdits"] for entry in document["devices"] if entry["name"] == device)
    spec.setdefault("linux", {}).setdefault("devices", []).extend(
        {key: node[key] for key in ("path", "type", "major", "minor")}
        for node in own.get("deviceNodes", ())
        if "major" in node
    )
    for edits in (document["containerEdits"], own):
        spec["process"]["env"] += edits.get("env", [])
        spec["mounts"] += [
            {"source": mount["hostPath"], "destination": mount["containerPath"], "type": "bind",
             "options": mount["options"]}
            for mount in edits.get("mounts", ())
        ]  # fmt: skip
        for hook in edits.get("hooks", ()):
            added = {key: value for key, value in hook.items() if key != "hookName"}
            spec.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(added)


def generate_cdi_file(runtime: InstalledRuntime, host: Path) -> dict:  # type: ignore[type-arg]
    """Return the CDI file that we write for a host."""
    program = str(runtime.shim.parent / "gpu-oci-hook")
    words = [program, "cdi", "generate", "--root", str(host), "--format", "json", "--quiet", "--hook", program]
    document: dict = json.loads(machine.run_command(words).check().stdout)  # type: ignore[type-arg]
    return document


class LoaderLab:
    """Builds images, hosts and bundles below a directory, and runs them with runc through the shim."""

    def __init__(self, directory: Path, runtime: InstalledRuntime) -> None:
        self.directory = directory
        self.runtime = runtime
        self._numbers = iter(range(1, 100000))
        self._hosts: dict[str, Path] = {}
        self._images: dict[str, tuple[Path, str]] = {}

    def build_root(self, layout: str, situation: str) -> Root:
        """Build an image of a layout with a situation in it."""
        if layout not in self._images:
            path = self.directory / f"image-{layout}"
            library_dir = LAYOUTS[layout](path)
            self._compile_probe(path, musl=layout == "alpine")
            self._images[layout] = path, library_dir
        image, library_dir = self._images[layout]
        copy = images.copy_image(image, self.directory / f"{layout}-{next(self._numbers)}")
        library = next((self.get_host("desktop") / f"usr/lib/{TRIPLE}").rglob(f"libcuda.so.{DRIVER}"))
        root = Root(copy, library, library_dir, musl=layout == "alpine")
        SITUATIONS[situation](root)
        if not root.musl:
            images.refresh_ld_cache(copy)
            if situation == "stub_search_path":  # as before any ldconfig
                (copy / "usr/local/cuda/lib64/stubs/libcuda.so.1").unlink(missing_ok=True)
        return root

    def run_cell(self, layout: str, situation: str, gpu: str) -> CellResult:
        """Run one cell."""
        root = self.build_root(layout, situation)
        bare_runtime, wrapper = self._prepare_runtime(root, self.get_host(gpu))
        script = "/loaded libcuda.so.1; ldconfig 2>&1 | sed 's/^/ldconfig: /'; /loaded libcuda.so.1"
        request = ContainerRequest(["/bin/sh", "-c", script], ["NVIDIA_VISIBLE_DEVICES=0", *root.env])
        bundle = bare_runtime.bundle(request)
        explained = self._explain(bundle, wrapper)
        lines = bare_runtime.start_bundle(bundle).check().stdout.splitlines()
        texts = [line for line in lines if line.startswith("ldconfig: ")]
        loaded, loaded_later = [line for line in lines if not line.startswith("ldconfig: ")]
        machine.remove_tree(bundle)
        machine.remove_tree(root.path)
        at_start = explained["libcuda"]["at_start"] or {"file": "none"}
        later = explained["libcuda"]["after_ldconfig"] or at_start
        return CellResult(
            loaded, loaded_later, at_start["file"], later["file"], tuple(explained["warnings"]), "\n".join(texts)
        )

    def run_hook_cell(self, layout: str, situation: str, gpu: str) -> tuple[str, str]:
        """Run one cell with a CDI file of ours and plain runc: no shim, the hook alone.

        Returns:
            What is loaded at the start and after ldconfig.
        """
        root = self.build_root(layout, situation)
        script = "/loaded libcuda.so.1; ldconfig >/dev/null 2>&1; /loaded libcuda.so.1"
        loaded, loaded_later = self.run_with_hook(root, self.get_host(gpu), ["/bin/sh", "-c", script])
        machine.remove_tree(root.path)
        return loaded, loaded_later

    def run_with_hook(self, root: Root, host: Path, args: list[str]) -> list[str]:
        """Run a command in a container that has the edits of a CDI file for a host; return what it prints."""
        bare_runtime = BareRuntime("runc", "v1", "run")
        home = self.directory / f"home-{next(self._numbers)}"
        home.mkdir()
        bare_runtime.start(EngineHome(home, root.path, lambda name: Path(machine.find_program(name))))
        bundle = bare_runtime.bundle(ContainerRequest(args, root.env))
        spec = json.loads((bundle / "config.json").read_text())
        add_cdi_device(spec, generate_cdi_file(self.runtime, host), "0")
        (bundle / "config.json").write_text(json.dumps(spec))
        lines = bare_runtime.start_bundle(bundle).check().stdout.splitlines()
        machine.remove_tree(bundle)
        return lines

    def load_names(self, root: Root, host: Path, names: list[str]) -> list[str]:
        """Return the file that dlopen maps for each name in a container."""
        bare_runtime, _ = self._prepare_runtime(root, host)
        request = ContainerRequest(["/loaded", *names], ["NVIDIA_VISIBLE_DEVICES=0", *root.env])
        return bare_runtime.run(request).check().stdout.splitlines()

    def _prepare_runtime(self, root: Root, host: Path) -> tuple[BareRuntime, Path]:
        wrapper = self.runtime.wrapper("runc", host)
        bare_runtime = BareRuntime("runc", "v1", "run")
        home = self.directory / f"home-{next(self._numbers)}"
        home.mkdir()
        bare_runtime.start(EngineHome(home, root.path, lambda _: wrapper))
        return bare_runtime, wrapper

    def get_host(self, gpu: str) -> Path:
        """Return the root of a simulated host with GPUs of one kind."""
        if gpu not in self._hosts:
            self._hosts[gpu] = self.directory / f"host-{gpu}"
            host_tree.build_host(self._hosts[gpu], gpus=1, driver=DRIVER, model=MODELS[gpu])
        return self._hosts[gpu]

    def _explain(self, bundle: Path, wrapper: Path) -> dict:  # type: ignore[type-arg]
        program = self.runtime.shim.parent / "gpu-oci-hook"
        config = f"GPU_OCI_HOOK_CONFIG={wrapper.with_suffix('.toml')}"
        words = ["env", config, str(program), "explain", "--bundle", str(bundle), "--format", "json"]
        document: dict = json.loads(machine.run_command(words).check().stdout)  # type: ignore[type-arg]
        return document

    @staticmethod
    def _compile_probe(root: Path, *, musl: bool) -> None:
        compiler = machine.find_program("musl-gcc" if musl else "gcc")
        source = str(Path(__file__).parent / "loaded.c")
        machine.run_command([compiler, "-O1", "-Wall", "-Werror", "-o", str(root / "loaded"), source]).check()
