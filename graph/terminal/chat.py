"""A chat at the terminal: requests and slash commands, line by line, until the input ends."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import IO, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.permissions import list_permissions
from mendgraph.graph.fleet.unattended import commit_run
from mendgraph.graph.machine.workspace import file_rules, judged_workspace
from mendgraph.graph.runs.command_files import call_file, listed_files
from mendgraph.graph.runs.images import Image, images_in
from mendgraph.graph.runs.runs import (
    RunState,
    RunStep,
    get_run,
    run_diffs,
    run_permissions,
    run_plan,
    steps_of,
    undo_run,
)
from mendgraph.graph.terminal.approval import ReadLine
from mendgraph.graph.terminal.outcome_lines import diff_lines
from mendgraph.graph.terminal.output import Line, terminal_width
from mendgraph.graph.terminal.process_end import ExitCode, RefusedError, refusal_words
from mendgraph.graph.terminal.run_commands import NOTHING_TO_UNDO, restored_lines, restored_object, write_report
from mendgraph.graph.terminal.screen import Display
from mendgraph.graph.terminal.turns import Setup, Turns
from mendgraph.graph.terminal.unattended_output import commit_message
from mendgraph.nodes.call_model.endpoint import Endpoint, address_for, find_endpoint, models_in_order
from mendgraph.nodes.call_model.weights import WeightsState, embedded_weights, weights_status
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.prompt_files import PromptFile
from mendgraph.nodes.records import Plan, PlanStatus, ProviderFailure, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.journal.restoring import Restored
from mendgraph.nodes.workspace.store.user_files import RequestHistory

Value = TypeVar("Value")

SLASH: Final = "/"

_MARKS: Final = {PlanStatus.DONE: "[x]", PlanStatus.IN_PROGRESS: "[>]", PlanStatus.PENDING: "[ ]"}


class CommandAnswer(NamedTuple):
    """The output of a command: `lines` for a person, `value` for a program. `leave` ends the chat.

    `note` is for the model, and is sent with the next request. `request` is sent at once, with its `images`.
    """

    lines: Sequence[Line] = ()
    value: Mapping[str, object] = {}
    note: str = ""
    leave: bool = False
    request: str = ""
    images: tuple[bytes, ...] = ()


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


def as_request(line: str) -> str | None:
    """Return the request to the model in this line, None for a command. A second "/" makes it a request."""
    words = line.lstrip()
    if words.startswith(SLASH * 2):
        return words[1:]
    if words.startswith(SLASH):
        return None

    return line


def run_command(turns: Turns, line: str) -> CommandAnswer | ToolError:
    """Run the command of a line; NOT_FOUND names the closest command, INVALID_ARGUMENT its arguments."""
    name, *words = line.split()
    command = COMMANDS.get(name.casefold())

    if command is None:
        context = turns.context
        called = call_file(line, context.workspace, context.denied_paths, COMMANDS, turns.setup.prompts)
        if isinstance(called, ToolError):
            return called

        return CommandAnswer([Line(called.words, "dim")], request=called.request, images=called.images)

    if words and not command.arguments:
        return invalid(f"{command.name} takes no arguments, and there is '{_quoted(words[0])}'.")

    try:
        return command.run(turns, words)
    except RefusedError as refusal:
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=refusal.message)


def _quoted(word: str) -> str:
    return one_line(word, 60)


def _or_default(value: Value | ToolError, default: Value) -> Value | ToolError:
    """Return the value, or `default` before the first turn, when the store has no run yet."""
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

    first = _first_step_of_last_change(steps)
    if words:
        first = int(words[0])

    turns.use(turns.context)  # a turn that waits for approval locks the workspace
    restored: Restored | ToolError = Restored()
    if first is not None:
        restored = _or_default(undo_run(run, root, from_step=first), Restored())

    if isinstance(restored, ToolError):
        return restored

    paths = ", ".join([file.path for file in restored.files])
    note = ""
    if paths:
        note = f"(I took back your changes of these files, so read them again: {paths}.)"

    lines = restored_lines(restored) or [Line(NOTHING_TO_UNDO)]
    return CommandAnswer(lines, {"undo": restored_object(restored)}, note=note)


def _first_step_of_last_change(steps: Sequence[RunStep]) -> int | None:
    """Return the first step of the newest turn with changes that are not undone, or None."""
    newest = next((step for step in reversed(steps) if step.changed), None)
    if newest is None:
        return None

    return min((step.number for step in steps if step.turn == newest.turn and step.number), default=None)


def _diff(turns: Turns, _: Sequence[str]) -> CommandAnswer | ToolError:
    diffs = _or_default(run_diffs(turns.session.thread_id, turns.context.workspace), ())
    if isinstance(diffs, ToolError):
        return diffs

    lines: list[Line] = []
    values = []
    for file in diffs:
        text = turns.session.scrub(file.diff)
        values.append({**asdict(file), "diff": text})

        if file.changed_since:
            text_line = f"somebody else has changed {one_line(file.path)} since; the diff includes those changes"
            lines.append(Line(text_line, "yellow"))
        if file.problem:
            lines.append(Line(one_line(f"{file.path}: {file.problem}", 500), "yellow"))
        if text:
            lines += diff_lines([text])

    return CommandAnswer(lines or [Line("no file is changed")], {"diff": values})


def _usage(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    usage, lines = turns.usage()
    return CommandAnswer(lines, {"usage": usage})


def _plan(turns: Turns, _: Sequence[str]) -> CommandAnswer | ToolError:
    plan = _or_default(run_plan(turns.session.thread_id, turns.context.workspace), Plan())
    if isinstance(plan, ToolError):
        return plan

    lines = [Line(f"{_MARKS[step.status]} {one_line(step.title)}") for step in plan.steps]
    lines = lines or [Line("there is no plan: the model has not made one")]
    return CommandAnswer(lines, {"plan": plan.model_dump(mode="json")})


def _model(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    if len(words) > 1:
        return invalid(f"/model takes one name, and there is '{_quoted(words[1])}' as well.")

    context = turns.context
    if words:
        base_url = address_for(words[0], context.model, context.base_url)
        context = context.model_copy(update={"model": words[0], "base_url": base_url})

    endpoint = find_endpoint(context.model, context.base_url, turns.setup.environment)
    if isinstance(endpoint, ProviderFailure):
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=one_line(endpoint.message, 500))

    if words:
        problem = _model_problem(context, endpoint)
        if problem:
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=one_line(problem, 500))

        turns.use(context)

    parts = urlsplit(endpoint.base_url)
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()  # without secrets
    label = endpoint.full_name or "the one that the endpoint serves"
    if address:
        label += f" at {address}"
    if endpoint.embedded:
        label = f"local ({embedded_weights().model}, on this machine)"

    value = {"model": endpoint.full_name or None, "base_url": address, "embedded": endpoint.embedded}
    return CommandAnswer([_setting_line("model", label, changed=bool(words))], {"model": value})


def _model_problem(context: AgentContext, endpoint: Endpoint) -> str:
    """Return why the chat cannot continue with this model, "" if no reason is known."""
    if endpoint.embedded and weights_status().state is not WeightsState.READY:
        return "The embedded model is not on this machine: `mendgraph model pull` downloads it. The model is unchanged."

    models = models_in_order(context.model, context.base_url, context.fallback_models)
    if isinstance(models, str):
        return models

    return ""


def _setting_line(name: str, value: str, *, changed: bool) -> Line:
    text = f"{name}: {value}"
    if changed:
        text += ", from the next turn on"

    return Line(one_line(text, 500))


def _mode(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    context = turns.context
    modes = SETTINGS["mode"].trust
    if len(words) > 1 or not set(words) <= {*modes}:
        return invalid(f"/mode takes one of {', '.join(map(str, modes))}.")

    if words:
        turns.use(context.model_copy(update={"mode": words[0]}))

    mode = turns.context.mode
    return CommandAnswer([_setting_line("mode", mode, changed=bool(words))], {"mode": {"mode": mode}})


def _compact(turns: Turns, _: Sequence[str]) -> CommandAnswer | ToolError:
    problem = turns.compact()
    if problem:
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=problem)

    return CommandAnswer(value={"compact": {"compactions": turns.account.as_map()["compactions"]}})


def _commit(turns: Turns, words: Sequence[str]) -> CommandAnswer | ToolError:
    run = turns.session.thread_id
    root = turns.context.workspace
    record = _or_default(get_run(run, root), None)
    if record is None:
        return CommandAnswer([Line("there is nothing to commit")], {"commit": {"commit": ""}})
    if isinstance(record, ToolError):
        return record

    message = " ".join(words)
    if not message:
        if record.standing in {RunState.WORKING, RunState.ASKS, RunState.CUT_OFF, RunState.FORKED}:
            problem = "The last turn has not ended: resume it (`mendgraph resume`), or use /commit MESSAGE."
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=problem)

        models = dict.fromkeys(payment.model for payment in turns.account.paid)
        message = commit_message(record.request, turns.session.result(), [*models])

    committed = commit_run(root, run, turns.session.scrub(message))
    if isinstance(committed, ToolError):
        return committed

    return CommandAnswer([Line(one_line(committed.message, 1_000))], {"commit": {"commit": committed.commit}})


def _report(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    value, line = write_report(turns.session.thread_id, turns.context.workspace)
    return CommandAnswer([line], {"report": value})


def _permissions(turns: Turns, _: Sequence[str]) -> CommandAnswer | ToolError:
    root = turns.context.workspace
    of_run = _or_default(run_permissions(turns.session.thread_id, root), ())
    lasting = list_permissions(root)
    if isinstance(of_run, ToolError):
        return of_run
    if isinstance(lasting, ToolError):
        return lasting

    lines = [Line(one_line(f"{permission.allows}, in this run", 500)) for permission in of_run]
    lines += [Line(one_line(f"{permission.allows}, in this folder ({permission.id})", 500)) for permission in lasting]
    if lasting:
        lines.append(Line("`mendgraph permissions remove ID` removes one of this folder"))

    values = [{"id": permission.id, **permission.model_dump(mode="json")} for permission in (*of_run, *lasting)]
    return CommandAnswer(lines or [Line("nothing is allowed beyond the mode")], {"permissions": values})


def _clear(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    turns.use(turns.context, anew=True)
    line = Line("started a new conversation; `mendgraph runs` lists the previous one")
    return CommandAnswer([line], {"clear": {"thread_id": turns.session.thread_id}})


def _help(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    width = terminal_width() or 80
    rows = [(command.name, command.usage, command.help) for command in COMMANDS.values()]
    files = listed_files(turns.context.workspace, turns.context.denied_paths, COMMANDS)
    for file in [*files, *_listed_prompts(turns)]:
        about = f"{one_line(file.description, 500)} ({one_line(file.path)})"
        rows.append((f"/{file.name}", one_line(file.usage), about))

    lines = []
    value = []

    for name, usage, about in rows:
        indent = f"{usage:<17} "
        lines += textwrap.wrap(about, width, initial_indent=indent, subsequent_indent=" " * 18)
        value.append({"name": name, "usage": usage, "help": about})

    lines.append("")
    for hint in KEYS:
        lines += textwrap.wrap(hint, width, subsequent_indent="  ")

    return CommandAnswer([Line(line) for line in lines], {"help": value})


def _listed_prompts(turns: Turns, wait_s: float | None = None) -> list[PromptFile]:
    return turns.setup.prompts.commands(wait_s) if turns.setup.prompts else []


KEYS: Final = (
    "Enter sends; Alt-Enter, Ctrl-J or \\ before Enter starts a new line. Pasted lines are one request.",
    "Tab completes commands and file names; after @ file names are offered as you type.",
    "The model sees an image that you name with @, as @picture.png, or whose path you paste.",
    "Up and Down bring back earlier requests; Ctrl-R searches them.",
    "Ctrl-C clears the line; pressed again, or Ctrl-D, it leaves. During a turn it stops the turn.",
    "What you type during a turn, and send with Enter, reaches the model after the running step.",
    "A command that you type during a turn waits for the prompt.",
    "To send a request that begins with /, write // instead.",
)
"""The keys of `mendgraph.graph.terminal.prompt_input`."""


def _exit(turns: Turns, _: Sequence[str]) -> CommandAnswer:
    return CommandAnswer(value={"exit": {"thread_id": turns.session.thread_id}}, leave=True)


COMMANDS: Final[Mapping[str, SlashCommand]] = {
    command.name: command
    for command in (
        SlashCommand("/diff", "", "show the changes of this run", _diff),
        SlashCommand("/undo", "[STEP]", "undo the last turn's changes, or those from a step on", _undo),
        SlashCommand("/mode", "[MODE]", "show the mode, or change it for the next turns", _mode),
        SlashCommand("/model", "[NAME]", "show the model, or change it for the next turns", _model),
        SlashCommand("/compact", "", "replace the conversation with a summary", _compact),
        SlashCommand("/permissions", "", "show what you have allowed in this run and this folder", _permissions),
        SlashCommand("/commit", "[MESSAGE]", "commit the changes of this chat", _commit),
        SlashCommand("/report", "", "write the report of this chat", _report),
        SlashCommand("/clear", "", "start a new conversation", _clear),
        SlashCommand("/usage", "", "show calls, tokens and cost", _usage),
        SlashCommand("/help", "", "show this list", _help),
        SlashCommand("/plan", "", "show the model's plan", _plan),
        SlashCommand("/exit", "", "leave", _exit),
        SlashCommand("/quit", "", "leave", _exit),
    )
}
"""The commands by their names, in the order of `/help`."""


OpenPrompt = Callable[[Turns, Display], ReadLine]
"""Opens the prompt of a chat at a terminal."""

MENU_S: Final = 1.0
"""Seconds that the menu of commands waits for the prompts of slow servers; after Enter, the prompt waits as long."""

MOST_NAMES: Final = 20_000
"""Most files of a workspace that completion reads."""


def prompt_for(setup: Setup, *streams: IO[str]) -> OpenPrompt | None:
    """Return the function that opens a prompt if these streams are a terminal that can move its cursor, or None."""
    simple = setup.display.as_json or setup.environment.get("TERM") in {"dumb", "unknown"}
    if simple or not all(stream.isatty() for stream in streams):
        return None

    return terminal_prompt


def terminal_prompt(turns: Turns, display: Display) -> ReadLine:
    """Open a prompt with the history of the workspace's chats; a history that cannot be stored is reported once."""
    from mendgraph.graph.terminal.prompt_input import ChatCompleter, PromptInput

    root = turns.context.workspace
    colours = not turns.setup.environment.get("NO_COLOR")
    history = RequestHistory(root)
    history.load()  # before the prompt, which a message would garble
    names = {name: command.help for name, command in COMMANDS.items()}
    files = listed_files(root, turns.context.denied_paths, COMMANDS)

    def commands() -> Mapping[str, str]:
        for file in [*files, *_listed_prompts(turns, MENU_S)]:
            names[f"/{file.name}"] = one_line(file.description)

        return names

    ask = PromptInput(
        history, turns.session.scrub, ChatCompleter(commands, partial(_files, turns.context)), colours=colours
    )
    notices: list[str] = []
    continued = turns.continued_run()
    if continued:
        continued = f", {continued}"

    display.out.line(f"mendgraph chat in {one_line(root)}{continued}; /help lists the commands", "dim")

    def read(prompt: str) -> str:
        if history.problem and not notices:
            notices.append(history.problem)
            display.err.line(f"mendgraph: requests are not kept for the next chat: {history.problem}")

        display.out.line("")
        return ask(prompt, turns.unsent())

    return read


def chat(setup: Setup, open_prompt: OpenPrompt | None = None) -> ExitCode:
    """Take requests until the input ends, `/exit`, Ctrl-C at the prompt, or SIGTERM; then show the usage.

    A line that begins with "/" is a command. Without `open_prompt` the setup reads the lines.
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

        if turns.continued_run() and turns.asks:
            turns.take_up()

        _take_lines(turns, partial(read, prompt))
        turns.show_chat()

        return ExitCode.TERMINATED if turns.terminated else ExitCode.FINISHED


def _take_lines(turns: Turns, read: Callable[[], str]) -> None:
    """Take requests and commands until one of them or the input ends the chat."""
    notes = ""

    while not turns.terminated:
        try:
            line = read()
        except (EOFError, KeyboardInterrupt):
            return

        images: list[Image] = [*images_in(line, turns.context.workspace)]
        request = as_request(line)
        if request is None:
            thread = turns.session.thread_id
            answer = run_command(turns, line)
            _show(turns.setup.display, answer)
            if turns.session.thread_id != thread:
                notes = ""

            if isinstance(answer, CommandAnswer):
                if answer.note and answer.note not in notes:
                    notes += f"{answer.note}\n\n"
                if answer.leave:
                    return

                request = answer.request
                images += answer.images

        if request and request.strip():
            turns.take(notes + request, images)
            notes = ""


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
    """Return the files of the workspace that a model may read, without ignored ones."""
    files = judged_workspace(context.workspace, file_rules(context.denied_paths))
    entries = islice(files.walk(), MOST_NAMES)
    return [entry.path for entry in entries if entry.kind == "file" and files.denied(entry.path) is None]
