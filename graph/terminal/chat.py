"""A chat at the terminal: requests and slash commands, line by line, until the input ends."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, Protocol

from graph.judged_workspace import judged_workspace
from graph.terminal.approval import ReadLine
from graph.terminal.exit_codes import ExitCode
from graph.terminal.plain_text import one_line
from graph.terminal.run_commands import refusal_words
from graph.terminal.screen import Display
from graph.terminal.slash_commands import COMMANDS, KEYS, Told, as_request, run_command
from graph.terminal.turns import Setup, Turns
from nodes.execute_tools.environment.request_history import RequestHistory
from nodes.records import ToolError

OpenPrompt = Callable[[Turns, Display], ReadLine]
"""Opens what reads the lines of a chat from a terminal, once its turns are there."""

MOST_NAMES: Final = 20_000
"""Names of a workspace that are looked at to complete one."""

_SIMPLE_TERMINALS: Final = frozenset({"dumb", "unknown"})


class Stream(Protocol):
    """Standard input or output."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""


def prompt_for(setup: Setup, *streams: Stream) -> OpenPrompt | None:
    """What opens the prompt where these streams are a terminal that can move its cursor; None for any other."""
    simple = setup.display.as_json or setup.environment.get("TERM") in _SIMPLE_TERMINALS
    return None if simple or not all(stream.isatty() for stream in streams) else terminal_prompt


def terminal_prompt(turns: Turns, display: Display) -> ReadLine:
    """A prompt with the history of the workspace's chats; where none can be kept, that is said once."""
    from graph.terminal.prompt_input import ChatCompleter, PromptInput

    root, colours = turns.context.workspace, not turns.environment.get("NO_COLOR")
    history = RequestHistory(root)
    history.load()  # before there is a prompt that a message would tear apart
    commands = {name: command.help for name, command in COMMANDS.items()}
    ask = PromptInput(history, turns.scrub, ChatCompleter(commands, partial(_files, root)), colours=colours)
    told: list[str] = []
    display.out.line(f"mendgraph chat in {one_line(root)}; /help lists the commands", "dim")

    def read(prompt: str) -> str:
        if history.problem and not told:
            told.append(history.problem)
            display.err.line(f"mendgraph: requests are not kept for the next chat: {history.problem}")
        display.out.line("")
        return ask(prompt)

    return read


def chat(setup: Setup, open_prompt: OpenPrompt | None = None) -> ExitCode:
    """Take requests until the input ends, `/exit`, Ctrl-C at the prompt, or SIGTERM; then show the usage.

    A line that begins with "/" is a command of `slash_commands`. Without `open_prompt` the setup reads the lines.
    Source of `/usage`: spec 1 section 6.
    """
    prompt = "" if setup.display.as_json else "You: "
    with Turns(setup) as turns:
        read = setup.next_line if open_prompt is None else open_prompt(turns, setup.display)
        notes = ""
        while not turns.terminated:
            try:
                line = read(prompt)
            except (EOFError, KeyboardInterrupt):
                break
            request = as_request(line)
            if request is None:
                told = run_command(turns, line, KEYS if open_prompt else ())
                _show(setup.display, told)
                if isinstance(told, Told):
                    notes += f"{told.note}\n\n" if told.note and told.note not in notes else ""
                    if told.leave:
                        break
            elif request.strip():
                turns.take(notes + request)
                notes = ""
        turns.show_usage(at_end=True)
        turns.show_chat()
        return ExitCode.TERMINATED if turns.terminated else ExitCode.FINISHED


def _show(display: Display, told: Told | ToolError) -> None:
    """Show what a command has to say; with `--json` in one object."""
    if isinstance(told, ToolError):
        message, named = refusal_words(told)
        for line in (f"mendgraph: {message}", *named):
            display.err.line(line)
        if display.as_json:
            display.tell_object("error", {"error": {**told.as_map(), "message": message}})
    elif not display.as_json:
        for each in told.lines:
            display.out.line(*each)
    else:
        for event in told.value:  # the name of what is in it
            display.tell_object(event, dict(told.value))


def _files(root: str) -> list[str]:
    """The files of the workspace that may be named to a model, without what git ignores."""
    files = judged_workspace(root)
    found = islice(files.walk(), MOST_NAMES)
    return [entry.path for entry in found if entry.kind == "file" and files.denied(entry.path) is None]
