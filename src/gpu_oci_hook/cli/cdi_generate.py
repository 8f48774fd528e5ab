"""`cdi generate` and `cdi refresh`: this machine as a CDI file, once or for as long as it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpu_oci_hook import state
from gpu_oci_hook.cdi import options as choices
from gpu_oci_hook.cdi import output as files
from gpu_oci_hook.cdi import refresh as keeping
from gpu_oci_hook.cdi import versions
from gpu_oci_hook.cdi.recipe import Recipe, make
from gpu_oci_hook.cli import output
from gpu_oci_hook.cli.app import config_file, host_roots
from gpu_oci_hook.cli.common import LAUNCHER, Silent, settings_for
from gpu_oci_hook.errors import Fault, clipped, nearest, printable
from gpu_oci_hook.request.capabilities import KNOWN

PROGRAM = "gpu-oci-hook"
INSTALLED = f"/usr/local/bin/{PROGRAM}"
DIRECTORY = "/var/run/cdi"

_OPTIONS = (
    click.option(
        "--mode",
        type=click.Choice(choices.MODES),
        default=choices.GPU,
        show_default=True,
        help="What the devices are: GPUs and their MIG devices; every node, for containers that manage the driver; "
        "or what comes beside GPUs, as its own class.",
    ),
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="WORD",
        help="Only these, by the words of NVIDIA_VISIBLE_DEVICES; may be repeated.  [default: all none]",
    ),
    click.option(
        "--name",
        "ways",
        multiple=True,
        metavar="WAY",
        help="How devices are called: index (0, 0:1), uuid, type-index (gpu0, mig0:1); may be repeated, and each is "
        "then written once more.  [default: index uuid]",
    ),
    click.option(
        "--capabilities", default="", metavar="LIST", help="Driver capabilities.  [default: all that are supported]"
    ),
    click.option("--vendor", default="", metavar="NAME", help="The kind's first half.  [default: nvidia.com]"),
    click.option("--class", "category", default="", metavar="NAME", help="Second half.  [default: gpu or the mode]"),
    click.option(
        "--target", default="", metavar="ENGINE-VERSION", help="Leave out what this engine cannot read: podman-4.3."
    ),
    click.option("--max-version", "maximum", default="", metavar="VERSION", help="The same by CDI's version: 0.5.0."),
    click.option("--format", "form", type=click.Choice(files.FORMS), help="[default: by the file's suffix, else yaml]"),
    click.option(
        "--hook",
        "hook",
        default="",
        metavar="FILE",
        help=f"Absolute path of the program for the hook.  [default: the installed {PROGRAM}]",
    ),
    click.option("--no-hook", is_flag=True, help="No hook: links become mounts, and the image's loader is left alone."),
    click.option(
        "--allow-incomplete", is_flag=True, help="Write a file without required nodes that are missing, and mark it."
    ),
    click.option("--force", is_flag=True, help="Replace a file that is not ours."),
    config_file,
    host_roots,
)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--output", "path", default="", metavar="FILE", help="Write a file.  [default: to standard output]")
@_options
def generate(path: str, force: bool, config_path: str, root: str, driver_root: str, **options: Any) -> None:
    """Write this machine's GPUs as a CDI file, which engines give to containers by themselves.

    The file has a device for each GPU and each MIG device, one for all of them and one for the driver without a GPU. It
    is of the lowest version of CDI that it needs. A file that is there and is no CDI file is not replaced.
    """
    settings = settings_for(config_path, root, driver_root)
    recipe = _recipe(path, options)
    made = make(recipe, settings, Silent())
    for sentence in made.warnings:
        output.warning(sentence)
    if not path:
        output.document(made.data.decode())
        return
    if not force and files.whose(path) == "other":
        raise Fault("what is there is no CDI file and stays as it is", where=path, cure="Replace it with --force")
    done = files.write(path, made.data)
    readers = ", ".join(versions.readers(made.spec["cdiVersion"]))
    output.line(f"{done} {path}: {made.summary()}, which {readers} and later read")


@click.command()
@click.option("--output", "path", default="", metavar="FILE", help=f"[default: {DIRECTORY}/VENDOR-CLASS.yaml]")
@click.option("--watch", is_flag=True, help="Stay, and look again and again; SIGTERM ends it.")
@click.option(
    "--interval",
    default=keeping.INTERVAL,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@_options
def refresh(
    path: str, watch: bool, interval: float, force: bool, config_path: str, root: str, driver_root: str, **options: Any
) -> None:
    """Write the CDI file anew when the machine has changed; writes nothing when it has not.

    Without a driver, or without a GPU, the file is removed if it is ours. Somebody else's file is never replaced.
    """

    def look(place: str = path) -> keeping.Result:
        settings = settings_for(config_path, root, driver_root, say=False)
        recipe = _recipe(place, options, say=not watch)
        place = place or f"{DIRECTORY}/{recipe.options.kind(settings).replace('/', '-')}.{recipe.form}"
        found = keeping.refresh(place, recipe, settings, state.Memory(), force=force)
        return replace(found, warnings=(*settings.warnings, *found.warnings))

    if watch:
        keeping.watch(look, _log, interval=interval)
        return
    result = look()
    for sentence in result.warnings:
        output.warning(sentence)
    output.line(result.text)


def _log(text: str) -> None:
    """A line for whoever reads the watch's log; without a reader the watch goes on."""
    try:
        click.echo(printable(text), err=True)
    except OSError:
        pass


def _recipe(path: str, options: dict[str, Any], *, say: bool = True) -> Recipe:
    """The options as a recipe; says what is odd about them.

    Raises:
        Fault: an option that cannot be.
    """
    form, warning = files.form_of(path, options["form"] or "")
    target, maximum = options["target"], options["maximum"]
    if target and maximum:
        raise Fault("--target and --max-version say the same thing", cure="Leave one of them out")
    if target:
        maximum = versions.greatest(target)
    elif maximum:
        maximum = maximum.removeprefix("v")
        if maximum not in versions.KNOWN:
            cure = f"Known are {', '.join(versions.KNOWN)}"
            raise Fault(f'"{clipped(options["maximum"])}" is no version of CDI', where="--max-version", cure=cure)
    hook, absent = _hook(options["hook"], none=options["no_hook"])
    if say:
        for sentence in (warning, absent):
            if sentence:
                output.warning(sentence)
    words = tuple(word for given in options["devices"] for word in given.replace(",", " ").split())
    if options["mode"] != choices.GPU and (words or options["ways"]):
        raise Fault(f"--device and --name choose among GPUs, and --mode {options['mode']} has none")
    made = choices.Options(
        mode=options["mode"],
        words=words or (choices.ALL, choices.NONE),
        names=_checked(options["ways"], choices.NAMES, "--name", "way to name devices") or ("index", "uuid"),
        capabilities=_checked(
            tuple(options["capabilities"].replace(",", " ").split()), (*KNOWN, "all"), "--capabilities", "capability"
        ),
        vendor=options["vendor"],
        category=options["category"],
        hook=hook,
        allow_incomplete=options["allow_incomplete"],
    )
    return Recipe(made, form=form, maximum=maximum, reader=target)


def _checked(words: tuple[str, ...], valid: tuple[str, ...], where: str, what: str) -> tuple[str, ...]:
    words = tuple(word for given in words for word in given.replace(",", " ").split())
    for word in words:
        if word not in valid:
            near = nearest(word[:100], valid)
            hint = f'. Did you mean "{near}"?' if near else ""
            raise Fault(f'"{word}" is no {what}', where=where, cure=f"Valid are {', '.join(valid)}{hint}")
    return words


def _hook(wanted: str, *, none: bool) -> tuple[str, str]:
    """The hook's program and a warning, each "" for none.

    Raises:
        Fault: it is not named by an absolute path.
    """
    if none:
        if wanted:
            raise Fault("--hook and --no-hook exclude each other", cure="Leave one of them out")
        return "", ""
    if wanted and not wanted.startswith("/"):
        raise Fault(f'"{wanted}" is no absolute path, and engines look for hooks nowhere else', where="--hook")
    path = wanted or next((place for place in _launchers() if _is_launcher(place)), INSTALLED)
    if os.access(path, os.X_OK) and not os.path.isdir(path):
        return path, ""
    cure = "run gpu-oci-hook install, or name another one with --hook" if not wanted else "write it before a container"
    return path, f"the hook's program {path} is not there, and no container would start with it: {cure}"


def _launchers() -> list[str]:
    """Where `install` may have written our launcher: beside the running one, and where it writes by default."""
    return [os.path.abspath(sys.argv[0]), INSTALLED, f"/usr/bin/{PROGRAM}"]


def _is_launcher(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return os.path.basename(path) == PROGRAM and LAUNCHER in file.read(1024)
    except OSError:
        return False
