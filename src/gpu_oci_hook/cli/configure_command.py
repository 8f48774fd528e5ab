"""`gpu-oci-hook configure`: set up container engines, check that, or take it back.

Import budget: cold.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import click

from gpu_oci_hook.cli.common_options import quiet_option
from gpu_oci_hook.cli.file_diff import print_file_diff
from gpu_oci_hook.cli.printing import print_line, print_progress, print_warning
from gpu_oci_hook.cli.runtime_launcher import find_runtime_launcher, is_usable_launcher
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.engines.all_engines import ENGINE_NAMES, load_engine
from gpu_oci_hook.engines.engine import Engine
from gpu_oci_hook.engines.engine_change import (
    EngineChange,
    EngineFile,
    carry_out,
    choose_wanted_runtime,
    find_setup_state,
    plan_setup,
    plan_undo,
    read_engine_file,
)
from gpu_oci_hook.engines.wanted import check_runtime_name
from gpu_oci_hook.errors import Fault, clip_text, find_close_match

EXIT_NOT_SET_UP, EXIT_DRIFTED = 3, 4
_RESTART_TIME_LIMIT = 120.0


@dataclass(frozen=True)
class _Options:
    name: str
    default: bool | None
    runtime: str


@click.command()
@click.argument("names", metavar="[ENGINE]...", nargs=-1)
@click.option("--name", metavar="NAME", default="", help="Name of the runtime in the engine.  [default: gpu-oci]")
@click.option(
    "--set-default/--no-set-default",
    "default",
    default=None,
    help="Make it the runtime of containers that name none; they start as before unless they request a GPU.",
)
@click.option("--dry-run", is_flag=True, help="Print the change as a diff and make none.")
@click.option("--check", is_flag=True, help="Exit with status 0 if set up, 3 if not, 4 if the file has drifted.")
@click.option("--undo", is_flag=True, help="Take back what configure has changed.")
@click.option(
    "--restart", is_flag=True, help="Run the command after which the engine uses the file, and ask the engine."
)
@click.option("--file", "path", metavar="FILE", default="", help="Another configuration file of the engine.")
@click.option("--runtime", metavar="FILE", default="", help="Another launcher than the installed gpu-oci-runtime.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before several engines are changed.")
@quiet_option
def configure(
    names: tuple[str, ...],
    name: str,
    default: bool | None,
    dry_run: bool,
    check: bool,
    undo: bool,
    restart: bool,
    path: str,
    runtime: str,
    yes: bool,
) -> None:
    """Add gpu-oci-runtime to the configuration of container engines.

    ENGINE is docker or containerd. Without one, all installed engines are set up, after showing the changes and asking.

    Only our entries are written; everything else in the file stays as it is. The engine checks the new file before
    it replaces the old one. Running it again changes nothing.
    """
    _check_options(names, name, path, runtime, check=check, undo=undo, dry_run=dry_run, restart=restart)
    engines = [load_engine(engine) for engine in dict.fromkeys(names)] or _list_installed_engines()
    options = _Options(name, default, runtime)
    files = [(engine, read_engine_file(engine, _find_path(engine, path))) for engine in engines]
    if check:
        status = max(_print_state(engine, file, options) for engine, file in files)
        if status:
            sys.exit(status)
        return
    changes = [(engine, _plan(engine, file, options, undo=undo)) for engine, file in files]
    if dry_run or (not names and not undo and not yes):
        for _, change in changes:
            print_file_diff(change.file.path, change.file.content, change.content)
    if dry_run:
        return
    if not names and not undo and not yes and any(change.changes_file for _, change in changes):
        _ask_user()
    for engine, change in changes:
        _make_change(engine, change, undo=undo, restart=restart)


def _check_options(
    names: tuple[str, ...],
    name: str,
    path: str,
    runtime: str,
    *,
    check: bool,
    undo: bool,
    dry_run: bool,
    restart: bool,
) -> None:
    for engine in names:
        if engine not in ENGINE_NAMES:
            close = find_close_match(engine, ENGINE_NAMES)
            hint = f"Did you mean {close}?" if close else f"Known engines: {', '.join(ENGINE_NAMES)}"
            raise UsageFault(f'unknown engine "{clip_text(engine)}"', hint=hint)
    if check and (undo or dry_run or restart):
        raise UsageFault("--check changes nothing and goes with none of --undo, --dry-run and --restart")
    if dry_run and restart:
        raise UsageFault("--dry-run changes nothing, so there is nothing to restart for")
    if undo and (name or runtime):
        raise UsageFault("--undo takes back what was set up, whatever its name; leave out --name and --runtime")
    if path and len(set(names)) != 1:
        raise UsageFault("--file belongs to one engine", hint="Name the engine")
    if name:
        try:
            check_runtime_name(name)
        except Fault as fault:
            raise UsageFault(fault.what, where=fault.where, hint=fault.hint) from None


def _list_installed_engines() -> list[Engine]:
    engines = [engine for engine in map(load_engine, ENGINE_NAMES) if engine.is_installed()]
    if not engines:
        raise Fault(
            f"none of these engines is installed: {', '.join(ENGINE_NAMES)}",
            hint="Name the engine whose file is to be written",
        )
    return engines


def _find_path(engine: Engine, path: str) -> str:
    return os.path.abspath(path) if path else engine.find_config_path()


def _plan(engine: Engine, file: EngineFile, options: _Options, *, undo: bool) -> EngineChange:
    if undo:
        return plan_undo(engine, file)
    name = choose_wanted_runtime(file, options.name, "", options.default).name
    program = find_runtime_launcher(options.runtime, name)
    return plan_setup(engine, file, choose_wanted_runtime(file, options.name, program, options.default))


def _print_state(engine: Engine, file: EngineFile, options: _Options) -> int:
    """Print the state of an engine's file. Return the exit status."""
    added = file.record.added if file.record is not None else None
    try:
        name = choose_wanted_runtime(file, options.name, "", options.default).name
        program = find_runtime_launcher(options.runtime, name)
    except Fault:
        if added is None:
            raise
        program = added.program
    wanted = choose_wanted_runtime(file, options.name, program, options.default)
    state = find_setup_state(engine, file, wanted)
    if state == "set up" and not is_usable_launcher(wanted.program):
        print_warning(f"{wanted.program} is missing or not a launcher of gpu-oci-hook; run gpu-oci-hook install")
        state = "drifted"
    print_line(f"{engine.name}: {state} ({file.path})")
    return {"set up": 0, "not set up": EXIT_NOT_SET_UP, "drifted": EXIT_DRIFTED}[state]


def _ask_user() -> None:
    if not sys.stdin.isatty():
        raise Fault("nothing was changed: there is no terminal to ask on", hint="Name the engines, or add --yes")
    click.confirm("Change these files?", abort=True)


def _make_change(engine: Engine, change: EngineChange, *, undo: bool, restart: bool) -> None:
    file = change.file
    judged = carry_out(engine, change)
    if not change.changes_file:
        state = "nothing of ours is in" if undo else "set up already:"
        print_progress(f"{engine.name}: {state} {file.path}")
        if not restart:
            return
    else:
        action = "removed" if change.content is None else "restored" if undo else "wrote"
        print_progress(f"{engine.name}: {action} {file.path}{f' ({judged})' if judged else ''}", colour="green")
    command = engine.find_apply_command(undo=undo)
    if not restart:
        print_progress(f"next: {' '.join(command.words)}. {command.note}.")
        return
    _run_apply_command(command.words)
    if change.added is None:
        return
    known = engine.knows_runtime(change.added.name)
    if known is False:
        raise Fault(
            f"{engine.name} runs without the runtime {change.added.name}",
            where=file.path,
            hint=f"See why in its log: journalctl -u {engine.name}",
        )
    if known is None:
        print_warning(f"{engine.name} was restarted, but does not say which runtimes it has")
    else:
        print_progress(f"{engine.name}: knows the runtime {change.added.name}", colour="green")


def _run_apply_command(words: tuple[str, ...]) -> None:
    command = " ".join(words)
    print_progress(command)
    try:
        run = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_RESTART_TIME_LIMIT, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        hint = "Restart the engine as this machine does it"
        raise Fault("the file is written, but there is no systemctl here", where=command, hint=hint) from None
    except subprocess.TimeoutExpired:
        raise Fault(f"the file is written, but this took over {_RESTART_TIME_LIMIT:g} s", where=command) from None
    if run.returncode:
        reason = run.stderr.strip().partition("\n")[0] or f"exit status {run.returncode}"
        raise Fault(f"the file is written, but the engine does not use it yet: {reason}", where=command)
