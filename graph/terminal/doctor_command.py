"""`mendgraph doctor`: what this machine lacks for a run, and what to do; or all of it in a file, for a bug report."""

import re
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.run_commands import options_without_events, refused, tell, tell_object, terminal_width
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError

if TYPE_CHECKING:
    from mendgraph.graph.doctor.bundle import Written
    from mendgraph.graph.doctor.examination import Finding
    from mendgraph.graph.terminal.output_lines import Line

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "off": "dim"}
_LONGEST = 600
_LEAST_ROOM = 40
"""Columns that a finding needs beside its name."""

_BELOW = 2
"""How far it is moved in where it stands below."""

Offline = Annotated[bool, typer.Option("--offline", help="Ask no endpoint.")]
Deep = Annotated[bool, typer.Option("--deep", help="Read the embedded model whole, and compare its SHA-256.")]
AsBundle = Annotated[bool, typer.Option("--bundle", help="Write a report for a bug: a ZIP file, without secrets.")]
BundleFile = Annotated[Path | None, typer.Argument(metavar="FILE.zip", help="Where --bundle writes it.")]
OfRun = Annotated[str, typer.Option("--run", metavar="RUN", help="With --bundle: what a run did, by its id.")]
WithMessages = Annotated[
    bool, typer.Option("--include-messages", help="With --bundle and --run: also what was said in it.")
]


def doctor(
    context: typer.Context,
    file: BundleFile = None,
    offline: Offline = False,
    deep: Deep = False,
    bundle: AsBundle = False,
    run: OfRun = "",
    include_messages: WithMessages = False,
    force: opt.Force = False,
) -> int:
    """Check this machine, and say what to do.

    It looks at model, sandbox, store, programs and settings; exit code 1 where there is a problem.

    Options of a run, such as --model, are honoured. Nothing is written unless --bundle asks for it.
    """
    if not bundle and (file is not None or run or include_messages or force):
        context.fail("FILE.zip, --run, --include-messages and --force belong to --bundle")
    if include_messages and not run:
        context.fail("--include-messages needs --run RUN")
    from mendgraph.graph.doctor.examination import examine, is_fine, report

    chosen = options_without_events(context)
    root = str(chosen.root)
    found = examine(root, chosen.settings, offline=offline, deep=deep, workspace_file=chosen.workspace_file)
    code = ExitCode.FINISHED if is_fine(found) else ExitCode.FINDINGS
    if bundle:
        from mendgraph.graph.doctor.bundle import write_bundle

        path = str(file or f"mendgraph-{re.sub(r'[^A-Za-z0-9]', '-', run[:8]) or 'doctor'}.zip")
        made = write_bundle(path, found, root, run, include_messages=include_messages, force=force)
        if isinstance(made, ToolError):
            return refused(chosen, made)
        return tell_object(asdict(made)) if chosen.as_json else tell(bundle_lines(made))
    if chosen.as_json:
        tell_object(report(found))
    else:
        tell(finding_lines(found, terminal_width()))
    return code


def finding_lines(found: "tuple[Finding, ...]", columns: int | None = None) -> "list[Line]":
    """A line for each finding, and one for what to do about it; wrapped where a terminal has so many columns."""
    from mendgraph.graph.doctor.examination import summary
    from mendgraph.graph.terminal.output_lines import Line

    width = max((len(each.name) for each in found), default=0)
    lines = []
    for each in found:
        head = f"{each.status.value:<8} {each.name:<{width}}  "
        told = _wrapped(head, one_line(each.found, _LONGEST), columns)
        lines += [Line(text, _STYLES[each.status.value]) for text in told]
        if each.remedy:
            lines += map(Line, _wrapped(" " * len(head), f"-> {one_line(each.remedy, _LONGEST)}", columns))
    return [*lines, Line(summary(found), "bold")]


def _wrapped(head: str, text: str, columns: int | None) -> list[str]:
    """The text beside its head, or below it where there is little room; no word is cut: it may be a path to copy."""
    if columns is None:
        return [head + text]
    beside = columns - len(head) >= _LEAST_ROOM
    indent = " " * (len(head) if beside else _BELOW)
    wrap = textwrap.TextWrapper(columns, indent, indent, break_long_words=False, break_on_hyphens=False)
    lines = wrap.wrap(text)
    if beside:
        return [head + lines[0].lstrip(), *lines[1:]]
    return [head.rstrip(), *lines] if head.strip() else lines


def bundle_lines(made: "Written") -> "list[Line]":
    """Where the report lies, what is inside, and how the matter is reproduced."""
    from mendgraph.graph.terminal.output_lines import Line

    inside = [Line(f"  {name}: {what}", "dim") for name, what in made.files.items()]
    said = Line("Secrets, your name and your home folder are taken out; look through it before you share it.")
    again = [Line(f"To reproduce: {one_line(each, _LONGEST)}") for each in made.reproduce]
    return [Line(one_line(f"wrote {made.path}", _LONGEST)), *inside, said, *again]
