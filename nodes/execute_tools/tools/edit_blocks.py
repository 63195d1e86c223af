"""The tool behind the block form: the new text of what changes in a file, without any escaping."""

from typing import Any

from pydantic import Field

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from nodes.execute_tools.tools.definitions import Refusal, identical, replace_definitions
from nodes.execute_tools.tools.excerpts import lost_definitions, why_not_whole
from nodes.execute_tools.tools.python_units import PythonText, SyntaxProblem, parse, read_python
from nodes.execute_tools.tools.saving import LoadedText, invalid, load_text, outdated, save_text, unread
from nodes.execute_tools.tools.text_files import BOM, unstorable, with_newline
from nodes.records import Effect, ToolError, ToolErrorCode


class EditBlocksArguments(ToolArguments):
    """Which file, and the new text of what changes in it."""

    path: FilePath
    content: str = Field(description="New text of the changed functions or classes, or the whole file.")


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",))
def edit_blocks(context: ToolContext, arguments: EditBlocksArguments) -> ToolOutput:
    """Replace functions or classes of a Python file by name, or a whole file of another kind.

    The named definitions need not have been read; a file that is replaced as a whole must have been. The result
    carries the new text: the block form shows each file in its newest known state.
    """
    content = arguments.content.removeprefix(BOM)
    problem = unstorable(content, "content") or ("" if content.strip() else "content is empty: give the new text.")
    if problem:
        return ToolOutput.failed(invalid(problem))
    before = load_text(context, arguments.path)
    if isinstance(before, LoadedText):
        return _edit(context, before, content)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return ToolOutput.failed(before)
    return _create(context, arguments.path, content)


def _create(context: ToolContext, path: str, content: str) -> ToolOutput:
    changed: list[str] = []
    if _is_python(path):
        code = read_python(content)
        if isinstance(code, SyntaxProblem):
            return ToolOutput.failed(_not_python(quoted(path), code))
        changed = _names(code)
    return _save(context, path, content, None, changed=changed, action="created")


def _edit(context: ToolContext, before: LoadedText, content: str) -> ToolOutput:
    refusal = outdated(context, before.path, before.version)
    if refusal:
        return ToolOutput.failed(refusal)
    if not _is_python(before.path) or isinstance(parse(before.file.text), SyntaxProblem):
        return _replace(context, before, content)
    merged = replace_definitions(before.file.text, content, before.name)
    if isinstance(merged, Refusal):
        return ToolOutput.failed(_unchanged(before) if merged.unchanged else invalid(merged.reason))
    data: dict[str, Any] = {"changed": list(merged.changed), "action": "merged"}
    if merged.ignored:
        data["ignored"] = list(merged.ignored)
    return _save(context, before.path, merged.text, before, **data)


def _replace(context: ToolContext, before: LoadedText, content: str) -> ToolOutput:
    """Takes the block for the whole file: one that is not Python, or is broken Python."""
    text = with_newline(content, before.file.form.newline)
    refusal = unread(context, before) or _excerpt(before, text)
    if refusal:
        return ToolOutput.failed(refusal)
    return _save(context, before.path, text, before, changed=[], action="replaced")


def _save(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolOutput:
    return save_text(context, path, text, before, **data, content=text.replace("\r\n", "\n"))


def _excerpt(before: LoadedText, text: str) -> ToolError | None:
    old, name = before.file.text, before.name
    if text == old:
        return _unchanged(before)
    part = why_not_whole(old, text)
    if part:
        return invalid(f"The block looks like an excerpt of {name}: {part}. Send the whole text, or use edit_file.")
    if not _is_python(before.path):
        return None
    code, lost = parse(text), lost_definitions(old, text)
    if isinstance(code, SyntaxProblem):
        return _not_python(name, code)
    if lost:
        return invalid(f"The block would drop {', '.join(lost)} from {name}. Send the whole text, or use edit_file.")
    return None


def _unchanged(before: LoadedText) -> ToolError:
    return ToolError(code=ToolErrorCode.UNCHANGED, message=identical(before.name))


def _not_python(name: str, problem: SyntaxProblem) -> ToolError:
    return invalid(
        f"The block for {name} is not valid Python ({problem}). Send it again: complete, and nothing but code."
    )


def _is_python(path: str) -> bool:
    return path.endswith((".py", ".pyi"))


def _names(code: PythonText) -> list[str]:
    return list(dict.fromkeys(unit.key for unit in code.units if unit.key))
