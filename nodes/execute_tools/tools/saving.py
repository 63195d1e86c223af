"""Loading and saving texts for the tools that write: the checks, the write, and the changes for the run's state."""

import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mendgraph.nodes.execute_tools.commands.command_changes import CommandChange, CommandChanges
from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.execute_tools.evidence.checks import Checks
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.read_file import ReadFileArguments, read_file
from mendgraph.nodes.records import FileChange, JsonMap, ToolError, ToolErrorCode, ToolResult, invalid, quoted
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.files.text_files import (
    BOM,
    TextFile,
    TextForm,
    decode_text,
    encode_text,
    escaped_name,
    text_of,
    to_unix,
    why_not_text,
)
from mendgraph.nodes.workspace.files.workspace import DryChange, PartlyApprovedWorkspace

_SHARE = 3  # examples may take this fraction of the call's time


@dataclass(frozen=True)
class LoadedText:
    """A text file as it is on disk; `path` is relative to the workspace and without links."""

    path: str
    sha256: str
    file: TextFile

    @property
    def name(self) -> str:
        """The path as messages show it."""
        return quoted(self.path)

    @property
    def version(self) -> "Version":
        """Its hash and text."""
        return Version(self.sha256, self.file.text)


def load_text(context: ToolContext, path: str, done: str = "edited") -> LoadedText | ToolError:
    """Return the file, or NOT_FOUND, or INVALID_ARGUMENT if it is no text and so cannot be `done`."""
    content = context.workspace.read_file(path)
    if isinstance(content, ToolError):
        return content

    file = decode_text(content.data)
    if file is None:
        return invalid(f"{quoted(content.path)} is {why_not_text(content.data)}; only UTF-8 text can be {done}.")

    return LoadedText(content.path, content.sha256, file)


def load_current(context: ToolContext, path: str) -> LoadedText | ToolError:
    """Do the same, or return CONFLICT if this thread knows the file with another content."""
    if isinstance(before := load_text(context, path), ToolError):
        return before
    return outdated(context, before.path, before.version) or before


def save_text(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolAnswer:
    """Write `text` in place of `before` (None for a new file), with its BOM, and report `data` beside the path.

    `text` has its final line ends; a BOM at its beginning counts for a new file. The workspace returns CONFLICT if the
    file is not `before` any more. Nothing is written if the syntax gate or the examples refuse the text, or if it has
    lines of an example of the prompt.
    """
    if before is None:
        target = path
        old = NO_FILE
        form = TextForm(has_bom=text.startswith(BOM))
    else:
        target = before.path
        old = before.version
        form = before.file.form

    text = text.removeprefix(BOM)
    judged = judged_syntax(context, target, old.text, text)
    if isinstance(judged, ToolError):
        return judged

    foreign = _foreign_line(context, old.text or "", text)
    if foreign:
        return invalid(
            f"The line {foreign!r} is of an example that you were shown, and not of this task. So nothing was changed:"
            " send the edit again without it."
        )

    contradicted = judged_evidence(context, target, old.text, text)
    if contradicted is not None:
        return contradicted

    text = format_text(context, target, old.text, text, judged)
    if "content" in data:
        data["content"] = to_unix(text)

    written = context.workspace.write_file(target, encode_text(text, form), expected_sha256=old.sha256)
    if isinstance(written, ToolError):
        return written

    change = file_change(written.path, old, Version(written.sha256, text))
    return changed(context, (change,), path=written.path, **data, **judged)


def changed(context: ToolContext, changes: Sequence[FileChange], **data: Any) -> ToolOutput:
    """Return a result with these fields, changes and new diagnostics; the thread knows the new content of the files.

    If a person approved only some hunks, the changes and fields are those of the part that was made.
    """
    if isinstance(context.workspace, PartlyApprovedWorkspace):
        changes = [file_change(effect.name, *_versions(effect)) for effect in context.workspace.effects]
        files = [{"path": change.path, "action": change.kind.value} for change in changes]
        data = {"files": files} if files[1:] else {**files[0]}

    data |= diagnostics_of(context, changes)
    hashes = {change.path: change.sha256_after for change in changes}
    return replace(ToolOutput.ok(**data), changes=tuple(changes), files_read=hashes)


def _versions(effect: DryChange) -> Iterator[Version]:
    for data in (effect.before, effect.after):
        yield NO_FILE if data is None else Version(hashlib.sha256(data).hexdigest(), text_of(data))


def judged_syntax(context: ToolContext, path: str, before: str | None, after: str) -> JsonMap | ToolError:
    """Return the fields that the syntax gate adds to the result of an edit, or its refusal."""
    from mendgraph.nodes.execute_tools.edits.losses import broken_by

    if context.syntax_gate == "off":
        return {}

    broken = broken_by(path, before, after)
    if broken is None:
        return {}
    if context.syntax_gate == "report":
        return {"syntax": broken}

    return invalid(
        f"With this edit {quoted(path)} {broken}. So nothing was changed: fix that in the edit, and make it again."
    )


def diagnostics_of(context: ToolContext, changes: Sequence[FileChange] = ()) -> JsonMap:
    """Return the fields for what the project's linters say of the turn's changes, of which `changes` are the last."""
    checks = context.checks
    if not isinstance(checks, Checks) or not checks.rules.diagnostics or not context.is_last_edit:
        return {}

    from mendgraph.nodes.execute_tools.tools.diagnosing import diagnose

    return diagnose(context, checks, changes)


def format_text(context: ToolContext, path: str, before: str | None, after: str, data: JsonMap) -> str:
    """Return the text after an edit as the project's formatter writes it; `data` gets a field if that differs."""
    checks = context.checks
    if not isinstance(checks, Checks) or not checks.rules.formatting:
        return after

    from mendgraph.nodes.execute_tools.tools.diagnosing import run_formatter

    return run_formatter(context, checks, path, before, after, data)


def _foreign_line(context: ToolContext, before: str, after: str) -> str:
    """Return the first line that the edit would add from an example of the prompt, or "".

    A line that the file has already belongs to the file.
    """
    added = [example for example in context.foreign if example in after and example not in before]
    for line in after.splitlines():
        if any(example in line for example in added):
            return line.strip()

    return ""


def judged_evidence(context: ToolContext, path: str, before: str | None, after: str) -> ToolError | None:
    """Return CHECK_FAILED if examples show that this edit is wrong, else None; `before` is None for a new file.

    The result is None if no evidence is required, or if no example can be run.

    Raises:
        ScopeOverError: the call's time is over.
    """
    name = posixpath.normpath(path.removeprefix(f"{context.workspace.root}/"))
    if not context.evidence_required or not isinstance(context.checks, Checks) or not context.checks.rules.evidence:
        return None
    if name.startswith(("/", "..")):  # the workspace refuses it
        return None

    from mendgraph.nodes.execute_tools.evidence.evidence_gate import gate_verdict, plan_gate
    from mendgraph.nodes.execute_tools.evidence.examples import as_request, read_run

    plan = plan_gate(name, before, after, context.task, text_before(context, name, before or ""))
    if plan is None:
        return None

    modules = [as_request(name, after, plan.examples)]
    if before is not None:
        modules.append(as_request(name, before, plan.examples))

    checks = context.checks.in_scope(context.scope)
    answers = checks.run_examples(modules, context.timeout_s / _SHARE)
    if isinstance(answers, ToolError):
        return None

    run_after, *runs_before = [read_run(answer, len(plan.examples)) for answer in answers]
    run_before = runs_before[0] if runs_before else None
    verdict = gate_verdict(plan, run_after, run_before, checks.rules.examples_timeout_s)
    if verdict is None:
        return None

    return ToolError(code=ToolErrorCode.CHECK_FAILED, message=f"With this edit {verdict} So nothing was changed.")


def text_before(context: ToolContext, path: str, now: str) -> str:
    """Return the text of a file before the turn, or "" if it did not exist or is not known; `now` is its text."""
    for change in context.changes:
        if change.path == path:
            data = context.backup(change.sha256_before) if change.sha256_before else None
            return text_of(data or b"") or ""

    return now


def outdated(context: ToolContext, path: str, now: Version) -> ToolError | None:
    """Return CONFLICT if this thread knows the file with another content."""
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
    """Return the error, or the first page of the file if it was not read in this thread."""
    if before.path in context.files_read:
        return error
    return shown_unread(context, before)


def shown_unread(context: ToolContext, before: LoadedText) -> ToolAnswer:
    """Return the fields of read_file, with `changed` false and a note; the file counts as read.

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


MOST_CHANGES = 200  # changed files of one command in its result
MOST_DIFF_CHARACTERS = 100_000  # of all diffs of one command, which stay in the state
_DIFFS_S = 0.3  # seconds for all diffs: a formatter may have rewritten hundreds of files


def file_changes(changes: CommandChanges) -> tuple[FileChange, ...]:
    """Return the first 200 changes, by name, with diffs up to the limits of their size and time."""
    until = monotonic_s() + _DIFFS_S
    room = MOST_DIFF_CHARACTERS
    described: list[FileChange] = []

    for change in changes.files[:MOST_CHANGES]:
        one = _change(change, diff=monotonic_s() < until and room > 0)
        if len(one.diff) > room:
            one = _change(change, diff=False)

        room -= len(one.diff)
        described.append(one)

    return tuple(described)


def _change(change: CommandChange, *, diff: bool) -> FileChange:
    effect = change.effect
    before = _version(effect.before.sha256, change.before_data, diff=diff)
    after = _version(effect.after.sha256, change.after_data, diff=diff)
    return file_change(escaped_name(effect.path), before, after)


def _version(sha256: str, data: bytes | None, *, diff: bool) -> Version:
    if data is None or not diff:
        return Version(sha256, None)
    return Version(sha256, text_of(data))
