"""Print what the demo's container asks for and what is injected, in a few lines, from `explain -o json` on stdin."""

from __future__ import annotations

import json
import sys
from typing import Any


def summarize_edits(edits: list[dict[str, Any]]) -> list[str]:
    """Return one line for each kind of edit."""
    mounts = [edit["destination"] for edit in edits if edit["kind"] == "mount"]
    directories = {edit["destination"]: edit for edit in edits if edit["kind"] == "directory"}
    lines = [", ".join(edit["path"] for edit in edits if edit["kind"] == "device")]
    lines += [edit["text"] for edit in directories.values()]
    others = [path for path in mounts if path.rpartition("/")[0] not in directories and path not in directories]
    lines.append(f"{len(others)} programs and other files, such as {others[0]}" if others else "no programs")
    files = [edit["path"] for edit in edits if edit["kind"] == "file"]
    lines.append(f"what the loader reads: {', '.join(files)}")
    links = [edit["path"] for edit in edits if edit["kind"] == "link"]
    lines.append(f"{len(links)} links, such as {links[0]}" if links else "no links")
    return lines


def main() -> None:
    document = json.load(sys.stdin)
    print(f"it requests             {', '.join(device['origin'] for device in document['request']['devices'])}")
    for gpu in document["gpus"]:
        if gpu["given"]:
            print(f"                        GPU {gpu['index']}: {gpu['uuid']}, {gpu['model']}")
    print("gpu-oci-runtime injects")
    for line in summarize_edits(document["edits"]):
        print(f"  {line}")


if __name__ == "__main__":
    main()
