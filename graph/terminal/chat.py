"""A chat at the terminal: requests and slash commands, line by line, until the input ends."""

import textwrap
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import IO, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.machine.workspace import denied_rules, judged_workspace
from mendgraph.graph.runs.runs import RunDiff, RunStep, run_diffs, run_plan, steps_of, undo_run
from mendgraph.graph.terminal.answers import Line, terminal_width
from mendgraph.graph.terminal.approval import ReadLine
from mendgraph.graph.terminal.output_lines import diff_lines
from mendgraph.graph.terminal.process_end import ExitCode, refusal_words
from mendgraph.graph.terminal.run_commands import NOTHING_TO_UNDO, restored_lines, restored_object
from mendgraph.graph.terminal.screen import Display
from mendgraph.graph.terminal.turns import Setup, Turns
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint, models_in_order, split_provider
from mendgraph.nodes.call_model.weights import WeightsState, embedded_weights, weights_status
from mendgraph.nodes.execute_tools.journal.restoring import Restored
from mendgraph.nodes.execute_tools.processes.processes import kill_group, outputs, read_until, start_process
from mendgraph.nodes.execute_tools.store.user_files import RequestHistory
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import Plan, PlanStatus, ProviderFailure, ToolError, ToolErrorCode, invalid

Value = TypeVar("Value")

SLASH: Final = "/"
SHELL: Final = "!"

_MARKS: Final = {PlanStatus.DONE: "[x]", PlanStatus.IN_PROGRESS: "[>]", PlanStatus.PENDING: "[ ]"}


class CommandAnswer(NamedTuple):
    """The output of a command: `lines` for a person, `value` for a program. `leave`: the chat is over.

    `note` is for the model, and is sent with the next request.
    """

    lines: Sequence[Line] = ()
    value: Mapping[str, object] = {}
    note: str = ""
    leave: bool = False


class SlashCommand(NamedTuple):
    """A command: its name, its arguments as `/help` shows them, and the function that runs it."""

    name: str
    arguments: str
    help: str
    run: Callable[[Turns, Sequence[str]], CommandAnswer | ToolError]

    @property
    def usage(self) -> str:
        """The name and the arguments."""
        return f"{self.name} {self.arguments}".strip()


def as_request(line: str, *, attended: bool = False) -> str | None:
    """The request to the model in this line, None for a command. A second "/" or "!" makes it a request.

    Where the chat is not `attended`, "!" begins a request: piped input may be a stranger's, and gets no shell.
    """
    words = line.lstrip()
    marks: tuple[str, ...] = (SLASH,)
    if attended:
        marks = (SLASH, SHELL)

    if words.startswith(tuple(mark * 2 for mark in marks)):
        return words[1:]

    if words.startswith(marks):
        return None

    return line


def run_command(turns: Turns, line: str) -> CommandAnswer | ToolError:
    """Run the command of a line; NOT_FOUND names the closest command, INVALID_ARGUMENT its arguments."""
    if line.lstrip().startswith(SHELL):
        return run_shell(turns, line.lstrip()[1:])

    name, *words = line.split()
    command = COMMANDS.get(name.casefold())

    if command is None:
        meant: Sequence[str] = ()
        if name != SLASH:
            meant = closest_names(name, COMMANDS, 1)

        remedy = "/help lists them."
        if meant:
            remedy = f"Did you mean {meant[0]}?"

        message = f"There is no command {_quoted(name)}. {remedy} With another / before it the line goes to the model."

        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=tuple(meant))

    if words and not command.arguments:
        return invalid(f"{command.name} takes no arguments, and there is '{_quoted(words[0])}'.")

    return command.run(turns, words)


def _quoted(word: str) -> str:
    return one_line(word, 60)


def _or_default(value: Value | ToolError, default: Value) -> Value | ToolError:
    """The value; `default` before the first turn, when the store has no run yet."""
    if isinstance(value, ToolError) and value.code is ToolErrorCode.NOT_FOUND:
        return default

    return value


# --- The commands


def _undo(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    run = turns.session.thread_id
    root = turns.context.workspace
    if len(words) > 1 or not all(word.isdecimal() and word.isascii() and len(word) < 10 for word in words):
        return invalid(f"/undo takes the number of a step, as `mendgraph runs show {run[:8]}` lists them.")
    if isinstance(steps := _or_default(steps_of(run, root), ()), ToolError):
        return steps

    if words:
        first: int | None = int(words[0])
    else:
        first = first_step_of_last_change(steps)

    turns.use(turns.context)  # a turn that waits for approval locks the workspace
    restored: Restored | ToolError = Restored()
    if first is not None:
        restored = _or_default(undo_run(run, root, from_step=first), Restored())

    if isinstance(restored, ToolError):
        return restored

    paths = ", ".join([file.path for file in restored.files])
    note = ""
    if paths:
        note = f"(I took back your changes of these files, so look at them anew: {paths}.)"

    lines = restored_lines(restored) or [Line(NOTHING_TO_UNDO)]
    return CommandAnswer(lines, {"undo": restored_object(restored)}, note=note)


def first_step_of_last_change(steps: Sequence[RunStep]) -> int | None:
    """The number of the first step of the newest turn with changes that are not undone, None without any."""
    newest = next((step for step in reversed(steps) if step.changed), None)
    if newest is None:
        return None

    return min(step.number for step in steps if step.turn == newest.turn and step.number)


def _diff(turns: Turns, _: Sequence[str]) -> CommandAnswer | ToolError:
    diffs = _or_default(run_diffs(turns.session.thread_id, turns.context.workspace), ())
    scrub = turns.session.scrub
    if isinstance(diffs, ToolError):
        return diffs

    lines: list[Line] = []
    for diff in diffs:
        lines += _diff_of_file(diff, scrub)

    lines = lines or [Line("no file is changed")]
    return CommandAnswer(lines, {"diff": [{**asdict(diff), "diff": scrub(diff.diff)} for diff in diffs]})


def _diff_of_file(diff: RunDiff, scrub: Callable[[str], str]) -> Sequence[Line]:
    lines = []
    if diff.changed_since:
        lines.append(Line(f"{one_line(diff.path)} was changed since by somebody else; both are shown", "yellow"))

    if diff.problem:
        lines.append(Line(one_line(f"{diff.path}: {diff.problem}", 500), "yellow"))

    if diff.diff:
        lines += diff_lines([scrub(diff.diff)])

    return lines


def _usage(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    usage, lines = turns.usage()
    return CommandAnswer(lines, {"usage": usage})


def _plan(turns: Turns, _: Sequence[str]) -> CommandAnswer | ToolError:
    plan = _or_default(run_plan(turns.session.thread_id, turns.context.workspace), Plan())
    if isinstance(plan, ToolError):
        return plan

    lines = [Line(f"{_MARKS[step.status]} {one_line(step.title)}") for step in plan.steps]
    lines = lines or [Line("there is no plan: the model has made none")]
    return CommandAnswer(lines, {"plan": plan.model_dump(mode="json")})


def _model(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    if len(words) > 1:
        return invalid(f"/model takes one name, and there is '{_quoted(words[1])}' as well.")

    context = turns.context
    if words:
        update: dict[str, str | None] = {"model": words[0]}
        if _package_of(words[0]) != _package_of(context.model or ""):  # the address is that of another provider
            update["base_url"] = None

        context = context.model_copy(update=update)

    endpoint = find_endpoint(context.model, context.base_url, turns.setup.environment)
    problem = _problem(context, endpoint)
    if isinstance(endpoint, ProviderFailure) or (words and problem):
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=one_line(problem, 500))

    if words:
        turns.use(context)

    address = _address(endpoint.base_url)
    label = endpoint.full_name or "the one that the endpoint serves"
    if address:
        label += f" at {address}"
    if endpoint.embedded:
        label = f"local ({embedded_weights().model}, on this machine)"
    if words:
        label += ", from the next turn on"

    value = {"model": endpoint.full_name or None, "base_url": address, "embedded": endpoint.embedded}
    return CommandAnswer([Line(one_line(f"model: {label}", 500))], {"model": value})


def _mode(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    context = turns.context
    modes = SETTINGS["mode"].trust
    if len(words) > 1 or not set(words) <= {*modes}:
        return invalid(f"/mode takes one of {', '.join(map(str, modes))}.")

    if words:
        turns.use(context.model_copy(update={"mode": words[0]}))

    mode = turns.context.mode
    line = f"mode: {mode}"
    if words:
        line += ", from the next turn on"

    return CommandAnswer([Line(line)], {"mode": {"mode": mode}})


def _add(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    """Name the file in the next request, whose turn reads it under the rules of guard."""
    context = turns.context
    path = " ".join(words).removeprefix("@").removeprefix("./")
    if not path:
        return invalid("/add takes the name of a file: /add README.md")

    rules = (*DEFAULT_GUARDRAIL_RULES, *denied_rules(context.denied_paths))
    files = judged_workspace(context.workspace, rules, allowed_extensions=frozenset(context.allowed_extensions))
    if isinstance(file := files.read_file(path), ToolError):
        return file

    line = Line(one_line(f"{path} ({len(file.data):,} bytes) is read with the next request", 500))
    return CommandAnswer([line], {"add": {"path": path}}, note=f"(Read './{path}' first.)")


def _clear(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    turns.use(turns.context, anew=True)
    line = Line("a new conversation begins; `mendgraph runs` lists the one before")
    return CommandAnswer([line], {"clear": {"thread_id": turns.session.thread_id}})


def run_shell(turns: Turns, command: str) -> CommandAnswer | ToolError:
    """Run a person's command in their shell, in the workspace, without input, until it ends or Ctrl-C.

    Its output is shown at once; the last 8,000 characters are sent with the next request, without known secrets.
    """
    if not command.strip():
        return invalid("! takes a command of your shell: !git status")

    environment = turns.setup.environment
    screen = turns.setup.display.out
    shell = environment.get("SHELL") or "/bin/sh"
    process = start_process([shell, "-c", command], cwd=turns.context.workspace, env=environment)

    if isinstance(process, ToolError):
        return process

    decode = getincrementaldecoder("utf-8")("replace").decode
    printed = ""

    def take(chunk: bytes) -> bool:
        nonlocal printed
        text = decode(chunk)
        printed = (printed + text)[-8_000:]
        screen.write(text)

        return True

    ended = ""

    with process:
        try:
            read_until(process, dict.fromkeys(outputs(process), take), float("inf"))
        except KeyboardInterrupt:  # SIGTERM ends the chat as well
            take(b"\n")  # the terminal has echoed ^C
            ended = "stopped by you (Ctrl-C)"
        finally:
            kill_group(process)

    ended = ended or f"exit code {process.returncode}"
    note = f"(I ran `{command.strip()}`, {ended}. It printed, at its end:\n{printed.strip()}\n)"
    return CommandAnswer([Line(f"{ended}; the next request tells the model", "dim")], note=note)


def _package_of(model: str) -> str:
    """The provider whose package makes the calls to this model; "" at an OpenAI-compatible endpoint."""
    provider, _ = split_provider(model)
    if provider == "openai":
        return ""

    return provider


def _problem(context: AgentContext, endpoint: Endpoint | ProviderFailure) -> str:
    """Why the chat cannot continue with this model, "" where no reason is known."""
    if isinstance(endpoint, ProviderFailure):
        return endpoint.message
    if endpoint.embedded and weights_status().state is not WeightsState.READY:
        return "The embedded model is not on this machine: `mendgraph model pull` fetches it. The model stays as it is."

    models = models_in_order(context.model, context.base_url, context.fallback_models)
    if isinstance(models, str):
        return models

    return ""


def _address(url: str) -> str:
    """The address without user, password and query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _help(_: Turns, __: Sequence[str]) -> CommandAnswer:
    width = terminal_width() or 80
    lines = []
    value = []

    for command in COMMANDS.values():
        indent = f"{command.usage:<16}"
        lines += textwrap.wrap(command.help, width, initial_indent=indent, subsequent_indent=" " * 16)
        value.append({"name": command.name, "usage": command.usage, "help": command.help})

    lines.append("")
    for hint in KEYS:
        lines += textwrap.wrap(hint, width, subsequent_indent="  ")

    return CommandAnswer([Line(line) for line in lines], {"help": value})


KEYS: Final = (
    "Enter sends; Alt-Enter, Ctrl-J or \\ before Enter begins a new line. Pasted lines are one request.",
    "Tab completes commands and names of files; after @ it offers them by itself.",
    "Up and Down bring back earlier requests; Ctrl-R searches them.",
    "Ctrl-C clears the line; pressed again, or Ctrl-D, it leaves. During a turn it stops the turn.",
    "! runs the rest in your shell, in this folder. A request that begins with / or ! needs another one before it.",
)
"""The keys of `mendgraph.graph.terminal.prompt_input`."""


def _exit(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    return CommandAnswer(value={"exit": {"thread_id": turns.session.thread_id}}, leave=True)


COMMANDS: Final[Mapping[str, SlashCommand]] = {
    command.name: command
    for command in (
        SlashCommand("/add", "FILE", "read a file with the next request", _add),
        SlashCommand("/diff", "", "what this run has changed in files", _diff),
        SlashCommand("/undo", "[STEP]", "take back the last changes of files, or those from a step on", _undo),
        SlashCommand("/mode", "[MODE]", "read-only, ask or auto, from the next turn on", _mode),
        SlashCommand("/model", "[NAME]", "which model answers, or another one from the next turn on", _model),
        SlashCommand("/clear", "", "begin a new conversation", _clear),
        SlashCommand("/usage", "", "calls, tokens and cost so far", _usage),
        SlashCommand("/help", "", "this list", _help),
        SlashCommand("/plan", "", "the plan of the model", _plan),
        SlashCommand("/exit", "", "leave", _exit),
        SlashCommand("/quit", "", "leave", _exit),
    )
}
"""The commands by their names, in the order of `/help`."""


OpenPrompt = Callable[[Turns, Display], ReadLine]
"""Opens the prompt of a chat at a terminal for its turns."""

MOST_NAMES: Final = 20_000
"""Most names of a workspace that completion reads."""


def prompt_for(setup: Setup, *streams: IO[str]) -> OpenPrompt | None:
    """The function that opens a prompt where these streams are a terminal that can move its cursor, or else None."""
    simple = setup.display.as_json or setup.environment.get("TERM") in {"dumb", "unknown"}
    if simple or not all(stream.isatty() for stream in streams):
        return None

    return terminal_prompt


def terminal_prompt(turns: Turns, display: Display) -> ReadLine:
    """A prompt with the history of the workspace's chats; a history that cannot be stored is reported once."""
    from mendgraph.graph.terminal.prompt_input import ChatCompleter, PromptInput

    root = turns.context.workspace
    colours = not turns.setup.environment.get("NO_COLOR")
    history = RequestHistory(root)
    history.load()  # before the prompt, which a message would garble
    commands = {name: command.help for name, command in COMMANDS.items()}
    ask = PromptInput(
        history, turns.session.scrub, ChatCompleter(commands, partial(_files, turns.context)), colours=colours
    )
    notices: list[str] = []
    display.out.line(f"mendgraph chat in {one_line(root)}; /help lists the commands", "dim")

    def read(prompt: str) -> str:
        if history.problem and not notices:
            notices.append(history.problem)
            display.err.line(f"mendgraph: requests are not kept for the next chat: {history.problem}")

        display.out.line("")
        return ask(prompt)

    return read


def chat(setup: Setup, open_prompt: OpenPrompt | None = None) -> ExitCode:
    """Take requests until the input ends, `/exit`, Ctrl-C at the prompt, or SIGTERM; then show the usage.

    A line that begins with "/" is a command; see `as_request`. Without `open_prompt` the setup reads the lines.
    Source of `/usage`: spec 1 section 6.
    """
    prompt = "You: "
    if setup.display.as_json:
        prompt = ""

    with Turns(setup) as turns:
        if open_prompt is None:
            read = setup.next_line
        else:
            read = open_prompt(turns, setup.display)

        notes = ""

        while not turns.terminated:
            try:
                line = read(prompt)
            except (EOFError, KeyboardInterrupt):
                break

            request = as_request(line, attended=setup.ask is not None)
            if request is None:
                thread = turns.session.thread_id
                answer = run_command(turns, line)
                _show(setup.display, answer)
                if turns.session.thread_id != thread:
                    notes = ""

                if isinstance(answer, CommandAnswer):
                    if answer.note and answer.note not in notes:
                        notes += f"{answer.note}\n\n"
                    if answer.leave:
                        break
            elif request.strip():
                turns.take(notes + request)
                notes = ""

        turns.show_chat()
        if turns.terminated:
            return ExitCode.TERMINATED

        return ExitCode.FINISHED


def _show(display: Display, answer: CommandAnswer | ToolError) -> None:
    if isinstance(answer, ToolError):
        message, named = refusal_words(answer)
        for line in (f"mendgraph: {message}", *named):
            display.err.line(line)

        if display.as_json:
            display.write_object("error", {"error": {**answer.as_map(), "message": message}})
    elif not display.as_json:
        for line_shown in answer.lines:
            display.out.line(*line_shown)
    else:
        for event in answer.value:  # its only key
            display.write_object(event, dict(answer.value))


def _files(context: AgentContext) -> list[str]:
    """The files of the workspace that may be named to a model, without what git ignores."""
    files = judged_workspace(context.workspace, (*DEFAULT_GUARDRAIL_RULES, *denied_rules(context.denied_paths)))
    entries = islice(files.walk(), MOST_NAMES)
    return [entry.path for entry in entries if entry.kind == "file" and files.denied(entry.path) is None]
