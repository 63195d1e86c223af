"""`mendgraph report`: what a run did, as one page for a browser."""

import os.path
from typing import TYPE_CHECKING, Annotated

import typer

from graph.terminal import options as opt
from graph.terminal.plain_text import one_line
from graph.terminal.run_commands import options_without_a_task, refused, tell, tell_object
from graph.terminal.run_words import short_id
from nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from graph.report.page import Report

STANDARD_OUTPUT = "-"

Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where the page is written; - is standard output. Default: mendgraph-RUN.html in this folder.",
        show_default=False,
    ),
]
RunToReport = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run, by its id or the beginning of it. Default: the newest one.", show_default=False
    ),
]


def report(context: typer.Context, run: RunToReport = "", output: Output = "", force: opt.Force = False) -> int:
    """Write what a run did as one page, for a browser.

    It needs no network and no script, and nothing of the run is changed by it.
    """
    from graph.report.page import make_report

    chosen = options_without_a_task(context)
    if output == STANDARD_OUTPUT and chosen.as_json:
        context.fail("with --json the page goes into a file: omit -o - or --json")
    made = make_report(run, str(chosen.root))
    if isinstance(made, ToolError):
        return refused(chosen, made)
    if output == STANDARD_OUTPUT:
        typer.echo(made.html.encode("utf-8"), nl=False)
        return 0
    path = os.path.abspath(output or f"mendgraph-{short_id(made.run_id)}.html")
    problem = _written(path, made, force=force)
    if problem is not None:
        return refused(chosen, problem)
    if chosen.as_json:
        return tell_object({"run_id": made.run_id, "path": path, "bytes": len(made.html.encode("utf-8"))})
    from graph.terminal.ending import Line

    return tell([Line(f"report of run {one_line(short_id(made.run_id))}: {one_line(path, 1_000)}")])


def _written(path: str, made: "Report", *, force: bool) -> ToolError | None:
    """Write the page, whole or not at all; INVALID_ARGUMENT where it cannot be there, or something else is."""
    from nodes.execute_tools.environment.failures import quoted
    from nodes.execute_tools.environment.sandbox import check_workspace
    from nodes.execute_tools.environment.workspace import FileContent, Workspace, WriteFile

    folder, name = os.path.split(path)
    root = check_workspace(folder)
    if isinstance(root, ToolError):
        message = f"There is no folder {quoted(folder)} to write the page to: make it, or take another FILE."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    place = Workspace(str(root), lambda *_: None)
    there = place.read_file(name) if place.exists(name) else None
    if isinstance(there, ToolError):
        return there.model_copy(update={"code": ToolErrorCode.INVALID_ARGUMENT})
    if there is not None and not force:
        message = f"{quoted(path)} is there already: name another FILE with -o, or write over it with --force."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    before = there.sha256 if isinstance(there, FileContent) else ""
    done = place.change_files([WriteFile(name, made.html.encode("utf-8"), expected_sha256=before)])
    if isinstance(done, ToolError) and done.code is ToolErrorCode.PERMISSION_DENIED:
        message = f"The page cannot be written to {quoted(path)}, which is a link to elsewhere, or no plain file."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return done if isinstance(done, ToolError) else None
