"""Ask an engine's own command about a container or an image, where no file that this process may read has the answer.

Import budget: cold.
"""

from __future__ import annotations

import json
import subprocess

from gpu_oci_hook.errors import Fault

_TIMEOUT = 10


def query_docker_container_id(name: str) -> str:
    """Return the id of docker's container with a name; "" if docker does not answer or has none."""
    return _run_query(["docker", "inspect", "--type", "container", "--format", "{{.Id}}", "--", name])


def query_podman_bundle(name: str) -> str:
    """Return the bundle of podman's container with a name; "" if podman does not answer or has none."""
    path = _run_query(["podman", "inspect", "--format", "{{.OCIConfigPath}}", "--", name])
    return path if path.startswith("/") else ""


def read_image_environment(name: str) -> tuple[str, ...]:
    """Return the variables that an image of docker or podman sets, as NAME=VALUE.

    Raises:
        Fault: neither has the image.
    """
    for engine in ("docker", "podman"):
        text = _run_query([engine, "image", "inspect", "--format", "{{json .Config.Env}}", "--", name])
        try:
            variables = json.loads(text) if text else None
        except (ValueError, RecursionError):
            continue
        if isinstance(variables, list):
            return tuple(entry for entry in variables if isinstance(entry, str) and not entry.startswith("="))
        if text == "null":
            return ()
    raise Fault(
        "neither docker nor podman has this image, or this user may not ask them",
        where=f"--image {name}",
        hint="Pull it first, or give its variables with --env NAME=VALUE",
    )


def _run_query(command: list[str]) -> str:
    """Return what an engine's command prints, without the line end; "" if it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
