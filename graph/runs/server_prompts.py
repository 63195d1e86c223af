"""The prompts of MCP servers: commands that a person calls as `/SERVER:PROMPT words`.

A server is asked for its prompts when a person lists or calls them, or an editor does, never before. It is not trusted:
the text of a prompt is that of a command's file, with the same limit, in the same block.
"""

import asyncio
import os
import re
from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final

from mendgraph.graph.configuration.mcp_servers import without_values
from mendgraph.graph.runs.configured_servers import OpenedServer
from mendgraph.nodes.execute_tools.mcp_servers.limits import START_S, read_pages
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers, Request, Response
from mendgraph.nodes.language.project_notes import MOST_READ
from mendgraph.nodes.language.prompt_files import CalledFile, PromptFile, called_name, request_of_call, split_words
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid

if TYPE_CHECKING:
    from mcp import ClientSession, types

    Offered = tuple[PromptFile, types.Prompt]

_CALL: Final = "The line above calls this prompt of an MCP server. Do what the prompt asks, for the words of that line:"


class ServerPrompts:
    """The prompts of the servers of one session."""

    def __init__(self, running: McpServers, opened: Sequence[OpenedServer]) -> None:
        self._running = running
        self._opened = opened
        self._listing = Thread(target=self._list, daemon=True)
        self._commands: list[PromptFile] = []

    def commands(self, wait_s: float | None = None) -> list[PromptFile]:
        """Return the prompts as commands. They are listed once; none is returned until all servers have answered."""
        if self._listing.ident is None:
            self._listing.start()

        self._listing.join(wait_s)
        return self._commands

    def call(self, line: str) -> CalledFile | ToolError | list[str]:
        """Return the request of a line that calls a prompt, otherwise the commands of the server that it names."""
        name = called_name(line)
        for server in self._opened:
            if name.startswith(f"{_word(server.name)}:"):
                return asyncio.run(self._send(server, partial(_call, server.name, line)))

        return []

    def _list(self) -> None:
        async def ask_all() -> "list[list[Offered] | ToolError]":
            requests = [self._send(server, partial(_offered, server.name)) for server in self._opened]
            return await asyncio.gather(*requests)

        for answer in asyncio.run(ask_all()):
            if not isinstance(answer, ToolError):
                self._commands += [command for command, _ in answer]

    async def _send(self, server: OpenedServer, request: "Request[Response]") -> Response | ToolError:
        problem = server.problem
        if not problem:
            timeout_s = server.settings.startup_timeout_s or START_S
            answer = await self._running.send(self._running.server(server.name), request, timeout_s)
            if not isinstance(answer, ToolError) or answer.code is ToolErrorCode.INVALID_ARGUMENT:
                return answer

            problem = without_values(answer.message, server.settings, os.environ)

        return invalid(f"{problem.rstrip('.')}. Nothing is sent; `mendgraph mcp list` tries it again.")


def _word(name: str) -> str:
    """Return a name as a person types it in a command."""
    return re.sub(r"[^\w-]", "_", name)


async def _offered(server: str, session: "ClientSession") -> "list[Offered]":
    """Return the server's prompts, as commands and as the server describes them."""
    offered: list[Offered] = []
    capabilities = session.get_server_capabilities()
    if capabilities is None or capabilities.prompts is None:
        return offered

    for prompt in await read_pages(session.list_prompts, "prompts"):
        hints = [f"<{item.name}>" if item.required else f"[{item.name}]" for item in prompt.arguments or ()]
        fields = {"description": prompt.description or "", "argument-hint": " ".join(hints)}
        command = PromptFile(f"{_word(server)}:{_word(prompt.name)}", f"MCP server {server}", fields, "")
        offered.append((command, prompt))

    return offered


async def _call(server: str, line: str, session: "ClientSession") -> CalledFile | ToolError | list[str]:
    names: list[str] = []
    for command, prompt in await _offered(server, session):
        names.append(f"/{command.name}")
        if command.name != called_name(line):
            continue

        values = _values_of(prompt, command, line)
        if isinstance(values, ToolError):
            return values

        answer = await session.get_prompt(prompt.name, values)
        return _request_of(command.name, line, answer.messages)

    return names


def _values_of(prompt: "types.Prompt", command: PromptFile, line: str) -> dict[str, str] | ToolError:
    """Return the words of the line by the prompt's arguments, of which the last one takes all that are left."""
    arguments = prompt.arguments or []
    words = split_words(line.partition(command.name)[2])
    last = len(arguments) - 1
    words = [*words[:last], " ".join(words[last:])]
    values = {argument.name: word for argument, word in zip(arguments, words, strict=False) if word}

    for argument in arguments:
        if argument.required and argument.name not in values:
            return invalid(f"{argument.name} is missing: {command.usage}")

    return values


def _request_of(name: str, line: str, messages: "Sequence[types.PromptMessage]") -> CalledFile | ToolError:
    """Return the request with the texts and images of these messages, or why they cannot be part of one."""
    texts: list[str] = []
    images: list[bytes] = []

    for message in messages:
        block = message.content.model_dump()
        text = (block.get("resource") or block).get("text")
        if block["type"] == "image":
            images.append(b64decode(block["data"]))
            text = "[image]"
        if text is None:
            return invalid(f"/{name} has content of type {block['type']}, and only text and images can be sent.")
        if len(messages) > 1:
            text = f"{message.role}: {text}"

        texts.append(text)

    text = "\n\n".join(texts)
    if len(text.encode()) > MOST_READ:
        return invalid(f"/{name} is not sent: its text has more than {MOST_READ:,} bytes.")

    request = request_of_call(line, name, _CALL, text)
    return CalledFile(request, f"/{name} is a prompt of an MCP server", tuple(images))
