"""The commit message and the pull request of an unattended run.

The task may be a stranger's, and answers and file names are a model's: they are quoted or made inert, so that they
mention no user, close no issue, and have no effect as [skip ci] or HTML.
"""

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from mendgraph.graph.fleet.unattended import PublishResult, UnattendedTask
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.graph.runs.runs import ListedRun
from mendgraph.graph.terminal.outcome_lines import outcome_lines, usage_block, usage_lines
from mendgraph.graph.terminal.output import Line
from mendgraph.graph.terminal.process_end import RefusedError, unwrap, write_file
from mendgraph.graph.terminal.run_view import Account
from mendgraph.nodes.language.display import fenced, one_line, plain
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.sandbox import check_workspace

_INERT: Final = str.maketrans({"@": "(at)", "[": "(", "]": ")", "<": "(", ">": ")"})
_MAX_QUOTED: Final = 8_000
"""Characters of one text; GitHub accepts 65,536 in all."""


def publish(
    unattended: UnattendedTask, session: Session, result: RunResult, record: ListedRun | None, account: Account
) -> PublishResult:
    """Commit what an unattended run has changed, as it was asked to, and write its report."""
    request = unattended.request
    context = session.context
    api = context.limits().api
    models = dict.fromkeys(payment.model for payment in account.paid)
    message = session.scrub(commit_message(request.task, result, [*models]))
    files: Sequence[str] = result.changed_files
    if record is not None:
        files = record.files  # of all turns

    checked = result.outcome.verified.kind in {"passed", "indistinct"} or not context.require_checks
    published = unattended.publish(files, finished=result.ok, checked=checked, message=message)
    if not request.report:
        return published

    model = []
    if context.model:
        model = ["--model", context.model]

    usage = result.outcome.usage
    lines = (*usage_lines(usage, api, account), *usage_block(usage, api))
    report = session.scrub(pull_request(request.task, unattended.copy.base, model, result, files, lines))
    if request.report == "-":
        sys.stdout.write(report)
        return published

    folder, name = os.path.split(os.path.abspath(request.report))
    try:
        write_file(unwrap(check_workspace(folder)), name, report.encode(errors="replace"), force=True)
    except RefusedError as refusal:  # the outcome is shown as well
        problem = ToolError(code=ToolErrorCode.IO_ERROR, message=f"No report: {refusal.message}")
        return published._replace(problem=published.problem or problem)

    return published


def commit_message(task: str, result: RunResult, models: Sequence[str]) -> str:
    """Return a subject of at most 72 characters from the task, then the outcome of the run, its id and its models."""
    first = next(filter(str.strip, task.splitlines()), task)
    *_, outcome_line = outcome_lines(result.outcome)
    ending = outcome_line.text
    if not result.changed_files:
        ending = f"In its last turn: {ending}"

    author = f"Run {result.run_id} of mendgraph"
    if models:
        author += f", by {', '.join(models)}"

    paragraphs = [textwrap.fill(_inert(paragraph, 1_000), 72) for paragraph in (ending, f"{author}.")]
    return "\n".join((_inert(first, 72), "", *paragraphs, ""))


def pull_request(
    task: str, base: str, model: Sequence[str], result: RunResult, files: Sequence[str], usage: Iterable[Line]
) -> str:
    """Return the text of a pull request as Markdown: the task, its outcome, the usage, and how to repeat it.

    `base` is the commit that the run began with, `model` the option that names its model, and `files` what it changed.
    """
    again = f"git switch --detach {base}\n{shlex.join(['mendgraph', '--unattended', *model, '--', task])}"
    parts = [
        ("What was asked", _quoted(task)),
        ("What was changed", _quoted("\n".join(files) or "no file")),
        ("How it ended, and what was checked", _quoted(_joined(outcome_lines(result.outcome)))),
        ("What the model says", _quoted(result.answer or "(nothing)")),
        ("What it used", _quoted(_joined(usage))),
        ("How to do it again", _quoted(again, "sh")),
    ]
    if result.outcome.refused:
        parts.insert(2, ("What was refused", _quoted("\n".join(result.outcome.refused))))

    texts = "".join(f"## {title}\n\n{text}\n\n" for title, text in parts)
    return f"{texts}Made by mendgraph, unattended, in run {result.run_id}.\n"


def _joined(lines: Iterable[Line]) -> str:
    return "\n".join(line.text for line in lines)


def _inert(text: str, limit: int) -> str:
    words = re.sub(r"#(?=\d)", "no. ", re.sub("(?i)GH-", "GH ", one_line(text, 10 * limit).replace("://", ":")))
    return one_line(words.translate(_INERT), limit)


def _quoted(text: str, language: str = "text") -> str:
    """Return the text as a block of code, which nothing in it can end."""
    content = plain("\n".join(text.splitlines()))
    if len(content) > _MAX_QUOTED:
        content = f"{content[: _MAX_QUOTED - 3]}..."

    return fenced(content, language)
