"""`mendgraph runs`, `undo`, `fork`, `report`, `replay`, `memory`, `cassette`: commands that do not continue a run."""

import os.path
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mendgraph.graph.runs.run_words import command_line, resume_command
from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.options import options_without_a_task
from mendgraph.graph.terminal.output import LONGEST_LINE, Line, answer, terminal_width
from mendgraph.graph.terminal.process_end import (
    ExitCode,
    RefusedError,
    Signals,
    by_whom,
    refusal_words,
    unwrap,
    write_file,
)
from mendgraph.nodes.language.display import count_of, one_line, short_id
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.configuration.memory import Note
    from mendgraph.graph.fleet.replay import Replay
    from mendgraph.graph.runs.runs import ListedRun
    from mendgraph.nodes.workspace.journal.restoring import Restored


app = opt.CommandGroup(help="List the runs of this folder; `show` or `prune` them.", invoke_without_command=True)
memories = opt.CommandGroup(help="List the notes of runs in this folder; `forget` them.", invoke_without_command=True)
cassettes = opt.CommandGroup(help="Turn a run into a test: `from-run`.")

NOTHING_TO_UNDO = "nothing to undo: the run changed no file, or all of its changes were taken back"

_NO_RUNS = "This folder has no runs yet."


@app.callback()
def runs(context: typer.Context) -> int:
    """List the runs of this folder, the one that worked last first; unattended ones with their branch."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED

    from mendgraph.graph.terminal.outcome_lines import run_lines, run_object

    chosen = options_without_a_task(context)
    records, branches = _all_runs(str(chosen.root))
    lines = run_lines(records, terminal_width(), datetime.now(UTC), branches=branches)
    values = [{**run_object(record), "branch": branches.get(record.run_id, "")} for record in records]

    return answer(values, lines, as_json=chosen.as_json)


def _all_runs(root: str) -> "tuple[list[ListedRun], dict[str, str]]":
    """Return the runs of a folder, also unattended ones, the newest first, and the branches of those by run."""
    from mendgraph.graph.fleet.unattended import list_unattended
    from mendgraph.graph.runs.runs import list_runs

    records = [*unwrap(list_runs(root))]
    branches = {}
    for unattended in list_unattended(root):
        records.append(unattended.record)
        branches[unattended.record.run_id] = unattended.branch

    records.sort(key=lambda record: record.updated, reverse=True)
    return records, branches


def find_folder(run: str, root: str, *, needs_files: bool = True) -> str:
    """Return the folder of a run: `root`, or the worktree of an unattended run that was started in it.

    Raises RefusedError: `needs_files`, and the worktree was removed; or no run is named, and all runs are unattended.
    """
    from mendgraph.graph.fleet.unattended import list_unattended
    from mendgraph.graph.machine.run_records import find_run
    from mendgraph.graph.runs.runs import list_runs

    own = list_runs(root)
    if isinstance(own, ToolError) or (own and not run) or not isinstance(find_run(run, own), ToolError):
        return root

    by_id = {unattended.record.run_id: unattended for unattended in list_unattended(root)}
    if by_id and not run:
        message = "No run has worked in this folder itself: name an unattended one, as `mendgraph runs` lists them."
        raise RefusedError(ExitCode.USAGE_ERROR, message)

    record = find_run(run, [unattended.record for unattended in by_id.values()])
    if isinstance(record, ToolError):
        return root  # the command reports it

    unattended = by_id[record.run_id]
    missing = unattended.missing_files()
    if missing is not None and needs_files:
        unwrap(missing)

    return unattended.worktree.root


def run_to_read(run: str, chosen: opt.Options) -> str:
    """Return the run that is named, or the newest one, also of unattended runs."""
    if run:
        return run

    records, _ = _all_runs(str(chosen.root))
    if not records:
        raise RefusedError(ExitCode.USAGE_ERROR, _NO_RUNS)

    return records[0].run_id


def run_to_resume(run: str, chosen: opt.Options) -> str:
    """Return the run that is named, or the newest one that can continue, also an unattended one; "" without any."""
    if run:
        return run

    records, _ = _all_runs(str(chosen.root))
    return next((record.run_id for record in records if record.resumable), "")


def run_or_newest(run: str, chosen: opt.Options) -> str:
    """Return the run that is named, or the newest one that worked in the folder itself."""
    if run:
        return run

    from mendgraph.graph.runs.runs import list_runs

    records = unwrap(list_runs(str(chosen.root)))
    if not records:
        raise RefusedError(ExitCode.USAGE_ERROR, _NO_RUNS)

    return records[0].run_id


@app.command()
def show(context: typer.Context, run: opt.NewestRun = "", patch: opt.Patch = False) -> int:
    """Show a run and its steps, for `undo` and `fork`."""
    if patch:
        return diff(context, run)

    from mendgraph.graph.runs.runs import get_run, steps_of
    from mendgraph.graph.terminal.outcome_lines import run_details, run_object, step_object

    chosen = options_without_a_task(context)
    run = run_to_read(run, chosen)
    root = find_folder(run, str(chosen.root), needs_files=False)
    run_record = unwrap(get_run(run, root))
    steps = unwrap(steps_of(run_record.run_id, root))
    value = {**run_object(run_record), "steps": [*map(step_object, steps)]}

    return answer(value, run_details(run_record, steps, datetime.now(UTC)), as_json=chosen.as_json)


def diff(context: typer.Context, run: opt.NewestRun = "") -> int:
    """Show the changes of a run as a diff.

    Changes that were taken back are shown as well; `mendgraph apply` restores them.
    """
    from mendgraph.graph.runs.runs import run_diffs
    from mendgraph.graph.terminal.outcome_lines import diff_lines
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values

    chosen = options_without_a_task(context)
    scrub = Redactor(known_values(os.environ)).text
    lines: list[Line] = []
    values = []

    run = run_to_read(run, chosen)
    root = find_folder(run, str(chosen.root))
    for file in unwrap(run_diffs(run, root, attempt=True)):
        text = scrub(file.diff)
        lines += diff_lines([text or f"{file.path}: {file.problem}"])
        values.append({**asdict(file), "diff": text})

    return answer({"diff": values}, lines or [Line("no file is changed")], as_json=chosen.as_json)


@app.command()
def prune(
    context: typer.Context,
    keep: opt.Keep = None,
    older_than: opt.OlderThan = None,
    unfinished: opt.Unfinished = False,
) -> int:
    """Delete runs with all their data.

    Their file changes stay, and can no longer be undone.
    """
    if keep is None and older_than is None:
        context.fail("choose the runs to delete: --keep N, --older-than DAYS, or both")

    from mendgraph.graph.runs.runs import prune_runs

    chosen = options_without_a_task(context)
    done = unwrap(prune_runs(str(chosen.root), keep=keep, older_than_days=older_than, unfinished=unfinished))
    names = ", ".join(map(short_id, done.run_ids))
    message = f"removed {count_of(len(done.run_ids), 'run')}, {done.freed_bytes / 1e6:.1f} MB"
    if names:
        message += f": {names}"

    value = {"removed": list(done.run_ids), "freed_bytes": done.freed_bytes}
    return answer(value, [Line(message)], as_json=chosen.as_json)


def undo(
    context: typer.Context, run: opt.NewestRun = "", from_step: opt.FromStep = 0, skip_changed: opt.SkipChanged = False
) -> int:
    """Restore the files as they were before a run or a step.

    If one of them has changed since, nothing is restored. No other file is touched.
    """
    from mendgraph.graph.runs.runs import undo_run

    chosen = options_without_a_task(context)
    root = find_folder(run, str(chosen.root))
    run_id = run_or_newest(run, chosen)
    restored = unwrap(undo_run(run_id, root, from_step=from_step, skip_changed=skip_changed))
    lines = restored_lines(restored) or [Line(NOTHING_TO_UNDO)]

    return answer(restored_object(restored), lines, as_json=chosen.as_json)


def apply(context: typer.Context, run: opt.Run) -> int:
    """Restore changes that `undo` or a failed run took back.

    If the changes no longer fit the files, nothing is changed.
    """
    from mendgraph.graph.runs.runs import apply_run, steps_of

    chosen = options_without_a_task(context)
    root = find_folder(run, str(chosen.root))
    changes = unwrap(apply_run(run, root))
    steps = steps_of(run, root)
    paths = {change.path for change in changes}

    last_step = 0
    if not isinstance(steps, ToolError):  # a user's graph has no steps
        last_step = max((step.number for step in steps if paths <= set(step.changed)), default=0)

    words = ["undo", short_id(run)]
    if last_step > 1:  # earlier turns of the run stay unchanged
        words += ["--from-step", str(last_step)]

    undo_command = command_line(root, *words)
    lines = [Line(one_line(f"{change.kind} {change.path}")) for change in changes]
    lines.append(Line(f"undo with: {undo_command}"))
    if not changes:
        lines = [Line("nothing to apply: the files already have these changes")]

    applied = [{"path": change.path, "kind": str(change.kind)} for change in changes]
    return answer({"applied": applied, "undo": undo_command}, lines, as_json=chosen.as_json)


def fork(context: typer.Context, run: opt.Run, at: opt.AtStep, skip_changed: opt.SkipChanged = False) -> int:
    """Start a new run from another run's state after a step.

    It has the conversation and the files of that step. Later changes of the other run are taken back.
    """
    from mendgraph.graph.runs.runs import fork_run

    chosen = options_without_a_task(context)
    root = find_folder(run, str(chosen.root))
    done = unwrap(fork_run(run, at, root, skip_changed=skip_changed))
    resume = resume_command(done.run_id, root)
    message = f"run {short_id(done.run_id)} starts where run {short_id(done.parent)} was after step {at}"
    lines = [*restored_lines(done.restored), Line(f"{message}; continue with: {resume}")]
    value = {"run_id": done.run_id, "parent": done.parent, "at": at, "resume": resume}

    return answer({**value, **restored_object(done.restored)}, lines, as_json=chosen.as_json)


_RESTORED = {"edited": "restored", "deleted": "removed", "created": "brought back"}


def restored_lines(restored: "Restored") -> list[Line]:
    """Return a line for each file that was restored or left unchanged."""
    lines: list[Line] = []
    for file in restored.files:
        note = ""
        if file.path in restored.beside_jobs:
            note = ", which was changed while a job was running"

        lines.append(Line(one_line(f"{_RESTORED[file.kind]} {file.path}{note}")))

    return [
        *lines,
        *(Line(one_line(f"removed {path}/, which was empty")) for path in restored.removed),
        *(Line(one_line(f"left {file.path}: {file.why}", 500), "yellow") for file in restored.left),
        *(
            Line(one_line(f"left the changes of {tool}, which was interrupted: they are unknown"), "yellow")
            for tool in restored.cut_off
        ),
    ]


def restored_object(restored: "Restored") -> dict[str, Any]:
    """Return what was restored and what was left unchanged, as an object."""
    return {
        "restored": [{"path": file.path, "kind": str(file.kind)} for file in restored.files],
        "left": [{"path": file.path, "why": file.why} for file in restored.left],
        "removed_directories": list(restored.removed),
        "cut_off": list(restored.cut_off),
        "beside_jobs": list(restored.beside_jobs),
        "steps": list(restored.steps),
    }


# --- The page of a run


def report(
    context: typer.Context,
    run: opt.NewestRun = "",
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File of the page; - is standard output. Default: report.html in the run's folder.",
            show_default=False,
        ),
    ] = "",
    force: opt.Force = False,
) -> int:
    """Write the report of a run as one HTML page.

    The page needs no network and no script.
    """
    from mendgraph.graph.report.page import make_report

    chosen = options_without_a_task(context)
    if output == "-" and chosen.as_json:
        context.fail("with --json the page goes into a file: omit -o - or --json")

    run_id = run_to_read(run, chosen)
    root = find_folder(run_id, str(chosen.root), needs_files=False)
    if output == "-":
        typer.echo(unwrap(make_report(run_id, root))[1].encode("utf-8"), nl=False)
        return 0

    value, line = write_report(run_id, root, output, force=force)
    return answer(value, [line], as_json=chosen.as_json)


def write_report(run: str, root: str, output: str = "", *, force: bool = False) -> tuple[dict[str, Any], Line]:
    """Write the page of a run, by default into the run's own folder; return where it is. Raises RefusedError."""
    from mendgraph.graph.report.page import make_report
    from mendgraph.nodes.workspace.files.sandbox import check_workspace
    from mendgraph.nodes.workspace.store.run_folder import run_folder

    run_id, page, cache = unwrap(make_report(run, root))
    html = page.encode("utf-8")
    folder, name = os.path.split(os.path.abspath(output or "report.html"))
    if output:
        folder = unwrap(check_workspace(folder))
    else:
        folder = unwrap(run_folder(run_id))

    write_file(folder, name, html, force=force or not output)
    path = os.path.join(folder, name)
    line = Line(f"report of run {one_line(short_id(run_id))}: {one_line(path, LONGEST_LINE)}")
    return {"run_id": run_id, "path": path, "bytes": len(html), "cache": cache}, line


# --- Replays


def replay(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FOLDER", help="Runs of this folder, or folders with all of their runs."),
    ],
    from_step: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="STEP", help="Start after this step of the run; see `runs show`."),
    ] = None,
    prompt: Annotated[
        typer.FileText | None,
        typer.Option(metavar="FILE", help="File with the system prompt.", encoding="utf-8", errors="replace"),
    ] = None,
    copy: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the changed copy in this new folder. Default: delete it."),
    ] = None,
) -> int:
    """Repeat runs in a copy of their folder, and compare the two.

    The comparison has outcome, checks, calls, cost and path. Options such as --model replace those of the run. The exit
    code is 1 if an outcome got worse: no answer where there was one, or no passing check where there was one.
    """
    chosen = opt.options_without_events(context)
    signals = Signals(lambda _: None, lambda: None)
    try:
        with signals.handled():
            chosen_runs = [*_chosen_runs(runs, str(chosen.root))]
            if not chosen_runs:
                context.fail("no run of these folders has ended, so there is nothing to replay")
            if copy is not None and len(chosen_runs) > 1:
                context.fail("--copy keeps the copy of one run: name one run")

            options: dict[str, Any] = {"copy": copy, "from_step": from_step}
            if prompt is not None:
                options["system_prompt"] = prompt.read()

            results = _replay_all(chosen_runs, chosen, options)
    except KeyboardInterrupt:
        message = f"stopped {by_whom(signals.last)}; the replays are not stored"
        raise RefusedError(signals.exit_code, message) from None

    return _show_replays(results, chosen)


def _chosen_runs(words: Sequence[str], root: str) -> "Iterator[tuple[str, ListedRun]]":
    """Yield each run with its folder; of a folder those that have ended, oldest first."""
    from mendgraph.graph.runs.runs import get_run, list_runs

    for word in words:
        if not os.path.isdir(word):
            folder = find_folder(word, root)
            yield folder, unwrap(get_run(word, folder))
            continue

        for run in reversed(unwrap(list_runs(word))):
            if run.state == "ended" and run.kind:
                yield word, run


def _replay_all(
    runs: "Sequence[tuple[str, ListedRun]]", chosen: opt.Options, options: Mapping[str, Any]
) -> "list[tuple[ListedRun, Replay | ToolError]]":
    from mendgraph.graph.fleet.replay import replay_run

    results: list[tuple[ListedRun, Replay | ToolError]] = []
    for number, (root, run) in enumerate(runs, start=1):
        sys.stderr.write(f"mendgraph: replay {number} of {len(runs)}: run {one_line(short_id(run.run_id))}\n")
        settings = opt.merged(run.context.model_dump(), chosen.settings)
        changes = {name: settings[name] for name in chosen.settings}
        results.append((run, replay_run(run.run_id, root, durability=chosen.durability, **options, **changes)))

    return results


def _show_replays(results: "Sequence[tuple[ListedRun, Replay | ToolError]]", chosen: opt.Options) -> ExitCode:
    from mendgraph.graph.terminal.outcome_lines import replay_lines

    lines: list[Line] = []
    values: list[dict[str, Any]] = []
    worse: list[str] = []

    for run, result in results:
        lines.append(Line(one_line(f"run {short_id(run.run_id)}: {run.task}"), "bold"))
        if isinstance(result, ToolError):
            message = one_line(refusal_words(result)[0], LONGEST_LINE)
            lines.append(Line(f"cannot be replayed: {message}", "red"))
            values.append({"run_id": run.run_id, "error": result.as_map()})
            worse.append(run.run_id)
            continue

        lines += replay_lines(result)
        values.append({"run_id": run.run_id, **asdict(result), "worse": result.is_worse})
        if result.is_worse:
            worse.append(run.run_id)

    if len(results) > 1:
        lines.append(Line(f"{count_of(len(results), 'run')}, {len(worse)} worse", "bold"))

    answer({"replays": values, "worse": worse}, lines, as_json=chosen.as_json)
    return ExitCode.FINDINGS if worse else ExitCode.FINISHED


# --- Cassettes


@cassettes.command("from-run")
def from_run(
    context: typer.Context,
    run: opt.Run,
    output: opt.TestFolder = None,
    name: opt.TestName = "",
    force: opt.Force = False,
) -> int:
    """Make a cassette of a run, and a pytest file that replays it.

    The run is replayed in a copy of this folder. If the replay differs, nothing is written.
    """
    from mendgraph.graph.cassettes.from_run import FOLDER, cassette_from_run

    chosen = options_without_a_task(context)
    root = find_folder(run, str(chosen.root))
    folder = os.path.join(os.path.realpath(chosen.root), output or FOLDER)  # not in the worktree of an unattended run
    cassette = unwrap(cassette_from_run(run, root, folder=folder, name=name, force=force))
    wrote = [Line(one_line(f"wrote {path}", LONGEST_LINE)) for path in cassette.paths[:2]]
    what = f"{count_of(cassette.exchanges, 'exchange')}, {count_of(cassette.files, 'file')}, ends {cassette.end}"
    line = Line(f"run {short_id(cassette.run_id)}: {what}; replay it with: {one_line(cassette.command, 2_000)}")

    return answer(asdict(cassette), [*wrote, line], as_json=chosen.as_json)


def _stored_notes(root: str) -> "Sequence[Note]":
    """Return the notes of the folder; the file of a folder without notes is not created."""
    from mendgraph.graph.persistence.store import has_memory, own_memory

    if not has_memory(root):
        return ()

    with own_memory(root) as memory:
        return unwrap(memory.notes())


@memories.callback()
def memory(context: typer.Context) -> int:
    """List what runs with --memory noted for later ones in this folder, the oldest first."""
    if context.invoked_subcommand is not None:
        return ExitCode.FINISHED

    chosen = options_without_a_task(context)
    notes = _stored_notes(str(chosen.root))
    lines = [Line(one_line(f"{note.id} {note.at[:10]} {note.text}", LONGEST_LINE)) for note in notes]
    lines_shown = lines or [Line("There are no notes in this folder.")]
    return answer([note._asdict() for note in notes], lines_shown, as_json=chosen.as_json)


@memories.command()
def forget(context: typer.Context, note: opt.Note = "", everything: opt.Everything = False) -> int:
    """Delete a note, or all notes."""
    if bool(note) == everything:
        context.fail("name the ID of a note, as `mendgraph memory` lists it, or pass --all")

    from mendgraph.graph.persistence.store import own_memory

    chosen = options_without_a_task(context)
    root = str(chosen.root)
    ids = [stored.id for stored in _stored_notes(root) if everything or stored.id == note]
    if note and not ids:
        message = f"There is no note {note!r}: `mendgraph memory` lists them."
        unwrap(ToolError(code=ToolErrorCode.NOT_FOUND, message=message))

    if ids:
        with own_memory(root) as memory:
            unwrap(memory.forget(ids))

    return answer({"forgotten": ids}, [Line(f"forgot {count_of(len(ids), 'note')}")], as_json=chosen.as_json)
