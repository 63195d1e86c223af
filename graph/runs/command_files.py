"""Requests that begin with `/NAME`: the text of a command file, a skill, or a prompt of an MCP server."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mendgraph.graph.machine.workspace import command_files, file_rules
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.prompt_files import CalledFile, PromptFile, called_name, command_request
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.runs.server_prompts import ServerPrompts


def request_of(
    text: str, root: str, denied_paths: Sequence[str], prompts: "ServerPrompts | None" = None
) -> CalledFile | ToolError:
    """Return the request of a person's text: that of the command that it begins with, as `/NAME`, or the text itself.

    `//` begins a request that begins with `/`. "/login returns 404" is a text, unless a command has a similar name.
    """
    if text.startswith("//"):
        return CalledFile(text[1:])
    if not called_name(text):
        return CalledFile(text)

    called = call_file(text, root, denied_paths, prompts=prompts)
    if isinstance(called, ToolError) and called.code is ToolErrorCode.NOT_FOUND and not called.suggestions:
        return CalledFile(text)

    return called


def call_file(
    line: str,
    root: str,
    denied_paths: Sequence[str],
    others: Collection[str] = (),
    prompts: "ServerPrompts | None" = None,
) -> CalledFile | ToolError:
    """Return the request of a line that begins with `/NAME`, or NOT_FOUND with the closest of all commands.

    `root` is the workspace, a real path. `others` are commands that are no files. Files come after `prompts`.
    """
    name = called_name(line)
    called = prompts.call(line) if prompts is not None else list[str]()
    if not isinstance(called, list):
        return called

    files = command_files(root, file_rules(denied_paths))
    file = files.get(name)
    if isinstance(file, PromptFile):
        words = f"/{one_line(name)} is the file {one_line(file.path, 200)}"
        return CalledFile(command_request(file, line), words)
    if file is not None:
        return file

    word = line.split(maxsplit=1)[0]
    close: tuple[str, ...] = ()
    if word != "/":
        close = tuple(closest_names(word, [*others, *called, *(f"/{name}" for name in files)], 1))

    remedy = "/help lists them."
    if close:
        remedy = f"Did you mean {close[0]}?"

    message = f"There is no command {one_line(word, 60)}. {remedy} To send the line to the model, begin it with //."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=close)


def listed_files(root: str, denied_paths: Sequence[str], others: Collection[str] = ()) -> list[PromptFile]:
    """Return the command files of the workspace and of the user by name, without those that `others` replace."""
    files = command_files(root, file_rules(denied_paths))
    listed: list[PromptFile] = []

    for name in sorted(files):
        file = files[name]
        if isinstance(file, PromptFile) and f"/{name}".casefold() not in others:
            listed.append(file)

    return listed
