"""Import budgets: which modules each kind of call may load, and which files it may read.

Calls start as from the installed launcher: the real interpreter with -ISXutf8, and our package's directory in sys.path.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_oci_hook
from gpu_oci_hook.cli.launchers import find_interpreter
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.simulate import host_tree
from support import cdi_edits
from support.bundles import DEV, PROC, Spec, container_spec, make_bundle, skip_or_fail, user_namespace_param

SOURCE = Path(gpu_oci_hook.__file__).resolve().parents[1]
PACKAGE = SOURCE / "gpu_oci_hook"

# As `gpu-oci-hook install` writes it, but with a state directory of its own. With `dump` it writes the loaded modules
# into that file instead of exec.
LAUNCHER = """#!{python} -ISXutf8
import sys
sys.path += [{source!r}]
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = {state!r}
if {dump!r}:
    import posix
    def execv(path, argv):
        fd = posix.open({dump!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC, 0o600)
        posix.write(fd, "\\n".join(sys.modules).encode())
        posix._exit(0)
    posix.execv = execv
from gpu_oci_hook.shim.main import main
main()
"""


def modules(names: str) -> set[str]:
    """Expand names below our package to full module names, with the packages that contain them."""
    found = {"gpu_oci_hook"}
    for name in names.split():
        parts = name.split(".")
        found |= {".".join(["gpu_oci_hook", *parts[:end]]) for end in range(1, len(parts) + 1)}
    return found


PASS_THROUGH = {"gc", "_signal", "marshal", "posix"} | modules("shim.main files.state_dir")
CREATE = PASS_THROUGH | modules("files.read_regular")

INJECTION = CREATE | {
    "__future__",
    "_abc", "_collections_abc", "_json", "_stat", "abc", "errno", "genericpath", "os", "os.path", "posixpath", "stat",
}  # fmt: skip
INJECTION |= modules(
    """
    files.code_bundle
    inject.pipeline inject.gather inject.optional_items inject.requirements inject.device_links
    plan.build plan.devices plan.driver_params plan.files plan.library_mounts plan.layout plan.links
    plan.loader_files plan.mounting
    container.image container.injection_record container.rootfs_edits container.spec_edits
    host.device_nodes host.driver.inventory_cache host.gpus host.mig.capability_files host.model_tables
    host.optional.graphics host.root
    request.capabilities request.environment request.read request.selectors
    request.require_expressions request.require_variables
    model.edits model.file_edits model.machine model.optional_devices model.outcome model.plan_input model.request
    config.keys
    files.directory files.path_walk files.prepared_directory files.replace files.rootfs files.user_namespace
    formats.architectures formats.driver_version formats.fastjson formats.ldcache formats.oci formats.proc
    formats.program_names
    errors
    """
)

# In addition, if a container requests MIG devices or one of its GPUs is in MIG mode.
MIG = modules("host.mig.mig_devices host.mig.mig_nodes model.mig request.mig_selectors")

# In addition, if a container names a CDI device whose files are cached.
CDI = modules(
    """
    inject.cdi_devices request.cdi_requests
    cdi.translate cdi.resolved_edits cdi.registry.registry cdi.registry.spec_dirs cdi.registry.staleness
    cdi.spec.mount_options
    container.cdi_spec_edits model.cdi_edits formats.cdi_names
    """
)

# In addition, if an earlier start has injected into the same bundle.
KEPT = modules("inject.earlier_injection model.earlier_edits")

# Each takes a good part of the time of the interpreter's own start.
FORBIDDEN = {
    "argparse", "click", "collections", "contextlib", "ctypes", "dataclasses", "enum", "functools", "json",
    "jsonschema", "logging", "pathlib", "re", "rich", "structlog", "subprocess", "tomllib", "typing", "yaml",
}  # fmt: skip


class Machine:
    """A simulated host, a state directory of its own, and the shim as engines call it."""

    def __init__(self, root: Path, *, mig: tuple[str, ...] = ()) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.state = root / "state"
        self.host = root / "host"
        host_tree.build_host(self.host, gpus=2, mig=mig, imex=1, features=("gdrcopy",))
        self.config = root / "config.toml"
        self.config.write_text(
            f'[host]\nroot = "{self.host}"\nload-modules = false\n[runtime]\nlow-level = ["/bin/true"]\n'
            '[request]\nenv-kinds = ["vendor.com/nic"]\n'
        )
        self.env = {"GPU_OCI_HOOK_CONFIG": str(self.config), "PATH": "/usr/bin:/bin"}

    def launcher(self, dump: Path | None = None) -> Path:
        path = self.root / ("dumping" if dump else "gpu-oci-runtime")
        text = LAUNCHER.format(
            python=find_interpreter(), source=str(SOURCE), state=str(self.state), dump=str(dump) if dump else ""
        )
        path.write_text(text)
        path.chmod(0o755)
        return path

    def call(self, *words: str | Path) -> None:
        done = subprocess.run([self.launcher(), *words], env=self.env, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def loaded(self, *words: str | Path) -> set[str]:
        """The modules loaded at the moment of exec, beyond the bare interpreter's."""
        dump = self.root / "modules"
        done = subprocess.run([self.launcher(dump), *words], env=self.env, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        return set(dump.read_text().split("\n")) - BARE


def _bare() -> set[str]:
    code = "import sys; print(chr(10).join(sys.modules))"
    done = subprocess.run([find_interpreter(), "-ISXutf8", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


BARE = _bare()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.call("state", "x")
    machine.call("create", "--bundle", make_bundle(machine.root / "warm", REQUESTS["rich"]), "x")
    return machine


REQUESTS: dict[str, Spec] = {
    "plain": container_spec("NVIDIA_VISIBLE_DEVICES=0"),
    "rich": container_spec(
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=all",
        "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536",
        mounts=[PROC, DEV],
    ),
    "user namespace": container_spec(
        "NVIDIA_VISIBLE_DEVICES=0", linux={"namespaces": [{"type": "user"}, {"type": "mount"}]}
    ),
    "forbidden": container_spec("CUDA_VERSION=12", "NVIDIA_REQUIRE_CUDA=cuda>=12"),
}


@pytest.mark.parametrize("words", [["state", "x"], ["--version"], [], ["--root", "/r", "kill", "x", "9"]])
def test_the_way_of_every_call_loads_the_allow_list_and_nothing_else(machine: Machine, words: list[str]) -> None:
    assert machine.loaded(*words) <= PASS_THROUGH


def test_a_create_that_asks_for_nothing_loads_one_module_more(machine: Machine, tmp_path: Path) -> None:
    assert machine.loaded("create", "--bundle", make_bundle(tmp_path / "b", container_spec()), "x") <= CREATE


@pytest.mark.parametrize("name", [user_namespace_param(name) for name in REQUESTS])
def test_the_way_of_a_gpu_container_loads_the_allow_list_and_nothing_else(
    name: str, machine: Machine, tmp_path: Path
) -> None:
    made = make_bundle(tmp_path / "b", REQUESTS[name])
    assert machine.loaded("create", "--bundle", made, "x") <= INJECTION
    if name != "forbidden":
        assert "libcuda.so" in (made / "config.json").read_text()


# To find out which libcuda is loaded, where an image or a container names another one.
LIBCUDA_SEARCH = "plan.planned_libcuda plan.libcuda_search model.libcuda_choice formats.ld_conf"
# In addition, for each of these variables of a container.
OPTIONAL = {
    "NVIDIA_GDRCOPY=enabled": "request.feature_requests host.optional.features",
    "NVIDIA_IMEX_CHANNELS=0": "request.feature_requests host.optional.features",
    "CUDA_MPS_PIPE_DIRECTORY=/x": "host.optional.mps files.trust",
    "NVIDIA_GDS=disabled": "request.feature_requests",
    "LD_LIBRARY_PATH=/opt/lib": LIBCUDA_SEARCH,
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64": "plan",  # NVIDIA's CUDA images: nothing more
}


@pytest.mark.parametrize("word", [user_namespace_param(word) for word in OPTIONAL])
def test_an_optional_item_loads_its_own_module_and_no_other(word: str, machine: Machine, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0", word))
    found = machine.loaded("create", "--bundle", made, "x")
    assert found - INJECTION == modules(OPTIONAL[word]) - INJECTION


GRAPHICS = {"gpu_oci_hook.host.optional.graphics", "gpu_oci_hook.plan.links"}


@pytest.mark.parametrize(("capabilities", "drawn"), [("compute,utility", False), ("graphics", True), ("display", True)])
def test_what_graphics_needs_is_loaded_for_graphics_alone(
    machine: Machine, tmp_path: Path, capabilities: str, drawn: bool
) -> None:
    made = make_bundle(
        tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    )
    assert machine.loaded("create", "--bundle", made, "x") & GRAPHICS == (GRAPHICS if drawn else set())


def test_the_way_of_a_mig_container_loads_a_few_modules_more(tmp_path: Path) -> None:
    divided = Machine(tmp_path / "divided", mig=("7", "0"))
    divided.call("state", "x")
    divided.call(
        "create", "--bundle", make_bundle(tmp_path / "warm", container_spec("NVIDIA_VISIBLE_DEVICES=0:1")), "x"
    )
    asked: dict[str, set[str]] = {"0:1": MIG, "all": MIG, "0": MIG, "1": set()}
    for count, (word, more) in enumerate(asked.items()):
        made = make_bundle(tmp_path / f"b{count}", container_spec(f"NVIDIA_VISIBLE_DEVICES={word}"))
        found = divided.loaded("create", "--bundle", made, "x")
        assert found <= INJECTION | more, word
        assert found >= more, word


@pytest.fixture(scope="module")
def with_files(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with another vendor's CDI file, which one container has asked for already."""
    machine = Machine(tmp_path_factory.mktemp("with-files"))
    (machine.host / "etc/cdi").mkdir()
    edits = {"deviceNodes": [{"path": "/dev/nic0", "type": "c", "major": 60, "minor": 1}]}
    devices = [{"name": "n", "containerEdits": edits}]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": "vendor.com/nic", "devices": devices})
    (machine.host / "etc/cdi/nic.json").write_text(text)
    time.sleep(0.1)  # what was written this very moment is not cached
    machine.call("state", "x")
    machine.call("create", "--bundle", make_bundle(machine.root / "warm", container_spec(NAMED["env"])), "x")
    return machine


NAMED = {"env": "NVIDIA_VISIBLE_DEVICES=0,vendor.com/nic=n", "own": "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"}


@pytest.mark.parametrize("how", [user_namespace_param(how) for how in ("env", "own", "annotation", "foreign")])
def test_a_warm_start_by_cdi_name_loads_no_yaml_and_no_checks(with_files: Machine, tmp_path: Path, how: str) -> None:
    made = {
        "annotation": container_spec(annotations={"cdi.k8s.io/x": "vendor.com/nic=n,nvidia.com/gpu=1"}),
        "foreign": container_spec("NVIDIA_VISIBLE_DEVICES=vendor.com/nic=n"),
    }.get(how) or container_spec(NAMED[how])
    found = with_files.loaded("create", "--bundle", make_bundle(tmp_path / "b", made), "x")
    assert found <= INJECTION | CDI
    assert (found >= CDI) == (how != "own"), "a name of our own kind needs no file"


def test_a_container_without_a_cdi_name_loads_nothing_of_cdi(with_files: Machine, tmp_path: Path) -> None:
    mount = {"destination": "/run/nvidia-container-devices/0", "source": "/dev/null", "type": "bind"}
    for number, made in enumerate(
        (
            container_spec("NVIDIA_VISIBLE_DEVICES=all"),
            container_spec(mounts=[mount]),
            container_spec("CUDA_VERSION=11"),
        )
    ):
        found = with_files.loaded("create", "--bundle", make_bundle(tmp_path / f"b{number}", made), "x")
        assert not found - INJECTION & CDI


def test_a_warm_start_by_cdi_name_opens_no_cdi_file(with_files: Machine, tmp_path: Path) -> None:
    found, became = opened(
        with_files, "create", "--bundle", make_bundle(tmp_path / "b", container_spec(NAMED["env"])), "x"
    )
    assert became
    assert str(with_files.host / "etc/cdi") in found
    assert not [path for path in found if path.startswith(f"{with_files.host}/etc/cdi/")]


def test_a_second_create_of_the_same_bundle_loads_two_modules_more(machine: Machine, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", REQUESTS["rich"])
    first = machine.loaded("create", "--bundle", made, "x")
    assert machine.loaded("create", "--bundle", made, "x") <= first | KEPT


def test_the_allow_lists_name_no_forbidden_module_and_no_missing_one() -> None:
    assert not (INJECTION | MIG | CDI) & FORBIDDEN
    ours = {name for name in INJECTION | MIG | CDI if name.startswith("gpu_oci_hook.")}
    for name in ours:
        path = SOURCE / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), name


def test_the_way_of_a_gpu_container_uses_its_whole_allow_list(machine: Machine, tmp_path: Path) -> None:
    """An entry that is not needed any more would hide a later import."""
    found = machine.loaded("create", "--bundle", make_bundle(tmp_path / "b", REQUESTS["rich"]), "x")
    assert {name for name in INJECTION if name.startswith("gpu_oci_hook.")} <= found


def opened(machine: Machine, *words: str | Path, bare: bool = False, locale: str = "") -> tuple[list[str], bool]:
    """The paths that a call opens before it becomes the low-level runtime, and whether it becomes that."""
    strace = shutil.which("strace")
    if strace is None:
        skip_or_fail("what a call opens; strace is not installed")
    trace = machine.root / "trace"
    command = [find_interpreter(), "-ISXutf8", "-c", "pass"] if bare else [machine.launcher(), *words]
    subprocess.run(
        [strace, "-f", "-y", "-e", "trace=open,openat,openat2,execve", "-o", trace, *command],
        env={**machine.env, **({"LC_ALL": locale} if locale else {})}, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    before, became, _ = trace.read_text().partition('execve("/bin/true"')
    return list_opened_paths(before), bool(became)


def list_opened_paths(trace: str) -> list[str]:
    """The paths in the output of `strace -f -y`, in their order."""
    found = []
    for line in trace.splitlines():
        call = line.partition(" ")[2].strip()
        if call.startswith("open"):
            path = call.split('"')[1]
            above = call.partition("<")[2].partition(">")[0] if not path.startswith("/") else ""
            found.append(os.path.normpath(f"{above}/{path}" if above else path))
    return found


@pytest.mark.parametrize("locale", ["", "C"])
def test_a_call_reads_nothing_but_our_own_code_and_the_one_cached_file(machine: Machine, locale: str) -> None:
    bare, _ = opened(machine, bare=True, locale=locale)
    found, became = opened(machine, "kill", "x", "9", locale=locale)
    assert became
    ours = {
        str(SOURCE / "gpu_oci_hook" / directory / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pyc")
        for directory, name in (
            ("", "__init__"),
            ("shim", "__init__"),
            ("shim", "main"),
            ("files", "__init__"),
            ("files", "state_dir"),
        )
    }
    package = {str(SOURCE / "gpu_oci_hook" / directory) for directory in ("", "shim", "files")}
    package |= {str(SOURCE), str(machine.root / "gpu-oci-runtime")}
    memory = {str(machine.state), str(machine.state / "runtime")}
    if not locale:  # the interpreter has set one
        memory.add("/proc/self/environ")
    rest = [path for path in found if path not in {*bare, *ours, *package, *memory}]
    standard = [path for path in rest if "/lib/python3." in path]
    assert rest == standard, "something else was read"
    names = {os.path.basename(path).partition(".")[0] for path in standard if path.endswith((".pyc", ".py", ".so"))}
    assert names <= PASS_THROUGH
    assert str(machine.state / "runtime") in found


def test_a_create_that_asks_for_nothing_reads_its_config_json_besides(machine: Machine, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", container_spec())
    plain, _ = opened(machine, "kill", "x", "9")
    found, became = opened(machine, "create", "--bundle", made, "x")
    assert became
    code = SOURCE / f"gpu_oci_hook/files/__pycache__/read_regular.{sys.implementation.cache_tag}.pyc"
    assert [path for path in found if path not in plain] == [str(code), str(made / "config.json")]


def test_a_warm_start_runs_nothing_and_reads_no_driver_file(machine: Machine, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b", REQUESTS["rich"])
    found, became = opened(machine, "create", "--bundle", made, "x")
    assert became
    assert not [path for path in found if ".so." in path and path.startswith(str(machine.host))]
    assert not [path for path in found if path.endswith(".toml")]


# --- the hook -----------------------------------------------------------------------------------------------

HOOK_LAUNCHER = """#!{python} -ISXutf8
import sys
sys.path += [{source!r}]
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = {state!r}
import os
def leave(status):
    fd = os.open({dump!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, "\\n".join(sys.modules).encode())
    os.kill(os.getpid(), 9) if status else end(status)
end, os._exit = os._exit, leave
from gpu_oci_hook.cli import main
main()
"""

# With `dump` it writes the loaded modules into that file when it ends without having needed the full program.
QUICK_LAUNCHER = """#!{python} -ISXutf8
import sys
sys.path += [{source!r}]
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = {state!r}
if {dump!r}:
    import posix
    def leave(status):
        fd = posix.open({dump!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC, 0o600)
        posix.write(fd, "\\n".join(sys.modules).encode())
        end(status)
    end, posix._exit = posix._exit, leave
from gpu_oci_hook.cli import main
main()
"""

# Loaded by a call of the prestart or precreate hook for a container that requests no GPU.
QUICK_HOOK = {"gc", "_signal", "marshal", "posix"} | modules(
    "cli hook.quick_answer hook.standard_streams files.read_regular files.state_dir"
)


class QuickHook:
    """A bundle without a request, and the hooks as hooks.d calls them. Its configuration is cached."""

    def __init__(self, machine: Machine, root: Path, name: str) -> None:
        self.machine = machine
        self.env = machine.env
        self.dump = root / "modules"
        self.trace = root / "trace"
        self.program, self.plain_program = root / name, root / "plain" / name
        self.plain_program.parent.mkdir()
        for program, dump in ((self.program, str(self.dump)), (self.plain_program, "")):
            text = QUICK_LAUNCHER.format(
                python=find_interpreter(), source=str(SOURCE), state=str(machine.state), dump=dump
            )
            program.write_text(text)
            program.chmod(0o755)
        self.bundle = make_bundle(root / "b", container_spec())
        self.state = json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": str(self.bundle)}).encode()
        self.call("prestart", self.program)  # caches the configuration

    def read_input(self, command: str) -> bytes:
        return (self.bundle / "config.json").read_bytes() if command == "precreate" else self.state

    def call(self, command: str, *program: str | Path) -> bytes:
        done = subprocess.run(
            [*program, command], input=self.read_input(command), env=self.env, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    def loaded(self, command: str) -> set[str]:
        self.dump.unlink(missing_ok=True)
        output = self.call(command, self.program)
        assert output == (self.read_input(command) if command == "precreate" else b"")
        assert self.dump.exists(), "the full program was needed"
        return set(self.dump.read_text().split("\n")) - BARE

    def opened(self, command: str) -> list[str]:
        """The paths that a call opens, beyond those that the bare interpreter opens and our own code."""
        strace = shutil.which("strace")
        if strace is None:
            skip_or_fail("what a hook opens; strace is not installed")
        self.call(command, strace, "-f", "-y", "-e", "trace=open,openat,openat2", "-o", self.trace, self.plain_program)
        bare, _ = opened(self.machine, bare=True)
        found = list_opened_paths(self.trace.read_text())
        assert found, "strace has seen nothing"
        code = {str(SOURCE), str(self.plain_program)}
        rest = [
            path for path in found if path not in {*bare, *code} and PACKAGE not in (Path(path), *Path(path).parents)
        ]
        return [path for path in rest if not (os.path.isdir(path) and "/lib/python3." in path)]  # searched for modules


QUICK_CALLS = [
    ("gpu-oci-hook", "prestart"),
    ("nvidia-container-runtime-hook", "prestart"),
    ("gpu-oci-hook", "precreate"),
    ("nvidia-container-runtime-hook", "poststop"),
]


@pytest.mark.parametrize(("name", "command"), QUICK_CALLS)
def test_a_hook_that_asks_for_nothing_loads_its_allow_list_and_nothing_else(
    name: str, command: str, machine: Machine, tmp_path: Path
) -> None:
    found = QuickHook(machine, tmp_path, name).loaded(command)
    assert found <= QUICK_HOOK
    assert {module for module in QUICK_HOOK if module.startswith("gpu_oci_hook")} <= found
    assert not QUICK_HOOK & FORBIDDEN


@pytest.mark.parametrize(("name", "command"), QUICK_CALLS)
def test_a_hook_that_asks_for_nothing_reads_its_config_json_and_the_one_cached_file(
    name: str, command: str, machine: Machine, tmp_path: Path
) -> None:
    hook = QuickHook(machine, tmp_path, name)
    config = [str(hook.bundle / "config.json")] if command == "prestart" else []
    memory = [str(machine.state), str(machine.state / "hook")] if command in ("prestart", "precreate") else []
    assert hook.opened(command) == [*memory, *config]


@pytest.mark.parametrize(("name", "command"), QUICK_CALLS)
def test_without_a_config_file_a_hook_that_asks_for_nothing_reads_its_config_json_alone(
    name: str, command: str, machine: Machine, tmp_path: Path
) -> None:
    if os.path.exists(state_dir.DEFAULT_CONFIG_PATH):
        skip_or_fail(f"a machine without a config file; {state_dir.DEFAULT_CONFIG_PATH} exists")
    hook = QuickHook(machine, tmp_path, name)
    hook.env = {"PATH": "/usr/bin:/bin"}
    config = [str(hook.bundle / "config.json")] if command == "prestart" else []
    assert hook.opened(command) == config
    assert hook.loaded(command) <= QUICK_HOOK


# Loaded by our hook for every container.
HOOK = {name for name in INJECTION if not name.startswith("gpu_oci_hook")} | modules(
    """
    cli hook.quick_answer hook.standard_streams
    hook.cdi_hook hook.arguments hook.called_container hook.loader_steps hook.link_steps
    plan.layout plan.loader_files
    container.image
    host.root
    files.directory files.path_walk files.read_regular files.replace files.rootfs files.state_dir
    formats.architectures formats.driver_version formats.fastjson formats.ldcache formats.oci formats.program_names
    errors
    """
)
_GPUS = "hook.device_steps host.gpus model.machine formats.proc plan.driver_params"
_REQUIREMENTS = "request.require_expressions"
_COMPAT = "plan.compat plan.compat_branches plan.libcuda_search model.libcuda_choice formats.ld_conf"
# In addition, for each step that a container or a CDI file asks for.
HOOK_STEPS = {
    "hide": "hook.device_steps formats.proc plan.driver_params",
    "profile": f"{_GPUS} host.device_nodes host.optional.graphics",
    "links": f"{_GPUS} host.device_nodes host.optional.graphics",
    "requirements": f"{_GPUS} {_REQUIREMENTS} inject.requirements config.keys host.model_tables model.request "
    "request.environment request.require_variables",
    "sockets": "hook.daemon_sockets files.mounts plan.driver_params formats.proc",
    "old compat": f"{_REQUIREMENTS} {_COMPAT}",
    "new compat": f"{_GPUS} {_REQUIREMENTS} {_COMPAT} host.model_tables",
}


class Hook:
    """A bundle with the edits of a CDI file of ours, and the hook."""

    def __init__(self, root: Path, host: Path, *env: str, compat: str = "") -> None:
        root.mkdir()
        self.dump = root / "modules"
        self.program = root / "gpu-oci-hook"
        text = HOOK_LAUNCHER.format(
            python=find_interpreter(), source=str(SOURCE), state=str(root / "state"), dump=str(self.dump)
        )
        self.program.write_text(text)
        self.program.chmod(0o755)
        self.bundle = make_bundle(root / "b", container_spec(*env))
        self.arguments = cdi_edits.build_hook_arguments(host)
        config = json.loads((self.bundle / "config.json").read_text())
        cdi_edits.add_devices(config, {"/dev/nvidia0": (195, 0)})
        cdi_edits.add_our_edits(config, host, self.program, self.arguments)
        (self.bundle / "config.json").write_text(json.dumps(config))
        cdi_edits.make_mount_points(self.bundle, config)
        if compat:
            (self.bundle / "rootfs/usr/local/cuda/compat").mkdir(parents=True)
            (self.bundle / f"rootfs/usr/local/cuda/compat/libcuda.so.{compat}").write_bytes(b"x")

    def loaded(self, *words: str) -> set[str]:
        done = cdi_edits.call_hook(self.program, list(words), json.dumps({"bundle": str(self.bundle)}))
        assert done.returncode == 0, done.stderr
        return set(self.dump.read_text().split("\n")) - BARE

    def load_steps(self) -> set[str]:
        return self.loaded("hook", "create-container", *self.arguments.to_command_line())


def test_the_hook_loads_its_allow_list_and_uses_all_of_it(machine: Machine, tmp_path: Path) -> None:
    found = Hook(tmp_path / "hook", machine.host, "NVIDIA_VISIBLE_DEVICES=void").load_steps()
    assert found <= HOOK
    assert {name for name in HOOK if name.startswith("gpu_oci_hook")} <= found
    assert not HOOK & FORBIDDEN


@pytest.mark.parametrize("what", HOOK_STEPS)
def test_the_hook_loads_for_each_step_what_that_needs(what: str, machine: Machine, tmp_path: Path) -> None:
    env = ["NVIDIA_REQUIRE_CUDA=cuda>=12.4"] if what == "requirements" else []
    compat = {"old compat": "525.60.13", "new compat": "999.1"}.get(what, "")
    hook = Hook(tmp_path / "hook", machine.host, *env, compat=compat)
    hook.arguments.hide_device_files = what == "hide"
    hook.arguments.egl_profile = what == "profile"
    hook.arguments.sockets = [("/of/no/daemon", "/run/socket")] if what == "sockets" else []
    hook.arguments.drm_links = what == "links"
    hook.arguments.requirements = True  # without a requirement this loads nothing
    found = hook.load_steps()
    if what == "new compat":
        found -= {
            "gpu_oci_hook.reporting",
            "gpu_oci_hook.reporting.failure",
            "time",
        }  # it is not for this GPU, which is said
    assert found - HOOK == modules(HOOK_STEPS[what]) - HOOK


@pytest.mark.parametrize("words", cdi_edits.list_nvidia_hooks(), ids=lambda words: words[0])
def test_each_of_nvidias_hooks_loads_no_forbidden_module(words: list[str], machine: Machine, tmp_path: Path) -> None:
    found = Hook(tmp_path / "hook", machine.host).loaded("hook", *words)
    assert not found & FORBIDDEN
    standard = {name for name in found - HOOK if not name.startswith("gpu_oci_hook.")}
    assert standard <= {"struct", "_struct"}


# --- the line in each module's docstring -----------------------------------------------------------------

# Modules of a budget that is not "cold" and that no test above loads, by what loads them.
RARE = {
    "pass-through": "runtime",  # launchers that earlier versions installed
    # management containers; [[inject.extra]]; images with CUDA forward-compatibility libraries
    "GPU container": "host.optional.management host.optional.user_files plan.compat plan.compat_branches",
    "hook": "files.mounts hook.nvidia_hooks",  # a root that crun has made read-only; files of NVIDIA's generator
}


def join_modules(*sets: set[str] | str) -> set[str]:
    """Join sets of modules and lists of names below our package."""
    return set().union(*(modules(names) if isinstance(names, str) else names for names in sets))


# Budget to its modules; a module that is in several has the first.
BUDGETS = {
    "pass-through": join_modules(CREATE, QUICK_HOOK, RARE["pass-through"]),
    "GPU container": join_modules(INJECTION, MIG, KEPT, *OPTIONAL.values(), RARE["GPU container"]),
    "CDI": CDI,
    "hook": join_modules(HOOK, *HOOK_STEPS.values(), RARE["hook"]),
}
# The budgets of modules that a module of each budget may import when it is loaded.
IMPORTABLE = {
    "pass-through": {"pass-through"},
    "GPU container": {"pass-through", "GPU container"},
    "CDI": {"pass-through", "GPU container", "CDI"},
    "hook": {"pass-through", "GPU container", "CDI", "hook"},
}
SOURCES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def find_budget(name: str) -> str:
    """The budget of a module by the allow-lists."""
    return next((budget for budget, names in BUDGETS.items() if name in names), "cold")


def list_loaded_imports(tree: ast.Module) -> set[str]:
    """The modules that a module imports when it is loaded: not in functions, and not for type checkers."""
    found = set()
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names = [f"{statement.module}.{alias.name}" for alias in statement.names]
            found |= {name if name in SOURCES else str(statement.module) for name in names}
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_each_module_names_its_import_budget_in_the_last_line_of_its_docstring(name: str) -> None:
    tree = ast.parse(SOURCES[name].read_text())
    text = ast.get_docstring(tree) or ""
    budgets = re.findall(r"^Import budget: (.*)\.$", text, re.MULTILINE)
    if SOURCES[name].name == "__init__.py" and len(tree.body) == 1 and not budgets:
        return  # a package without code belongs to every budget of its modules
    assert budgets == [find_budget(name)]
    assert text.endswith(f"Import budget: {budgets[0]}.")


@pytest.mark.parametrize("name", [name for name in SOURCES if find_budget(name) != "cold"])
def test_a_module_imports_only_modules_of_its_budget_when_it_is_loaded(name: str) -> None:
    imports = list_loaded_imports(ast.parse(SOURCES[name].read_text()))
    assert not imports & FORBIDDEN
    budgets = {other: find_budget(other) for other in imports if SOURCES.get(other, PACKAGE).name != "__init__.py"}
    dear = {other for other in budgets if other in SOURCES and budgets[other] not in IMPORTABLE[find_budget(name)]}
    assert not dear
