"""How the writing tools load a text, and put a new one in its place with everything that the run must know of it."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mendgraph.nodes.execute_tools.commands.command_changes import CommandChange, CommandChanges
from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.execute_tools.evidence.checks import Checks
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.files.text_files import (
    BOM,
    TextFile,
    TextForm,
    decode_text,
    encode_text,
    text_of,
    why_not_text,
)
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.read_file import ReadFileArguments, read_file
from mendgraph.nodes.records import FileChange, JsonMap, ToolError, ToolErrorCode, ToolResult, invalid, quoted

_SHARE = 3  # the gate may take one part in so many of the call's time


@dataclass(frozen=True)
class LoadedText:
    """A text file as it is on disk now; `path` is its real name, relative to the workspace."""

    path: str
    sha256: str
    file: TextFile

    @property
    def name(self) -> str:
        """The path as messages show it."""
        return quoted(self.path)

    @property
    def version(self) -> "Version":
        """What it holds."""
        return Version(self.sha256, self.file.text)


def load_text(context: ToolContext, path: str, done: str = "edited") -> LoadedText | ToolError:
    """The file, or why it cannot be `done`: NOT_FOUND where nothing is there, INVALID_ARGUMENT if it is no text."""
    if isinstance(content := context.workspace.read_file(path), ToolError):
        return content
    if (file := decode_text(content.data)) is None:
        return invalid(f"{quoted(content.path)} is {why_not_text(content.data)}; only UTF-8 text can be {done}.")

    return LoadedText(content.path, content.sha256, file)


def load_current(context: ToolContext, path: str) -> LoadedText | ToolError:
    """The same, or CONFLICT where this thread knows the file with another content."""
    if isinstance(before := load_text(context, path), ToolError):
        return before
    return outdated(context, before.path, before.version) or before


def save_text(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolAnswer:
    """Writes `text` in place of `before` (None: a new file), in its form, and reports `data` beside the path.

    `text` has its final line ends; a BOM at its beginning is the form of a new file. The file must still be what
    `before` says; otherwise the workspace gives CONFLICT. Nothing is written where the syntax gate or the evidence
    refuses the text, or where it has lines of an example.
    """
    if before:
        form = before.file.form
    else:
        form = TextForm(has_bom=text.startswith(BOM))

    text = text.removeprefix(BOM)
    target = before.path if before else path
    old_text = before.file.text if before else None

    if isinstance(judged := judged_syntax(context, target, old_text, text), ToolError):
        return judged

    if foreign := _foreign_line(context, old_text or "", text):
        return invalid(
            f"The line {foreign!r} is of an example that you were shown, and not of this task. So nothing was changed:"
            " send the edit again without it."
        )

    if (contradicted := judged_evidence(context, target, old_text, text)) is not None:
        return contradicted

    expected = before.sha256 if before else ""
    written = context.workspace.write_file(target, encode_text(text, form), expected_sha256=expected)
    if isinstance(written, ToolError):
        return written

    old = before.version if before else NO_FILE
    change = file_change(written.path, old, Version(written.sha256, text))
    return changed((change,), path=written.path, **data, **judged)


def changed(changes: Sequence[FileChange], **data: Any) -> ToolOutput:
    """A result with these fields and file effects; the thread knows what each of the files holds now."""
    hashes = {change.path: change.sha256_after for change in changes}
    return replace(ToolOutput.ok(**data), changes=tuple(changes), files_read=hashes)


def judged_syntax(context: ToolContext, path: str, before: str | None, after: str) -> JsonMap | ToolError:
    """What the syntax gate adds to the result of an edit of this file, or that it refuses the edit."""
    from mendgraph.nodes.execute_tools.edits.losses import broken_by

    if context.syntax_gate == "off":
        broken = None
    else:
        broken = broken_by(path, before, after)

    if broken is None:
        return {}
    if context.syntax_gate == "report":
        return {"syntax": broken}

    return invalid(
        f"With this edit {quoted(path)} {broken}. So nothing was changed: mend that in the edit, and make it again."
    )


def _foreign_line(context: ToolContext, before: str, after: str) -> str:
    """The first line that the edit would add, and that the model can only have from an example; "" where there is none.

    A line that the file has already is its own, wherever the edit puts it.
    """
    added = [foreign_name for foreign_name in context.foreign if foreign_name in after and foreign_name not in before]
    return next(
        (line.strip() for line in after.splitlines() if any(foreign_name in line for foreign_name in added)), ""
    )


def judged_evidence(context: ToolContext, path: str, before: str | None, after: str) -> ToolError | None:
    """CHECK_FAILED where examples show that this edit is wrong, in words; `before` is None for a new file.

    None where the run is not gated, where there is nothing to run, and where it cannot be run.

    Raises:
        ScopeOverError: the call's time is over.
    """
    name = posixpath.normpath(path.removeprefix(f"{context.workspace.root}/"))
    if not context.evidence_required or not isinstance(context.checks, Checks) or not context.checks.rules.evidence:
        return None
    if name.startswith(("/", "..")):  # who writes the file will say so
        return None

    from mendgraph.nodes.execute_tools.evidence.evidence_gate import gate_verdict, plan_gate
    from mendgraph.nodes.execute_tools.evidence.examples import as_request, read_run

    if (plan := plan_gate(name, before, after, context.task, text_before(context, name, before or ""))) is None:
        return None

    modules = [as_request(name, after, plan.examples)]
    if before is not None:
        modules.append(as_request(name, before, plan.examples))

    checks = context.checks.in_scope(context.scope)
    answers = checks.run_examples(modules, context.timeout_s / _SHARE)
    if isinstance(answers, ToolError):
        return None

    runs = [read_run(answer, len(plan.examples)) for answer in answers]
    verdict = gate_verdict(plan, runs[0], runs[1] if before is not None else None, checks.rules.examples_timeout_s)
    if verdict is None:
        return None

    return ToolError(code=ToolErrorCode.CHECK_FAILED, message=f"With this edit {verdict} So nothing was changed.")


def text_before(context: ToolContext, path: str, now: str) -> str:
    """What the file with the text `now` held before the turn, "" where it was not there or that is not known."""
    first = next((change.sha256_before for change in context.changes if change.path == path), None)
    data = context.backup(first) if first else None
    return now if first is None else text_of(data or b"") or ""


def outdated(context: ToolContext, path: str, now: Version) -> ToolError | None:
    """Why a file may not be changed that this thread knows with another content, and what is in it by now."""
    if context.files_read.get(path, now.sha256) == now.sha256:
        return None

    changed_since = f"{quoted(path)} has changed since it was read"
    if now.text is None:
        return conflict(f"{changed_since}, and is binary now, so it cannot be read again: leave it as it is.")

    remedy = "read_file it again, and base your change on what it holds now"
    return conflict(f"{changed_since}: {remedy}.")


def conflict(message: str) -> ToolError:
    """A CONFLICT error."""
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


def instead_of(error: ToolError, context: ToolContext, before: LoadedText) -> ToolAnswer:
    """The error, or where the file was not read in this thread, the file's first page."""
    if before.path in context.files_read:
        return error
    return shown_unread(context, before)


def shown_unread(context: ToolContext, before: LoadedText) -> ToolAnswer:
    """The fields of read_file, with `changed` false and a note; the file counts as read from now on.

    Source: a 1.5B model sent an edit with invented text that was answered by an error up to 12 times as it was.
    """
    answer: ToolAnswer = read_file.run(context, ReadFileArguments(path=before.path))
    if isinstance(answer, ToolError):
        return answer

    continuation = ""
    if answer.result.data["has_more"]:
        continuation = " It goes on after these lines."

    note = (
        f"Nothing was changed: {before.name} was not read yet. This is what it holds.{continuation}"
        " Make the edit again, from this text."
    )

    return replace(answer, result=ToolResult(ok=True, data={**answer.result.data, "changed": False, "note": note}))


MOST_CHANGES = 200  # changed files of one command that the run tells of; the journal has all of them
MOST_DIFF_CHARACTERS = 100_000  # of all diffs of one command together: they stay in the run's state
_DIFFS_S = 0.3  # how long diffs are made: a formatter may have rewritten hundreds of files


def file_changes(changes: CommandChanges) -> tuple[FileChange, ...]:
    """The first 200 changes, by name, with diffs as long as there is room and time."""
    until = monotonic_s() + _DIFFS_S
    room = MOST_DIFF_CHARACTERS
    changes_told: list[FileChange] = []

    for change in changes.files[:MOST_CHANGES]:
        one = _change(change, diff=monotonic_s() < until and room > 0)
        if len(one.diff) > room:
            one = _change(change, diff=False)

        room -= len(one.diff)
        changes_told.append(one)

    return tuple(changes_told)


def _change(change: CommandChange, *, diff: bool) -> FileChange:
    before, after = (
        Version(state.sha256, None if data is None or not diff else text_of(data))
        for state, data in ((change.before, change.before_data), (change.after, change.after_data))
    )

    return file_change(shown(change.path), before, after)


def shown(name: str) -> str:
    """A name as text, whatever its bytes are."""
    return name.encode(errors="backslashreplace").decode()
