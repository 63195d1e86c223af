"""Commands and agents that a project or its user keeps in Markdown files, as Claude Code reads them. Pure.

A command's text becomes part of a request, in a block that nothing in the file can close. What a person typed is the
text outside of the block: a path that the file names is not one that the person names.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from mendgraph.nodes.language.documents import read_yaml
from mendgraph.nodes.language.project_notes import (
    FRONTMATTER,
    MOST_READ,
    UNSEEN_BETWEEN,
    note_text,
    short_line,
    visible,
)
from mendgraph.nodes.records import ToolError, invalid

COMMAND_FOLDERS: Final = (".claude/commands", ".agents/commands")
"""In a workspace and in a user's home. `sub/name.md` is the command `sub:name`."""

AGENT_FOLDERS: Final = (".claude/agents",)

SUFFIX: Final = ".md"

MARK: Final = "command_file"
"""The element that contains the text of a command."""

_MARK: Final = re.compile(rf"<(?=[\s/\u200c\u200d]*{UNSEEN_BETWEEN.join(MARK)})", re.IGNORECASE)
_BLOCK: Final = re.compile(rf"<{MARK} name=.*?(?:</{MARK}>|\Z)", re.DOTALL)
_NAME: Final = re.compile(r"[\w-]+(?::[\w-]+)*")
_FIELD: Final = re.compile(r"^([a-z-]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"\$(ARGUMENTS\b|[1-9](?!\d))")
_ARGUMENTS_OF_TOOL: Final = re.compile(r"\([^()]*\)?")

_TOOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Read": "read_file",
        "Edit": "edit_file multi_edit edit_blocks apply_patch append_file",
        "MultiEdit": "edit_file multi_edit edit_blocks apply_patch append_file",
        "Write": "write_file append_file move_file delete_file",
        "Bash": "run_command run_shell",
        "Grep": "search_files",
        "Glob": "glob_files list_files",
        "LS": "list_files",
        "WebFetch": "http_get",
        "WebSearch": "web_search",
    }
)
"""The tools that do what a tool of Claude Code does, by its name."""


def foreign_names(tool: str) -> tuple[str, ...]:
    """Return the names of Claude Code's tools that do what this tool does."""
    if tool == "delegate":  # no agent's file gives it
        return ("Task", "Agent")

    return tuple(name for name, tools in _TOOLS.items() if tool in tools.split())


class PromptFile(NamedTuple):
    """A Markdown file: its name, its path as a person writes it, the fields of its front matter, and its text."""

    name: str
    path: str
    fields: Mapping[str, str]
    text: str

    @property
    def description(self) -> str:
        """One line: the `description` of the front matter, else the beginning of the text."""
        lines = self.text.strip().splitlines() or [""]
        return short_line(" ".join(self.fields.get("description", lines[0]).split()))

    @property
    def usage(self) -> str:
        """The command as `/help` shows it."""
        return f"/{self.name} {self.fields.get('argument-hint', '')}".rstrip()


class CalledFile(NamedTuple):
    """The request of a line; if it calls a file or prompt, the `words` that tell a person which one it is.

    A prompt may have images.
    """

    request: str
    words: str = ""
    images: tuple[bytes, ...] = ()


def is_prompt_name(name: str) -> bool:
    """Return whether a file may have this name: words with hyphens, after those of its folders and ":"."""
    return bool(_NAME.fullmatch(name))


def called_name(line: str) -> str:
    """Return the name of the command that a line begins with, as in `/name words`; "" if there is none."""
    words = line.split(maxsplit=1)
    if words and words[0].startswith("/") and is_prompt_name(words[0][1:]):
        return words[0][1:]

    return ""


def read_prompt_file(name: str, path: str, data: bytes) -> PromptFile | ToolError:
    """Return the file of this name, of which at most `MOST_READ` + 1 bytes were read, or why it is no such file."""
    if len(data) > MOST_READ:
        return invalid(f"{path!r} is not read: it has more than {MOST_READ:,} bytes.")

    text = note_text(path, data)
    if isinstance(text, ToolError):
        return text

    frontmatter = FRONTMATTER.match(text)
    if frontmatter is None:
        return PromptFile(name, path, {}, text)

    return PromptFile(name, path, _fields(frontmatter[1]), text[frontmatter.end() :])


def _fields(frontmatter: str) -> dict[str, str]:
    """Return the fields of a front matter as text. Those of many files are no YAML, such as `[issue] [priority]`."""
    fields = dict(_FIELD.findall(frontmatter))
    values = read_yaml(frontmatter)

    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, str):
            fields[name] = value
        elif isinstance(value, list) and not fields.get(name):
            fields[name] = ", ".join(map(str, value))

    return fields


# --- Commands


def command_request(file: PromptFile, line: str) -> str:
    """Return the request of a typed line that calls this file: the line, and the file's text with its arguments.

    It does not name the file, which would be read ahead.
    """
    arguments = "".join(line.split(maxsplit=1)[1:])
    words = split_words(arguments)

    def value(match: re.Match[str]) -> str:
        if match[1] == "ARGUMENTS":
            return arguments

        number = int(match[1])
        return "".join(words[number - 1 : number])

    call = "The line above calls the command of this file. Do what the file asks, for the words of that line:"
    return request_of_call(line, file.name, call, _ARGUMENT.sub(value, file.text))


def request_of_call(line: str, name: str, call: str, text: str) -> str:
    """Return the line and a text that is not the person's, after the sentence `call` for the model."""
    text = _MARK.sub("&lt;", visible(text)).strip()
    return f'{line.strip()}\n\n<{MARK} name="{name}">\n{call}\n\n{text}\n</{MARK}>'


def split_words(arguments: str) -> list[str]:
    """Return the words of the arguments, of which those in quotes are one."""
    try:
        return shlex.split(arguments)
    except ValueError:  # an open quote
        return arguments.split()


def with_hook_words(request: str, event: str, words: str) -> str:
    """Return a request with the words of a hook, which are not the person's."""
    text = _MARK.sub("&lt;", visible(words)).strip()
    return f'{request}\n\n<{MARK} name="{event} hook">\n{text}\n</{MARK}>' if text else request


def typed_text(request: str) -> str:
    """Return what a person typed of a request, without the texts of command files."""
    return _BLOCK.sub("", request)


def command_texts(request: str) -> list[str]:
    """Return the texts of command files in a request."""
    texts: list[str] = _BLOCK.findall(request)
    return texts


# --- Agents


def agents_in(files: Iterable[PromptFile | ToolError]) -> dict[str, PromptFile]:
    """Return the agents by the `name` of their front matter, else that of their file, each name once."""
    agents: dict[str, PromptFile] = {}
    for file in files:
        if isinstance(file, PromptFile):
            name = file.fields.get("name", "")
            if not is_prompt_name(name):
                name = file.name

            agents.setdefault(name, file._replace(name=name))

    return agents


def agent_tools(agent: PromptFile, names: Collection[str]) -> frozenset[str]:
    """Return which of these tools the agent may use: all without a field `tools`; unknown tools are ignored."""
    listed = agent.fields.get("tools", "").strip()
    if listed in {"", "*"}:
        return frozenset(names)

    tools: set[str] = set()
    for word in re.findall(r"[\w-]+", _ARGUMENTS_OF_TOOL.sub("", listed)):
        tools.update(_TOOLS.get(word, word).split())

    return frozenset(tools.intersection(names))
