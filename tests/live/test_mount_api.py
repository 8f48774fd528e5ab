"""Bind mounts on held mount points, with the new mount calls and with mount(2) alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.bundles import skip_or_fail

pytestmark = pytest.mark.root

# Runs in a mount namespace of its own. Prints a JSON object.
SCRIPT = """
import errno, json, os, sys
from pathlib import Path
from gpu_oci_hook.live import mount_api

top, old_kernel = Path(sys.argv[1]), sys.argv[2] == "mount(2)"
if old_kernel:
    def refuse(*arguments):
        raise OSError(errno.ENOSYS, "no such call")
    mount_api._attach_clone = refuse
(top / "source").write_text("driver")
(top / "tree/below").mkdir(parents=True)
(top / "tree/file").write_text("tree")
root = top / "root"
root.mkdir()
for name in ("file", "other", "target"):
    (root / name).write_text("image")
(root / "directory").mkdir()
(root / "link").symlink_to(root / "target")
fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
options = ("ro", "nosuid", "nodev", "rbind", "rprivate")
mount_api.bind_mount(str(top / "source"), fd, "file", options)
mount_api.bind_mount(str(top / "tree"), fd, "directory", options)
errors = {}
cases = ("link", "source"), ("other", "tree"), ("directory", "source"), ("none", "source"), ("other", "gone")
for name, source in cases:
    try:
        mount_api.bind_mount(str(top / source), fd, name, options)
        errors[f"{source} on {name}"] = ""
    except OSError as error:
        errors[f"{source} on {name}"] = errno.errorcode[error.errno]
try:
    (root / "file").write_text("changed")
    written = True
except OSError as error:
    written = errno.errorcode[error.errno]
lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]
result = {
    "content": [(root / "file").read_text(), (root / "directory/file").read_text(), (root / "target").read_text()],
    "errors": errors, "written": written,
    "mounts": {os.path.basename(line[4]): sorted(line[5].split(",")) for line in lines},
    "propagation": sorted({word for line in lines for word in line[6 : line.index("-")]}),
}
mount_api.detach_mount(fd, "file")
result["after"] = (root / "file").read_text()
print(json.dumps(result))
"""


@pytest.mark.parametrize("kernel", ["new calls", "mount(2)"])
def test_files_and_directories_are_bound_with_their_options_and_links_are_not_followed(
    tmp_path_factory: pytest.TempPathFactory, kernel: str
) -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    top = tmp_path_factory.mktemp("mounts")
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", SCRIPT, str(top), kernel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["content"] == ["driver", "tree", "image"]
    assert result["written"] == "EROFS"
    assert result["after"] == "image"
    assert set(result["mounts"]) == {"file", "directory"}
    assert all({"ro", "nosuid", "nodev"} <= set(options) for options in result["mounts"].values())
    assert result["propagation"] == []
    errors = result["errors"]
    assert errors["source on link"] == "ELOOP"
    assert errors["source on none"] == errors["gone on other"] == "ENOENT"
    assert errors["tree on other"] in ("ENOTDIR", "EINVAL") and errors["source on directory"] in ("ENOTDIR", "EINVAL")
    assert str(top) not in Path("/proc/self/mountinfo").read_text()
