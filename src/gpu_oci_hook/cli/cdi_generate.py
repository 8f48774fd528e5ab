"""`cdi generate` and `cdi refresh`: this machine as a CDI file, once or for as long as it runs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gpu_oci_hook import state
from gpu_oci_hook.cdi import options as choices
from gpu_oci_hook.cdi import origin, reading, versions
from gpu_oci_hook.cdi import output as files
from gpu_oci_hook.cdi import refresh as keeping
from gpu_oci_hook.cdi.recipe import Recipe, make
from gpu_oci_hook.cli import cdi_options, output
from gpu_oci_hook.cli.cdi_options import Chosen, declared, text
from gpu_oci_hook.cli.common import LAUNCHER, Silent, settings_for
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault, clipped, nearest, printable
from gpu_oci_hook.request.capabilities import KNOWN

INSTALLED = f"/usr/local/bin/{origin.PROGRAM}"
DIRECTORY = "/var/run/cdi"


@click.command()
@click.option("--output", "path", type=text, metavar="FILE", help="Write a file.  [default: -, standard output]")
@declared
@click.pass_context
def generate(context: click.Context, /, path: str | None, force: bool, **_: Any) -> None:
    """Write this machine's GPUs as a CDI file, which engines give to containers by themselves.

    The file has a device for each GPU and each MIG device, one for all of them and one for the driver without a GPU. It
    is of the lowest version of CDI that it needs; --target writes one for an older engine. It remembers its options:
    cdi refresh --output FILE writes it anew with them. What is there and neither ours nor of the same kind stays.
    """
    path = "" if path in (None, "-") else str(path)
    chosen = cdi_options.chosen(context)
    settings = _settings(chosen)
    recipe = _signed(_recipe(path, chosen), path, chosen)
    made = make(recipe, settings, Silent())
    for sentence in (*made.warnings, *([made.refused] if made.refused else [])):
        output.warning(sentence)
    if not path:
        output.document(made.data.decode())
        return
    if not force:
        _spare(path, made.spec["kind"])
    output.line(f"{files.write(path, made.data)} {path}: {made.summary()}")


@click.command()
@click.option("--output", "path", type=text, metavar="FILE", help=f"[default: {DIRECTORY}/VENDOR-CLASS.yaml]")
@click.option("--watch", is_flag=True, help="Stay, and look again and again; SIGTERM ends it.")
@click.option(
    "--interval",
    default=keeping.INTERVAL,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@declared
@click.pass_context
def refresh(context: click.Context, /, path: str | None, watch: bool, interval: float, force: bool, **_: Any) -> None:
    """Write the CDI file anew when the machine has changed; writes nothing when it has not.

    With --output FILE, a file of ours that is there is made with its own options again, but for those that are given
    here. Without a driver, or without a GPU, the file is removed if it is ours. Somebody else's file is never replaced.
    """
    if path == "-":
        raise click.BadParameter("a file is kept, and standard output is none", param_hint="'--output'")
    if not watch and context.get_parameter_source("interval") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval is for --watch, and there is none")
    chosen = cdi_options.chosen(context)
    given = {name for name in chosen if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    kept: Chosen = {}

    def look() -> keeping.Result:
        nonlocal kept
        warnings: list[str] = []
        if path:
            told, warning = cdi_options.kept(path, given)
            warnings += [warning] if warning else []
            kept = told or kept  # a watch removes the file with the driver, and writes it again as it was
        merged = {**chosen, **kept}
        settings = _settings(merged, say=False)
        recipe = _recipe(path or "", merged, say=not watch)
        place = path or f"{DIRECTORY}/{recipe.options.kind(settings).replace('/', '-')}.{recipe.form}"
        found = keeping.refresh(place, _signed(recipe, place, merged), settings, state.Memory(), force=force)
        options = " ".join(cdi_options.words(kept)) if found.done in ("wrote", "removed") else ""
        said = f"{found.text} ({options}, as before)" if options else found.text
        return replace(found, text=said, warnings=(*settings.warnings, *warnings, *found.warnings))

    if watch:
        keeping.watch(look, _log, interval=interval)
        return
    result = look()
    for sentence in result.warnings:
        output.warning(sentence)
    if result.refused and result.done == "wrote":  # a timer looks every minute, and once it is written it was said
        output.warning(result.refused)
    output.line(result.text)


def _log(text: str) -> None:
    """A line for whoever reads the watch's log; without a reader the watch goes on."""
    try:
        click.echo(printable(text), err=True)
    except OSError:
        pass


def _settings(chosen: Chosen, *, say: bool = True) -> Config:
    return settings_for(chosen["config_path"], chosen["root"], chosen["driver_root"], say=say)


def _signed(recipe: Recipe, path: str, chosen: Chosen) -> Recipe:
    """The recipe of a file that names the command which writes it anew; without a file, which prints it."""
    verb = ["refresh", "--output", os.path.abspath(path)] if path else ["generate"]
    return replace(recipe, options=replace(recipe.options, command=origin.command([*verb, *cdi_options.words(chosen)])))


def _spare(path: str, kind: str) -> None:
    """Keeps `generate` from replacing what somebody else needs.

    Raises:
        Fault: what is there is neither ours nor a CDI file of this kind.
    """
    owner = files.whose(path)
    cure = "Choose another --output, or replace it with --force"
    if owner == "other":
        raise Fault("what is there is no CDI file and stays as it is", where=path, cure=cure)
    if owner == "cdi":
        data = reading.read(path).data
        theirs = data.get("kind") if isinstance(data, dict) else None
        if theirs != kind:
            what = f"a CDI file for {clipped(theirs)}" if isinstance(theirs, str) else "a CDI file that cannot be read"
            raise Fault(f"{what} is there and stays as it is", where=path, cure=cure)


def _recipe(path: str, chosen: Chosen, *, say: bool = True) -> Recipe:
    """The options as a recipe; says what is odd about them.

    Raises:
        Fault: an option that cannot be.
    """
    form, warning = files.form_of(path, chosen["form"])
    target, maximum = chosen["target"], chosen["maximum"]
    if target and maximum:
        raise Fault("--target and --max-version say the same thing", cure="Leave one of them out")
    if target:
        maximum = versions.greatest(target)
    elif maximum:
        maximum = versions.known(maximum, "--max-version")
    hook, absent = _hook(chosen["hook"], none=chosen["no_hook"])
    nowhere = _hook_log(chosen["hook_log"], hook)
    if say:
        for sentence in (warning, absent, nowhere):
            if sentence:
                output.warning(sentence)
    words = tuple(word for given in chosen["devices"] for word in given.replace(",", " ").split())
    if chosen["mode"] != choices.GPU and (words or chosen["ways"]):
        raise Fault(f"--device and --name choose among GPUs, and --mode {chosen['mode']} has none")
    made = choices.Options(
        mode=chosen["mode"],
        words=words or (choices.ALL, choices.NONE),
        names=_checked(chosen["ways"], choices.NAMES, "--name", "way to name devices") or ("index", "uuid"),
        capabilities=_checked(
            tuple(chosen["capabilities"].replace(",", " ").split()), (*KNOWN, "all"), "--capabilities", "capability"
        ),
        vendor=chosen["vendor"],
        category=chosen["category"],
        hook=hook,
        hook_log=chosen["hook_log"],
        allow_incomplete=chosen["allow_incomplete"],
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
    if os.path.isdir(path):
        what, cure = "is a directory", "name the program"
    elif os.access(path, os.X_OK):
        return path, ""
    elif os.path.exists(path):
        what, cure = "is not executable", f"chmod 755 {path}"
    else:
        what = "is not there"
        cure = "write it before a container" if wanted else "run gpu-oci-hook install, or name another one with --hook"
    return path, f"the hook's program {path} {what}, and no container would start with it: {cure}"


def _hook_log(path: str, hook: str) -> str:
    """A warning about the hook's log, "" for none.

    Raises:
        Fault: it is not named by an absolute path, or there is no hook.
    """
    if not path:
        return ""
    if not hook:
        raise Fault("--hook-log and --no-hook exclude each other", cure="Leave one of them out")
    if not path.startswith("/"):
        raise Fault(f'"{clipped(path)}" is no absolute path, and a hook needs one', where="--hook-log")
    directory = os.path.dirname(path)
    return "" if os.path.isdir(directory) else f"--hook-log {path}: there is no directory {directory}, and no log then"


def _launchers() -> list[str]:
    """Where `install` may have written our launcher: beside the running one, and where it writes by default."""
    return [os.path.abspath(sys.argv[0]), INSTALLED, f"/usr/bin/{origin.PROGRAM}"]


def _is_launcher(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return os.path.basename(path) == origin.PROGRAM and LAUNCHER in file.read(1024)
    except OSError:
        return False
