"""The administrator's log: whole JSON lines, by level, and never a reason to fail."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.reporting import log
from gpu_oci_hook.simulate import host_tree
from support.bundles import Shim, container_spec, host_config, inject_in_process, make_bundle, skip_or_fail
from support.fixtures import SharedHost

pytestmark = pytest.mark.usefixtures("isolated_state")

GPU0 = "NVIDIA_VISIBLE_DEVICES=0"


@pytest.fixture(scope="module")
def host(shared_host: SharedHost) -> Path:
    return shared_host(gpus=2)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_start_is_one_line_with_what_it_got(tmp_path: Path, host: Path) -> None:
    path = tmp_path / "log"
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    inject_in_process(made, host_config(host, log_file=str(path)))
    (line,) = lines(path)
    assert line["event"] == "injected"
    assert line["level"] == "info"
    assert line["bundle"] == str(made)
    assert len(line["gpus"]) == 1
    assert line["capabilities"] == ["compute", "utility"]
    assert line["edits"] > 10
    assert line["withheld"] > 10
    assert line["timestamp"].endswith("Z")
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_lines_name_the_container_and_the_bundle_from_wherever_the_engine_calls(tmp_path: Path, host: Path) -> None:
    shim = Shim(tmp_path / "shim", host, f'log-file = "{tmp_path}/log"\n')
    made = make_bundle(tmp_path / "bundle", container_spec(GPU0))
    for env in (GPU0, "NVIDIA_VISIBLE_DEVICES=9"):
        (made / "config.json").write_text(json.dumps(container_spec(env)))
        subprocess.run([shim.path, "create", "web-1"], env=shim.env, cwd=made, capture_output=True, timeout=60)
    events = [(line["event"], line["container"], line["bundle"]) for line in lines(tmp_path / "log")]
    assert events == [("injected", "web-1", str(made)), ("refused", "web-1", str(made))]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["0", "1"], "is set twice: process.env[2] (1) wins over process.env[1] (0); "),
        (["0", "void"], "is set twice: process.env[2] (void) wins over process.env[1] (0); "),
        (["0", "1", "1"], "is set 3 times: process.env[3] (1) wins over process.env[1] (0), process.env[2] (1); "),
    ],
)
def test_every_device_request_of_an_engine_is_named_in_the_log(
    values: list[str], said: str, tmp_path: Path, host: Path
) -> None:
    """docker writes the variable once for each device request, and the last entry counts."""
    path = tmp_path / "log"
    made = make_bundle(tmp_path / "bundle", container_spec(*(f"NVIDIA_VISIBLE_DEVICES={value}" for value in values)))
    inject_in_process(made, host_config(host, log_file=str(path)))
    (warning,) = [line["text"] for line in lines(path) if line["level"] == "warning"]
    assert warning == f"NVIDIA_VISIBLE_DEVICES {said}name all devices in one request"


def test_a_refusal_has_its_sentence(tmp_path: Path, host: Path) -> None:
    path = tmp_path / "log"
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=9"))
    with pytest.raises(Fault) as caught:
        inject_in_process(made, host_config(host, log_file=str(path)))
    (line,) = lines(path)
    assert (line["event"], line["level"], line["reason"]) == ("refused", "error", str(caught.value))


def test_who_may_not_ask_is_one_warning(tmp_path: Path, host: Path) -> None:
    path = tmp_path / "log"
    inject_in_process(
        make_bundle(tmp_path / "bundle", container_spec(GPU0)), host_config(host, log_file=str(path), env="never")
    )
    warnings = [line for line in lines(path) if line["level"] == "warning"]
    assert len(warnings) == 1
    assert "starts without a GPU" in warnings[0]["text"]
    assert lines(path)[-1]["event"] == "nothing"


@pytest.mark.parametrize(
    ("level", "events"),
    [("error", set()), ("warning", {"warning"}), ("info", {"warning", "injected"}),
     ("debug", {"warning", "injected", "changed"})],
)  # fmt: skip
def test_the_level_decides(level: str, events: set[str], tmp_path: Path, host: Path) -> None:
    path = tmp_path / "log"
    made = make_bundle(tmp_path / "bundle", container_spec("NVIDIA_VISIBLE_DEVICES=all", GPU0))
    inject_in_process(made, host_config(host, log_file=str(path), log_level=level))
    assert {line["event"] for line in lines(path)} == events


def test_names_from_an_image_cannot_break_a_line(tmp_path: Path, host: Path) -> None:
    path = tmp_path / "log"
    odd = "a\nb\x1b[31m\ud800"
    made = make_bundle(tmp_path / "bundle", container_spec(f"NVIDIA_VISIBLE_DEVICES={odd}"))
    with pytest.raises(Fault):
        inject_in_process(made, host_config(host, log_file=str(path)))
    (line,) = lines(path)
    assert "a\\nb\\x1b[31m" in line["reason"]


def test_lines_of_many_starts_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def write(number: int) -> None:
        one = log.open_start_log(Config(log_file=str(path)))
        assert isinstance(one, log.StartLog)
        for _ in range(20):
            one.log_failure("/bundle", Fault(f"{number} " * 500))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(path)) == 320


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def directory(path: Path) -> None:
    path.mkdir()


def disk(path: Path) -> None:
    if os.geteuid() != 0:
        skip_or_fail("only root can make device nodes")
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0))  # opened where the kernel has the loop driver


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "it is a FIFO, and its lines are lost while nothing reads it"),
        (link, "it is a symbolic link, which is not followed"),
        (directory, "it is a directory"),
        (disk, "it is a block device"),
    ],
)
@pytest.mark.parametrize("engine", [False, True], ids=["by hand", "by an engine"])
def test_a_log_that_cannot_be_opened_never_stops_a_start(
    make: Any, reason: str, engine: bool, tmp_path: Path, host: Path
) -> None:
    """One warning for who calls by hand; an engine's stderr is the container's own, which stays clean."""
    path = tmp_path / "forbidden.log"
    make(path)
    before = path.lstat()
    shim = Shim(tmp_path / "shim", host, f'log-file = "{path}"\n')
    words = ["--log", str(tmp_path / "engine.log"), "--log-format", "json"] if engine else []
    done = shim.create(make_bundle(tmp_path / "bundle", container_spec(GPU0)), *words)
    assert (done.returncode, done.stdout) == (0, "")
    if engine:
        assert done.stderr == ""
        assert not (tmp_path / "engine.log").exists()
    else:
        assert done.stderr == f"gpu-oci-runtime: warning: {path}: the log cannot be written: {reason}\n"
    assert "/dev/nvidia1" in json.dumps(shim.spec())
    assert path.lstat() == before


def test_a_fifo_with_a_reader_gets_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    fifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        opened = log.open_start_log(Config(log_file=str(path)))
        assert isinstance(opened, log.StartLog)
        opened.log_failure("/bundle", Fault("no"))
        assert json.loads(os.read(reader, 4096))["reason"] == "no"
    finally:
        os.close(reader)


def test_a_log_of_another_user_never_stops_a_start(tmp_path: Path, host: Path) -> None:
    """The very case: uid 1000 and a log below /root."""
    if os.geteuid() != 0:
        skip_or_fail("only root can become another user")
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    path = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    place = Path(path)
    try:
        place.chmod(0o755)
        host_tree.build_host(place / "host")
        shim = Shim(place / "shim", place / "host", f'log-file = "{secret}/forbidden.log"\n')
        made = make_bundle(place / "bundle", container_spec(GPU0))
        for where, names, files in os.walk(place):
            for name in (".", *names, *files):
                os.chown(os.path.join(where, name), 1000, 1000, follow_symlinks=False)
        done = shim.create(made, user=1000, group=1000, extra_groups=[])
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("\n") == 1
        assert "forbidden.log: the log cannot be written: this user may not" in done.stderr
        assert "/dev/nvidia0" in json.dumps(shim.spec())
    finally:
        subprocess.run(["rm", "-rf", path], check=True)


def test_a_full_disk_stops_no_container(tmp_path: Path, host: Path) -> None:
    inject_in_process(make_bundle(tmp_path / "bundle", container_spec(GPU0)), host_config(host, log_file="/dev/full"))


def test_no_log_no_structlog(tmp_path: Path, host: Path) -> None:
    """The library costs more than the whole start."""
    code = (
        "import sys; from support.bundles import host_config, inject_in_process; from pathlib import Path; "
        "from gpu_oci_hook.files import state_dir;"
        f"state_dir.DIRECTORY={str(tmp_path / 's')!r};"
        f"inject_in_process(Path({str(tmp_path / 'b')!r}), host_config({str(host)!r}));"
        "print('structlog' in sys.modules)"
    )
    make_bundle(tmp_path / "b", container_spec(GPU0))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_an_image_with_much_to_say_does_not_fill_the_disk(tmp_path: Path, host: Path) -> None:
    path = tmp_path / "log"
    env = [f"NVIDIA_VISIBLE_DEVICES={'x' * 9000}{number}" for number in range(100)]
    env += [f"NVIDIA_REQUIRE_{number}={'a=1 ' * 1000}" for number in range(200)]
    inject_in_process(
        make_bundle(tmp_path / "bundle", container_spec(*env, GPU0)), host_config(host, log_file=str(path))
    )
    assert path.stat().st_size < 50_000
    texts = [line["text"] for line in lines(path) if line["event"] == "warning"]
    assert texts[-1] == "and 151 more warnings"
