"""Applying a block of the block form to a file: by definitions, or as the whole text."""

import posixpath
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from mendgraph.nodes.execute_tools.edits.asked_edits import definition_text
from mendgraph.nodes.execute_tools.edits.definitions import Refusal, identical, replace_definitions
from mendgraph.nodes.execute_tools.edits.imports import definitions_in, with_imports
from mendgraph.nodes.execute_tools.edits.losses import lost_keys, why_not_whole, why_too_little
from mendgraph.nodes.execute_tools.edits.notations import hunks_in
from mendgraph.nodes.execute_tools.edits.patches import Hunk, PatchError, apply_hunks
from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse
from mendgraph.nodes.execute_tools.edits.units import read_units
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext
from mendgraph.nodes.execute_tools.tools.saving import LoadedText, load_current, load_text, save_text, shown_unread
from mendgraph.nodes.language.request import is_file, module_of, read_request
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.text_files import BOM, to_unix, unstorable, with_newline


def edit(context: ToolContext, path: str, content: str) -> ToolAnswer:
    """Merge a block into a file: see the tool `edit_blocks`."""
    content = content.removeprefix(BOM)
    if problem := unstorable(content, "content"):
        return invalid(problem)
    if not content.strip():
        return invalid("content is empty: give the new text.")

    before = load_current(context, path)
    hunks = hunks_in(content, path)
    if hunks is not None:
        return _apply(context, path, before, hunks)

    content += "".join(_moved_definitions(context, path, content, before))
    if isinstance(before, LoadedText):
        return _edit(context, before, content)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return before

    names: list[str] = []
    if _is_python(path):
        code = read_units(content)
        if isinstance(code, SyntaxProblem):
            return _not_python(quoted(path), code)

        names = list(dict.fromkeys(unit.key for unit in code.units if unit.key))

    return _save(context, path, content, None, changed=names, action="created")


def _edit(context: ToolContext, before: LoadedText, content: str) -> ToolAnswer:
    text = before.file.text
    if not _is_python(before.path) or isinstance(parse(text), SyntaxProblem):
        return _replace(context, before, content)

    moved = _names_moved_away(context, before)
    merged = replace_definitions(text, content, before.name, task=context.task, path=before.path, there=moved)
    if isinstance(merged, Refusal):
        if merged.unchanged:
            return _unchanged(merged.reason)
        return invalid(merged.reason)

    lines = iter(merged.text.splitlines())
    if before.path not in context.files_read and not all(line in lines for line in text.splitlines()):
        return shown_unread(context, before)

    data: JsonMap = {"changed": list(merged.changed), "action": "merged"}
    for field in ("ignored", "deleted"):
        names = getattr(merged, field)
        if names:
            data[field] = list(names)

    return _save(context, before.path, merged.text, before, moved, **data)


def _names_moved_away(context: ToolContext, before: LoadedText) -> dict[str, str]:
    """Return the definitions that the request moves from this file and that are in their new file, with its module."""
    modules: dict[str, str] = {}
    moves = [move for move in read_request(context.task).moves if move.leaves(before.path)]
    if not moves:
        return modules

    in_package = context.workspace.exists(posixpath.join(posixpath.dirname(before.path), "__init__.py"))
    changed = {change.path for change in context.changes}

    for other, source in _python_read(context, before.path).items():
        for move in moves:
            if not is_file(other, move.new) or move.name not in definitions_in(source):
                continue
            if other in changed or definition_text(source, move.name) == definition_text(before.file.text, move.name):
                modules[move.name] = "." * in_package + module_of(other)

    return modules


def _apply(
    context: ToolContext, path: str, before: LoadedText | ToolError, hunks: tuple[Hunk, ...] | PatchError
) -> ToolAnswer:
    """Make an edit that is written in another notation, as apply_patch does: its old lines prove that it fits."""
    if isinstance(hunks, PatchError):
        return _refused(hunks)

    loaded = None
    text = ""
    action = "created"

    if isinstance(before, LoadedText):
        loaded = before
        text = before.file.text
        action = "edited"
    elif before.code is not ToolErrorCode.NOT_FOUND or any(hunk.old for hunk in hunks):
        return before

    patched = apply_hunks(text, hunks, path)
    if isinstance(patched, PatchError):
        return _refused(patched)
    if patched.text == text:
        return _unchanged(identical(quoted(path)))

    return save_text(context, path, patched.text, loaded, changed=[], action=action, content=to_unix(patched.text))


def _refused(problem: PatchError) -> ToolError:
    return invalid(f"Line {problem.line} of the block: {problem.message}", *problem.suggestions)


def _replace(context: ToolContext, before: LoadedText, content: str) -> ToolAnswer:
    """Save the block as the whole text of a file that is not Python, or is broken Python."""
    if before.path not in context.files_read:
        return shown_unread(context, before)

    text = with_newline(content, before.file.form.newline)
    refusal = _excerpt(before, text, context.task)
    return refusal or _save(context, before.path, text, before, changed=[], action="replaced")


def _save(
    context: ToolContext,
    path: str,
    text: str,
    before: LoadedText | None,
    modules: Mapping[str, str] = MappingProxyType({}),
    **data: Any,
) -> ToolAnswer:
    """Save the text with the imports that it lacks; `modules` has names that were moved to other modules."""
    if _is_python(path):
        text = with_imports(text, "" if before is None else before.file.text, modules)

    return save_text(context, path, text, before, **data, content=text.replace("\r\n", "\n"))


def _python_read(context: ToolContext, path: str) -> dict[str, str]:
    """Return the texts of the other Python files that the thread has read."""
    texts: dict[str, str] = {}

    for other in context.files_read:
        if _is_python(other) and other != path:
            loaded = load_text(context, other)
            if isinstance(loaded, LoadedText):
                texts[loaded.path] = loaded.file.text

    return texts


def _moved_definitions(context: ToolContext, path: str, content: str, before: LoadedText | ToolError) -> Iterator[str]:
    """Yield the definitions that the request moves to this file, and that neither the file nor the block has."""
    if not _is_python(path) or isinstance(parse(content), SyntaxProblem):
        return

    request = read_request(context.task)
    defined = definitions_in(content)
    if isinstance(before, LoadedText):
        defined |= definitions_in(before.file.text)

    for move in request.moves:
        new_name = request.renames.get(move.name, "")
        if not is_file(path, move.new) or not defined.isdisjoint({move.name, new_name}):
            continue

        texts: list[str] = []
        for other, source in _python_read(context, path).items():
            text = definition_text(source, move.name) if move.leaves(other) else ""
            if text:
                texts.append(text)

        if len(texts) == 1:
            yield f"\n\n{texts[0]}"


def _excerpt(before: LoadedText, text: str, task: str) -> ToolError | None:
    old = before.file.text
    name = before.name
    if text == old:
        return _unchanged(identical(name))

    part = why_not_whole(old, text)
    if not part and not _is_python(before.path):
        part = why_too_little(old, text, task)

    if part:
        return invalid(f"The block looks like an excerpt of {name}: {part}. Send the whole text, or use edit_file.")

    code = parse(text) if _is_python(before.path) else None
    if isinstance(code, SyntaxProblem):
        return _not_python(name, code)
    if lost := _lost(before, text, task):
        return invalid(f"The block would drop {', '.join(lost)} from {name}. Send the whole text, or use edit_file.")

    return None


def _lost(before: LoadedText, text: str, task: str) -> list[str]:
    """Return the definitions or keys that the text lacks, and that the request does not delete or rename."""
    names = lost_keys(before.path, before.file.text, text)
    request = read_request(task)
    requested = request.deletions(names, before.path) | request.renames.keys()
    return [name for name in names if name not in requested]


def _unchanged(reason: str) -> ToolError:
    return ToolError(code=ToolErrorCode.UNCHANGED, message=reason)


def _not_python(name: str, problem: SyntaxProblem) -> ToolError:
    return invalid(
        f"The block for {name} is not valid Python ({problem}). Send it again: complete, and nothing but code."
    )


def _is_python(path: str) -> bool:
    return path.endswith((".py", ".pyi"))
