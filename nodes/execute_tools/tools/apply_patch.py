"""The tool that applies a patch to several files, all or nothing."""

from dataclasses import dataclass

from pydantic import Field

from mendgraph.nodes.execute_tools.edits import patches
from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, tool
from mendgraph.nodes.execute_tools.tools.saving import changed, format_text, judged_syntax, load_current, outdated
from mendgraph.nodes.records import EditForm, Effect, FileChange, JsonMap, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.text_files import BOM, encode_text, text_of, unstorable
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, MoveFile, WriteFile


class ApplyPatchArguments(ToolArguments):
    """The patch."""

    patch: str = Field(
        description="*** Begin Patch, *** Update File: path (Add, Delete), @@, lines with space, - or +, *** End Patch"
    )


@dataclass(frozen=True)
class _Planned:
    """The change of one file, its versions before and after, and more fields of the result."""

    change: Change
    before: Version
    after: Version
    data: JsonMap


@tool(
    effect=Effect.WRITE,
    one_change=True,
    paths_of=lambda arguments: patches.patched_paths(str(arguments.get("patch", ""))),
    edit_forms=(EditForm.PATCH,),
)
def apply_patch(context: ToolContext, arguments: ApplyPatchArguments) -> ToolAnswer:
    """Apply a patch in the V4A format to one or more files: all of it is applied, or nothing.

    No reading is asked for: the lines of a hunk that are in the file, in one place, prove that the model knows it; only
    a file that has changed since it was read is to be read again.
    Its paths stand in the patch, so guard learns them from there.
    """
    if problem := unstorable(arguments.patch, "patch"):
        return invalid(problem)

    files = patches.parse_patch(arguments.patch)
    if isinstance(files, patches.PatchError):
        return _error(files)

    planned: list[_Planned] = []

    for file in files:
        if isinstance(file, patches.AddedFile):
            plan = _added(context, file)
        elif isinstance(file, patches.DeletedFile):
            plan = _deleted(context, file)
        else:
            plan = _updated(context, file)

        if isinstance(plan, ToolError):
            return plan

        planned.append(plan)

    done = context.workspace.change_files([step.change for step in planned])
    if isinstance(done, ToolError):
        return done

    changes: list[FileChange] = []
    details: list[JsonMap] = []

    for plan, now in zip(planned, done, strict=True):
        after = plan.after._replace(sha256=now.sha256)

        if now.target:
            changes += [file_change(now.path, plan.before, NO_FILE), file_change(now.target, NO_FILE, after)]
        else:
            changes.append(file_change(now.path, plan.before, after))

        place = {"path": now.path, "target": now.target} if now.target else {"path": now.path}
        details.append({**place, **plan.data})

    return changed(context, changes, files=details)


def _added(context: ToolContext, file: patches.AddedFile) -> _Planned | ToolError:
    if context.workspace.exists(file.path):
        message = f"{quoted(file.path)} exists already, so it cannot be added: update it instead."
        return _in_line(file, ToolError(code=ToolErrorCode.CONFLICT, message=message))

    data: JsonMap = {"action": "created"}
    text = format_text(context, file.path, None, file.text, data)
    change = WriteFile(file.path, text.encode())
    return _Planned(change, NO_FILE, Version("", text.removeprefix(BOM)), data)


def _deleted(context: ToolContext, file: patches.DeletedFile) -> _Planned | ToolError:
    content = context.workspace.read_file(file.path)
    if isinstance(content, ToolError):
        return _in_line(file, content)

    before = Version(content.sha256, text_of(content.data))
    if refusal := outdated(context, content.path, before):
        return _in_line(file, refusal)

    return _Planned(DeleteFile(file.path, content.sha256), before, NO_FILE, {"action": "deleted"})


def _updated(context: ToolContext, file: patches.UpdatedFile) -> _Planned | ToolError:
    before = load_current(context, file.path)
    if isinstance(before, ToolError):
        return _in_line(file, before)

    patched = patches.apply_hunks(before.file.text, file.hunks, before.path)
    if isinstance(patched, patches.PatchError):
        return _error(patched)

    same = patched.text == before.file.text
    if same and not file.target:
        return _error(patches.PatchError(file.line, f"the hunks change nothing in {before.name}."))

    judged = judged_syntax(context, file.target or before.path, before.file.text, patched.text)
    if isinstance(judged, ToolError):
        return _in_line(file, judged)

    data: JsonMap = {"action": "moved" if file.target else "edited"}
    if patched.inexact:
        data["hunks_found_by_ignoring_spaces"] = patched.inexact

    data |= judged
    text = format_text(context, file.target or before.path, before.file.text, patched.text, data)
    encoded = encode_text(text, before.file.form)
    change: Change = WriteFile(file.path, encoded, before.sha256)

    if file.target:
        change = MoveFile(file.path, file.target, before.sha256, None if same else encoded)

    return _Planned(change, before.version, Version("", text), data)


def _error(error: patches.PatchError) -> ToolError:
    return invalid(error.sentence, *error.suggestions)


def _in_line(file: patches.FilePatch, error: ToolError) -> ToolError:
    return error.model_copy(update={"message": f"Line {file.line} of the patch: {error.message}"})
