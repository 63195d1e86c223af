"""What the linters of the project say that they did not say before the turn, and what its formatter makes of a text."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Final

from mendgraph.nodes.execute_tools.commands.command_outputs import last_words, output_text
from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.execute_tools.edits.losses import broken_by
from mendgraph.nodes.execute_tools.evidence.checks import Checks
from mendgraph.nodes.execute_tools.evidence.linters import (
    FORMATTERS,
    LINTERS,
    Diagnostic,
    ProjectTool,
    configured_tools,
    new_diagnostics,
    read_diagnostics,
)
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.proof import MOST_REPLACED
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ChangeKind, FileChange, JsonMap, ToolError
from mendgraph.nodes.workspace.files.deadline import ScopeOverError, monotonic_s
from mendgraph.nodes.workspace.files.text_files import text_of
from mendgraph.nodes.workspace.files.workspace import Workspace

MOST_DIAGNOSTICS: Final = 10
"""Diagnostics of one result."""

_SHARE: Final = 3  # each run of a linter or formatter may take this fraction of the time that is left
_ONCE: Final = "It is not started again in this session."
_ONLY_REFERENCES: Final = (
    "tsc checks nothing, as tsconfig.json only refers to other projects: list `tsc -b` in checks instead."
)
_NO_FILES: Final = re.compile(r'"files"\s*:\s*\[\s*\]')
_LONGEST_REASON: Final = 400  # characters of why a linter fails
_LONGEST_DIFF: Final = 2_000  # characters of what a formatter has changed
_COMPLETED: Final = (0, 1)  # exit codes of linters that have looked at everything


def diagnose(context: ToolContext, checks: Checks, changes: Sequence[FileChange]) -> JsonMap:
    """Return `new_diagnostics`, if there are any, and `not_diagnosed`: why a linter is not started again."""
    unusable = set(checks.unusable)
    diagnosis = _Diagnosis(context, checks.in_scope(context.scope), (*context.changes, *changes))
    try:
        lines = [str(diagnostic) for diagnostic in diagnosis.run()]
    except ScopeOverError:  # the edit is made, and its result says so
        return {}

    if len(lines) > MOST_DIAGNOSTICS:
        lines[MOST_DIAGNOSTICS:] = [f"... and {len(lines) - MOST_DIAGNOSTICS} more"]

    reasons = [f"{reason} {_ONCE}" for name, reason in checks.unusable.items() if reason and name not in unusable]
    fields = {"new_diagnostics": lines, "not_diagnosed": reasons}
    return {name: texts for name, texts in fields.items() if texts}


@dataclass
class _Diagnosis:
    """Runs the linters that the project configures on the changed files, and again on what these held before."""

    context: ToolContext
    checks: Checks
    changes: Sequence[FileChange]

    def run(self) -> list[Diagnostic]:
        """Return the diagnostics that are new since the turn began."""
        new: list[Diagnostic] = []
        if len(self.before) > MOST_REPLACED:
            return new

        for linter, paths in self._linters().items():
            if linter.program == "tsc" and _names_no_files(self.context.workspace, linter.folder):
                self.checks.unusable.setdefault(linter.name, _ONLY_REFERENCES)

            after = self._lint(linter, paths)
            baseline = self._baseline(linter, paths) if after else None
            if after and baseline is not None:
                new += new_diagnostics(baseline, after)

        return new

    def _linters(self) -> dict[ProjectTool, list[str]]:
        """Return the configured linters, each with its changed files."""
        linters: dict[ProjectTool, list[str]] = {}
        settings = cache(partial(_settings, self.context.workspace))

        for path in self.before:
            for linter in configured_tools(LINTERS, path, settings):
                linters.setdefault(linter, []).append(path)

        return linters

    @cached_property
    def before(self) -> dict[str, bytes]:
        """The bytes of changed files before the turn: b"" for new ones; a moved file has those of its old name."""
        deleted = {change.sha256_before: change.path for change in self.changes if change.kind is ChangeKind.DELETED}
        hashes: dict[str, str] = {}
        source = ""  # what the last change has deleted

        for change in self.changes:
            if change.kind is ChangeKind.CREATED and (source or change.sha256_after in deleted):
                source = source or deleted[change.sha256_after]
                hashes[change.path] = hashes.get(source, change.sha256_after)
            else:
                hashes.setdefault(change.path, change.sha256_before)

            source = change.path if change.kind is ChangeKind.DELETED else ""

        contents: dict[str, bytes] = {}
        for path, sha256 in hashes.items():
            data = self.context.backup(sha256) if sha256 else b""
            if data is not None and self.context.workspace.exists(path):
                contents[path] = data

        return contents

    def _baseline(self, linter: ProjectTool, paths: Sequence[str]) -> Sequence[Diagnostic] | None:
        """Return the diagnostics before the turn, or None; they are computed once for the same files of a turn."""
        state = self.context.state
        key = (state.get("run_id"), state.get("first_step"), self.before)
        computed_from, diagnostics = self.checks.baselines.get(linter.name, (None, ()))

        if computed_from != key:
            result = self._lint(linter, paths, self.before)
            if result is None:
                return None

            diagnostics = [diagnostic for diagnostic in result if self.before.get(diagnostic.path) != b""]
            self.checks.baselines[linter.name] = key, diagnostics

        return diagnostics

    def _lint(
        self, linter: ProjectTool, paths: Sequence[str], before: Mapping[str, bytes] | None = None
    ) -> list[Diagnostic] | None:
        """Return what the linter prints on the files, or on what they held `before`; None if it cannot be used."""
        root = self.context.workspace.root
        files = [f"{root}/{path}" for path in paths] if linter.takes_files else []
        result = self.checks.run_tool(linter, files, _seconds(self.context), before)

        if result is None:
            return None
        if result.stdout.left_out:
            self.checks.unusable[linter.name] = f"{linter.name} prints too much."
            return None

        output = f"{output_text(result.stdout)}\n{output_text(result.stderr)}"
        diagnostics = read_diagnostics(output, root, linter)
        if diagnostics or result.exit_code in _COMPLETED:
            return diagnostics

        if before is None:  # what was wrong before the turn may be fixed now
            reason = one_line(last_words(result.stderr, result.stdout), _LONGEST_REASON)
            self.checks.unusable[linter.name] = f"{linter.name} fails: {reason or f'exit code {result.exit_code}'}"

        return None


def run_formatter(
    context: ToolContext, checks: Checks, path: str, before: str | None, after: str, data: JsonMap
) -> str:
    """Return the text as the project's formatter writes it, and describe the difference in `data`.

    `before` is the present text of the file, None for a new one. If that is not formatted, the new text is not either:
    the formatter would change all of the file. What loses the text, or breaks its syntax, is no formatted text.
    """
    checks = checks.in_scope(context.scope)

    for formatter in configured_tools(FORMATTERS, path, cache(partial(_settings, context.workspace))):
        if before and _formatted(context, checks, formatter, path, before) != before:
            return after

        text = _formatted(context, checks, formatter, path, after)
        if text is None or not text.strip() or text == after or broken_by(path, after, text):
            return after

        diff = unified_diff(path, after, text)
        if len(diff) > _LONGEST_DIFF:
            diff = "read it again before you edit it."

        data["formatted"] = f"by {formatter.name}, so the file differs from what you wrote:\n{diff}"
        return text

    return after


def _formatted(context: ToolContext, checks: Checks, formatter: ProjectTool, path: str, text: str) -> str | None:
    """Return the formatted text, or None if the formatter cannot be used."""
    files = [f"{context.workspace.root}/{path}"] if formatter.takes_files else []
    result = checks.run_tool(formatter, files, _seconds(context), text=text)
    if result is None or result.exit_code or result.stdout.left_out:
        return None

    return text_of(result.stdout.head + result.stdout.tail)


def _seconds(context: ToolContext) -> float:
    """Return a share of the time that the call has left, so that the edit is never given up for these programs."""
    spent_s = monotonic_s() - context.scope.started_s if context.scope else 0.0
    return (context.timeout_s - spent_s) / _SHARE


def _names_no_files(workspace: Workspace, folder: str) -> bool:
    """Return whether the tsconfig.json in this folder refers to other projects and names no files of its own."""
    file = workspace.read_file(posixpath.join(folder, "tsconfig.json"))
    if isinstance(file, ToolError):
        return False

    text = text_of(file.data) or ""
    return '"references"' in text and '"include"' not in text and _NO_FILES.search(text) is not None


def _settings(workspace: Workspace, folder: str) -> list[str]:
    """Return the names of the files in a folder, and the headings of those with settings of many tools."""
    entries = workspace.list_directory(folder or ".")
    names = [] if isinstance(entries, ToolError) else [posixpath.basename(entry.path) for entry in entries]

    for name in {"pyproject.toml", "setup.cfg"}.intersection(names):
        file = workspace.read_file(posixpath.join(folder, name))
        if not isinstance(file, ToolError):
            names += [f"{name} {line}" for line in (text_of(file.data) or "").splitlines() if line.startswith("[")]

    return names
