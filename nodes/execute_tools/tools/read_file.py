"""Tools that read a page of a text file of the workspace, or of a skill of the user."""

from dataclasses import replace

import orjson
from pydantic import Field

from mendgraph.nodes.execute_tools.registry import FilePath, ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.secrets.text_parts import masked_blocks, next_piece
from mendgraph.nodes.language.media import image_block
from mendgraph.nodes.language.names import is_reference, unknown_reference
from mendgraph.nodes.language.project_notes import SKILL_FILE
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult, invalid, quoted
from mendgraph.nodes.workspace.files.text_files import decode_text, why_not_text
from mendgraph.nodes.workspace.files.workspace import FileContent, read_whole

MAX_FILE_BYTES = 50_000_000
MAX_LINE_CHARACTERS = 2000
AROUND = 8_192  # characters around the shown part of a line that are searched for secrets: none is longer
MAX_PAGE_BYTES = 48_000  # bytes of JSON after which a page ends, so that the result is not clipped later


class ReadFileArguments(ToolArguments):
    """Which lines of which file."""

    path: FilePath
    start_line: int = Field(default=1, ge=1)
    limit: int = Field(default=0, ge=0, description="Lines to read.")
    start_column: int = Field(default=1, ge=1)


@tool(effect=Effect.READ, path_fields=("path",))
def read_file(context: ToolContext, arguments: ReadFileArguments) -> ToolAnswer:
    """Read a text file, a page of lines at a time.

    An image is read as a whole, and shown to a model that takes images. A page has `limit` lines, and
    `context.max_lines` at most; it ends early once it holds 48,000 bytes of JSON. A line is cut at 2000 characters, and
    says where it goes on. Lines of a private key are marks, wherever the page begins.
    """
    is_stored_result = is_reference(arguments.path)  # not a file of the workspace
    if is_stored_result:
        content = _stored_result(context, arguments.path)
    else:
        content = context.workspace.read_file(arguments.path, MAX_FILE_BYTES)

    if isinstance(content, ToolError):
        return content

    image = image_block(content.path, content.data)
    if isinstance(image, ToolError):
        return image
    if image is not None:
        return ToolOutput(ToolResult(ok=True, data=_described(content, image)), blocks=(image,))

    page = _page_of(content, arguments, context.max_lines)
    if isinstance(page, ToolError):
        return page

    output = ToolOutput.ok(path=content.path, **page)
    if is_stored_result:
        return output

    return replace(output, files_read={content.path: content.sha256})


def _described(content: FileContent, image: JsonMap) -> JsonMap:
    return {"path": content.path, "mime_type": image["mime_type"], "bytes": len(content.data)}


def _stored_result(context: ToolContext, reference: str) -> FileContent | ToolError:
    if context.artifacts is None:
        return unknown_reference(reference, ())

    opened = context.artifacts.open(reference)
    if isinstance(opened, ToolError):
        return opened

    return read_whole(opened, MAX_FILE_BYTES)


class ReadSkillArguments(ToolArguments):
    """Which lines of which file of a skill."""

    name: str
    file: str = Field(default=SKILL_FILE, description="File inside of the skill's folder.")
    start_line: int = Field(default=1, ge=1)
    limit: int = Field(default=0, ge=0, description="Lines to read.")
    start_column: int = Field(default=1, ge=1)


@tool(effect=Effect.READ)
def read_skill(context: ToolContext, arguments: ReadSkillArguments) -> ToolAnswer:
    """Read a skill of the user's that you were told of, or a file that it names."""
    if context.skill is None:
        message = "The user has no skills, or none are told in this run: go on without."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    folder = context.skill(arguments.name)
    if isinstance(folder, ToolError):
        return folder

    content = folder.read_file(arguments.file, MAX_FILE_BYTES)
    if isinstance(content, ToolError):
        return content

    page = _page_of(content, arguments, context.max_lines)
    if isinstance(page, ToolError):
        return page

    return ToolOutput.ok(skill=arguments.name, file=arguments.file, **page)


def _page_of(
    content: FileContent, arguments: ReadFileArguments | ReadSkillArguments, max_lines: int
) -> JsonMap | ToolError:
    """Return the page that the arguments name, or why it does not exist."""
    name = quoted(content.path)
    file = decode_text(content.data)
    if file is None:
        return invalid(f"{name} is {why_not_text(content.data)}; only UTF-8 text can be read.")

    lines = masked_blocks(file.text).split("\n")
    total = _count(lines)
    start = arguments.start_line
    column = arguments.start_column

    if start > max(1, total):
        return invalid(f"{name} has {total} lines, so there is nothing at start_line {start}.")

    first = len(_bare(lines, start))
    if column > max(1, first):
        where = f"Line {start} of {name} has {first} characters"
        return invalid(f"{where}, so there is nothing at start_column {column}.")

    limit = min(arguments.limit or max_lines, max_lines)
    return _page(lines, start, min(total, start + limit - 1), column)


def _page(lines: list[str], start: int, last: int, column: int) -> JsonMap:
    """Return the lines from `start` to `last` (counted from 1), with spec 3's pagination metadata."""
    shown_lines: list[str] = []
    size = 0
    cut = 0

    for number in range(start, last + 1):
        if size >= MAX_PAGE_BYTES:
            break

        line, was_cut = _clipped_line(_bare(lines, number), number, column - 1)
        column = 1
        cut += was_cut
        if number < len(lines):
            line += "\n"

        shown_lines.append(line)
        size += len(orjson.dumps(line))

    remaining = _count(lines) - start + 1 - len(shown_lines)
    page: JsonMap = {
        "content": "".join(shown_lines),
        "start_line": start,
        "lines_shown": len(shown_lines),
        "lines_remaining": remaining,
        "has_more": remaining > 0 or cut > 0,
        "next_start_line": start + len(shown_lines) if remaining else None,
    }
    if cut:
        page["long_lines_cut"] = cut

    return page


def _count(lines: list[str]) -> int:
    """Return the number of lines of a text that was split into these: none follows its last line end."""
    return len(lines) if lines[-1] else len(lines) - 1


def _bare(lines: list[str], number: int) -> str:
    line = lines[number - 1]
    if number < len(lines):
        return line.removesuffix("\r")
    return line


def _clipped_line(line: str, number: int, at: int) -> tuple[str, bool]:
    """Return the part of a line from its character `at` on that the page shows, and whether more is left out."""
    if not at and len(line) <= MAX_LINE_CHARACTERS:
        return line, False

    before = max(0, at - AROUND)
    window = line[before : at + MAX_LINE_CHARACTERS + AROUND]
    piece, end = next_piece(window, at - before, at - before + MAX_LINE_CHARACTERS)
    column = before + end

    if column >= len(line):
        return piece, False

    return f"{piece} [... {len(line) - column} more characters: start_line {number}, start_column {column + 1}]", True
