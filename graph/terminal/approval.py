"""Asks a person at the terminal what the model asks, or whether calls may run: a preview of each, then one question.

The content of a call is shown behind a bar, in lines that fit, so that it cannot look like a question of this program.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import termios
import textwrap
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from rich.cells import chop_cells

from mendgraph.graph.terminal.outcome_lines import diff_lines
from mendgraph.graph.terminal.output import LONGEST_LINE, Line, Screen
from mendgraph.nodes.guard.approval_formats import (
    Action,
    ApprovalAnswer,
    AskedCall,
    CallDecision,
    hunk_texts,
    is_about_limit,
    is_question,
)
from mendgraph.nodes.guard.approvals import like_before
from mendgraph.nodes.language.display import one_line, plain, target_of, without_middle

ReadLine = Callable[[str], str]
"""Shows a prompt and returns the line; raises EOFError at the end of the input."""

EditText = Callable[[str], str | None]
"""Lets a person edit a text and returns it; None if they cancel, or there is no editor."""

HELP: Final = {
    "y": "run this call",
    "p": "run it, and in this run all commands that begin with the same words",
    "a": "run it, and all calls like it in this run",
    "w": "run it, and all calls like it in this folder, also in later runs; see `mendgraph permissions`",
    "h": "choose which hunks of the diff are written; the model is told which are not",
    "e": "change its arguments; the changed call is checked again",
    "n": "do not run it; the model reads the reason that you type",
    "s": "stop the run; no call of this reply runs",
    "v": "show all of its arguments",
}
"""What each key does."""
_HUNK_HELP: Final = "y  write this hunk; n  do not write it; q  write none of the rest"
_CHOICES: Final = "[y]es, {}[e]dit, [n]o, [s]top, [v]iew, [?]"
_LASTING: Final = {
    "p": ("approve_prefix", "all that begin with this [p]refix, "),
    "a": ("approve_for_run", "[a]ll like this in this run, "),
    "w": ("approve_always", "al[w]ays in this folder, "),
}
"""The answers that allow more than the call: the action of each, and its words in the question."""
_PLAIN: Final[Mapping[str, Action]] = {"y": "approve", "yes": "approve", "s": "stop", "stop": "stop"}

_BAR: Final = "│ "
_NARROWEST: Final = 20
_LONGEST_COMMAND: Final = 200
_LONGEST_KEY: Final = 1_000  # bytes: what is pasted comes at once
_MOST_TRIES: Final = 50
"""Unknown answers to one question, after which the call is rejected."""


def ask_person(
    request: Mapping[str, Any],
    screen: Screen,
    read_line: ReadLine | None,
    edit_text: EditText | None = None,
    *,
    read_key: ReadLine | None = None,
    width: int = 80,
) -> ApprovalAnswer:
    """Return the decisions on an approval request, call by call, for `Session.answer`.

    The end of the input rejects; without `read_line` nobody can be asked. `read_key` answers with one key, without it a
    line does. Without `edit_text` arguments cannot be edited. Lines are cut to `width` columns.
    """
    calls: list[AskedCall] = request["calls"]
    if read_line is None:
        return ApprovalAnswer(decisions={str(call["index"]): CallDecision(action="nobody") for call in calls})

    decisions = Decisions()

    for number, call in enumerate(calls, start=1):
        place = ""
        if len(calls) > 1:
            place = f" ({number} of {len(calls)})"

        question = _Question(call, screen, read_key or read_line, read_line, edit_text, max(width, _NARROWEST))
        for line in question.preview(place):
            screen.line(*line)

        action = decisions.allowed_before(call)
        if is_question(call):
            decision = question.answer()
        elif is_about_limit(call):
            decision = question.raise_limit()
        elif action is None:
            decision = question.ask()
        else:
            screen.line("  allowed: like the one before", "green")
            decision = CallDecision(action=action)

        if not decisions.add(call, decision):
            break

    return decisions.answer()


class Decisions:
    """The decisions on one approval request, call by call."""

    def __init__(self) -> None:
        self._decisions: dict[str, CallDecision] = {}
        self._actions: list[tuple[AskedCall, Action]] = []

    def allowed_before(self, call: AskedCall) -> Action | None:
        """Return the action of an earlier call of this request that allows this one as well, or None."""
        return like_before(call, self._actions)

    def add(self, call: AskedCall, decision: CallDecision) -> bool:
        """Add a decision; return whether the next call needs one. A call without a decision does not run."""
        self._actions.append((call, decision["action"]))
        self._decisions[str(call["index"])] = CallDecision(**{**decision, "digest": call["digest"]})
        return decision["action"] != "stop"

    def answer(self) -> ApprovalAnswer:
        """The answer for `Session.answer`."""
        return ApprovalAnswer(decisions=self._decisions)


@dataclass(frozen=True)
class _Question:
    call: AskedCall
    screen: Screen
    read_key: ReadLine
    read_line: ReadLine
    edit_text: EditText | None
    width: int

    @property
    def name(self) -> str:
        """The tool and its target; a command as a shell would quote it."""
        preview = self.call["preview"]
        if preview["kind"] == "argv":
            return without_middle(one_line(f"{self.call['tool']} {preview['text']}", LONGEST_LINE), _LONGEST_COMMAND)

        return one_line(f"{self.call['tool']} {self.call['path'] or target_of(self.call['arguments'])}")

    def preview(self, place: str) -> Iterator[Line]:
        """Yield what the call would do, and the rule that asks."""
        rule = self.call["rule"]
        if self.call.get("why"):
            rule += f" ({self.call['why']})"

        title = f"? {self.name}{place}: {one_line(rule)}"
        if is_question(self.call):
            title = f"? The model asks{place}:"
        elif is_about_limit(self.call):
            title = "? A limit is reached:"

        yield from self._fitted(Line(title, "bold yellow"), "")
        preview = self.call["preview"]
        text = plain(preview["text"])

        if preview["kind"] == "diff":
            yield from self._diff(text)
        else:
            for part in text.split("\n"):
                yield from self._fitted(Line(part))

        if preview["truncated"]:
            yield from self._fitted(Line("this is not all of it: v shows all arguments", "bold yellow"), "")

    def ask(self) -> CallDecision:
        """Return the person's decision; the question is repeated after an unknown answer."""
        for _ in range(_MOST_TRIES):
            more = [words for answer, words in _LASTING.values() if answer in self.call["choices"]]
            if "hunks" in self.call:
                more.append("[h]unks, ")

            self._say(_CHOICES.format("".join(more)), "dim")

            try:
                reply = self.read_key(f"Allow {without_middle(self.name, self.width - 9)}? ").strip()
                decision = self._decision(reply)
            except EOFError:
                break

            if decision is not None:
                return decision

        return CallDecision(action="reject")

    def answer(self) -> CallDecision:
        """Return the person's answer to a question of the model: a choice by its number, or their words."""
        choices = self.call["arguments"].get("choices") or ()
        prompt = "Your answer (Enter: none)? "
        if choices:
            prompt = "Your answer (a number, or your own words; Enter: none)? "

        discard_typed_keys()
        try:
            reply = self.read_line(prompt).strip()
        except EOFError:
            return CallDecision(action="nobody")

        if reply.isdecimal() and 0 < int(reply) <= len(choices):
            reply = choices[int(reply) - 1]

        return CallDecision(action="answer", answer=reply)

    def raise_limit(self) -> CallDecision:
        """Return whether the limit is raised: to the proposal, or to a number that the person types."""
        (name,) = self.call["arguments"]
        for _ in range(_MOST_TRIES):
            self._say("[y]es, [e]dit the number, [n]o: the run stops", "dim")

            try:
                reply = self.read_key("Raise it? ").strip().lower()
                if reply in {"e", "edit"}:
                    reply = self.read_line(f"{name}? ").strip()
            except EOFError:
                break

            if reply in {"y", "yes"}:
                return CallDecision(action="approve")
            if reply in {"n", "no", "s", "stop"}:
                break

            with suppress(ValueError):
                return CallDecision(action="edit", arguments={name: float(reply.replace(",", ""))})

            self._say("Please answer with one of the letters, or with a number.")

        return CallDecision(action="stop")

    def _decision(self, reply: str) -> CallDecision | None:
        """Return the decision that a reply means, or None if the question has to be repeated."""
        word, _, argument = reply.partition(" ")
        if word.lower() in {*_LASTING, "all"} and not argument:
            return self._lasting(word[0].lower())
        if word.lower() in _PLAIN and not argument:
            return CallDecision(action=_PLAIN[word.lower()])

        match word.lower():
            case "h" | "hunks" if not argument:
                return self._hunks()
            case "e" | "edit" if not argument:
                return self._edited()
            case "n" | "no":
                return CallDecision(action="reject", reason=argument.strip() or self._reason())
            case "v" | "view" if not argument:
                for line in json.dumps(self.call["arguments"], indent=2, ensure_ascii=False).split("\n"):
                    self._say(line, bar=_BAR)
            case "?" | "help":
                self._explain()
            case _:
                self._say("Please answer with one of the letters; nothing has run.")

        return None

    def _explain(self) -> None:
        """Show what each offered key does, and what the lasting answers would allow."""
        lasting = {letter: action for letter, (action, _) in _LASTING.items() if action in self.call["choices"]}
        absent = _LASTING.keys() - lasting.keys()
        if "hunks" not in self.call:
            absent |= {"h"}

        for letter, text in HELP.items():
            if letter not in absent:
                self._say(f"{letter}  {text}")

        for letter, action in lasting.items():
            self._say(f"{letter} would allow: {one_line(self.call['choices'][action], LONGEST_LINE)}")

    def _lasting(self, letter: str) -> CallDecision | None:
        action = _LASTING[letter][0]
        if action in self.call["choices"]:
            return CallDecision(action=cast("Action", action))

        self._say("A call like this is asked about each time: answer y or n.")
        return None

    def _reason(self) -> str:
        try:
            return self.read_line("Why not (Enter: no reason)? ").strip()
        except EOFError:
            return ""

    def _hunks(self) -> CallDecision | None:
        """Return the approval of the hunks that the person chooses, as in `git add -p`; without any, a rejection."""
        if "hunks" not in self.call:
            self._say("This call has no hunks to choose from: answer y or n.")
            return None

        texts = hunk_texts(plain(self.call["preview"]["text"]))
        chosen: list[int] = []

        for number, text in enumerate(texts, start=1):
            for line in self._diff(text):
                self.screen.line(*line)

            key = self._hunk_key(f"Write hunk {number} of {len(texts)} [y,n,q,?]? ")
            if key == "y":
                chosen.append(number)
            if key == "q":
                break

        if chosen:
            return CallDecision(action="approve", hunks=chosen)
        return CallDecision(action="reject", reason=self._reason())

    def _hunk_key(self, prompt: str) -> str:
        for _ in range(_MOST_TRIES):
            key = self.read_key(prompt).strip().lower()
            if key in {"y", "n", "q"}:
                return key

            self._say(_HUNK_HELP)

        raise EOFError

    def _diff(self, text: str) -> Iterator[Line]:
        for line in diff_lines([text]):
            yield from self._fitted(line)

    def _edited(self) -> CallDecision | None:
        """Return the call with other arguments, or None if the person cancels."""
        text = None
        if self.edit_text is not None:
            text = self.edit_text(json.dumps(self.call["arguments"], indent=2, ensure_ascii=False))

        if text is None:
            self._say(
                "The text was not edited: the editor could not be started, or ended with an error."
                " VISUAL or EDITOR names it."
            )
            return None
        if not text.strip():
            return None

        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._say(f"This is not valid JSON: {one_line(str(error))}")
            return None

        if not isinstance(arguments, dict):
            self._say('This is not a JSON object, such as {"path": "a.py"}.')
            return None

        return CallDecision(action="edit", arguments=arguments)

    def _say(self, text: str, style: str = "", bar: str = "") -> None:
        for line in self._fitted(Line(text, style), bar):
            self.screen.line(*line)

    def _fitted(self, line: Line, bar: str = _BAR) -> Iterator[Line]:
        """Yield the line in pieces that fit: a line that a terminal wraps continues where questions begin."""
        text = plain(line.text).expandtabs(4)
        room = self.width - len(bar) - 1
        parts = [text]
        if not line.verbatim:
            parts = textwrap.wrap(text, room) or [""]

        for part in parts:
            for piece in chop_cells(part, room) or [""]:
                yield Line(bar + piece, line.style)


def read_key(prompt: str) -> str:
    """Ask on standard error for one key, or for a line if the input is no terminal.

    Keys from before the question are discarded.

    Raises:
        EOFError: the key is Ctrl-D, or nothing more comes.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        terminal = None

    if terminal is None:
        _write(prompt)
        return input()

    try:
        tty.setcbreak(terminal)  # before the question, as it discards the keys that were typed
        _write(prompt)
        key = os.read(terminal, _LONGEST_KEY).decode(errors="replace")
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    _write(f"{plain(key.strip())}\n")
    if key in {"", "\x04"}:
        raise EOFError

    return key


def discard_typed_keys() -> None:
    """Discard what was typed before a question: it is no answer."""
    with suppress(OSError, ValueError, termios.error):  # the input is no terminal
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def in_editor(environment: Mapping[str, str], text: str) -> str | None:
    """Let a person edit the text in `$VISUAL`, `$EDITOR` or vi; return None if that fails.

    The file is readable only for this user, and is removed.
    """
    from mendgraph.nodes.workspace.store.database import STORE_URL_VARIABLE

    command = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    try:
        words = shlex.split(command)
    except ValueError:
        return None

    if not words:
        return None

    variables = {name: value for name, value in {**os.environ, **environment}.items() if name != STORE_URL_VARIABLE}
    with tempfile.TemporaryDirectory(prefix="mendgraph-") as folder:
        path = Path(folder) / "arguments.json"
        path.write_text(text + "\n", encoding="utf-8")

        try:
            process = subprocess.run([*words, str(path)], check=False, env=variables)  # noqa: S603
            if process.returncode != 0:
                return None
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
