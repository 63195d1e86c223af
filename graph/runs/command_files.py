"""Requests that begin with `/NAME`: the text of a command file, a skill, or a prompt of an MCP server."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mendgraph.graph.machine.workspace import command_files, denied_rules
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.prompt_files import PromptFile, called_name, command_request
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.graph.runs.server_prompts import ServerPrompts


class CalledFile(NamedTuple):
    """The request of a line that calls a file or prompt, and the `words` that tell a person which one it is."""

    request: str
    words: str


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
    if isinstance(called, ToolError):
        return called
    if isinstance(called, str):
        return CalledFile(called, f"/{name} is a prompt of an MCP server")

    files = command_files(root, _rules(denied_paths))
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
    files = command_files(root, _rules(denied_paths))
    listed: list[PromptFile] = []

    for name in sorted(files):
        file = files[name]
        if isinstance(file, PromptFile) and f"/{name}".casefold() not in others:
            listed.append(file)

    return listed


def _rules(denied_paths: Sequence[str]) -> tuple[FileGuardrailRule, ...]:
    return (*DEFAULT_GUARDRAIL_RULES, *denied_rules(tuple(denied_paths)))
