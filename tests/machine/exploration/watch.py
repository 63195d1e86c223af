"""Looks at every checkpoint that a play leaves, and says what the invariants of CONTRIBUTING.md forbid about it.

Of each checkpoint it remembers the play that led there (`Turn`s), so that the same can be played without disturbance.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from langgraph.types import StateSnapshot

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import Machine
from mendgraph.graph.machine.routes import TRANSITIONS
from mendgraph.nodes.records import JsonMap, OutcomeKind, ToolCall, VerdictKind
from tests.doubles.history import history_problems
from tests.machine.exploration.line_model import LineOfStep
from tests.vocabulary import Protocol

START: Final = "__start__"
TERMINALS: Final = frozenset(kind.value for kind in OutcomeKind)
EDGES: Final = frozenset((t.source, t.target) for t in TRANSITIONS)
EFFECTS: Final = frozenset({"ring", "stamp", "write_file", "append_file", "edit_file", "edit_blocks", "apply_patch"})
"""Tools of the letters that change something."""
DENIED_WORDS: Final = (".env", "outside.txt", "/etc/", ".git/")
"""What stands in the paths that nobody may touch."""


@dataclass(frozen=True)
class Turn:
    """A request and what came of it. `nodes` are those that ran; `stop_at` is after how many of them it was to stop."""

    request: str
    lines: tuple[LineOfStep, ...] = ()
    answers: tuple[Any, ...] = ()
    nodes: int = 0
    stop_at: int | None = None
    ended: str = ""


@dataclass(frozen=True)
class Past:
    """All that led to one checkpoint; `epoch` tells turns apart, also those of two branches."""

    next: str = ""
    epoch: int = 0
    turns: tuple[Turn, ...] = ()


@dataclass
class Now:
    """What the play does at the moment: what checkpoints cannot tell."""

    request: str = ""
    line: LineOfStep | None = None
    stopping: bool = False
    decisions: dict[str, tuple[Any, frozenset[int]]] = field(default_factory=dict)
    """By the checkpoint that asked: the answer that a person gave, and the places of the calls that it approves."""


class Watch:
    """Checks each checkpoint once. `transitions` counts executions of nodes, `problems` are violations."""

    def __init__(self, machine: Machine, context: AgentContext, thread: Any, now: Now) -> None:
        """`machine` is one that never runs: it reads what others have stored."""
        self.transitions, self.problems = 0, list[str]()
        self.forked = False  # then counters hold the calls of other branches, too
        self.allowed: Counter[tuple[str, str]] = Counter()
        self.done: set[tuple[str, str]] = set()
        self.pasts: dict[str, Past] = {}
        self._epochs = 0
        self.machine, self._context, self._thread, self._now = machine, context, thread, now

    def look(self) -> StateSnapshot:
        new: list[StateSnapshot] = []
        for snapshot in self.machine.get_state_history(self._thread):
            if id_of(snapshot.config) in self.pasts:
                break
            new.append(snapshot)
        for snapshot in reversed(new):
            self._check(snapshot)
        return self.machine.get_state(self._thread)

    def _check(self, snapshot: StateSnapshot) -> None:
        checkpoint, parent = id_of(snapshot.config), id_of(snapshot.parent_config)
        before = self.pasts.get(parent, Past())
        target = snapshot.next[0] if snapshot.next else "__end__"
        source = str((snapshot.metadata or {}).get("source"))
        if len(snapshot.next) > 1:
            self._say(snapshot, f"{snapshot.next} at once")
        values = snapshot.values
        if source == "input":
            turns = (*before.turns, Turn(self._now.request))
            self._epochs += 1
            self.pasts[checkpoint] = Past(target, self._epochs, turns)
        elif source == "fork":
            self._epochs += 1  # a restarted turn restarts its counters
            begins = target in {START, "begin_turn"}
            self.pasts[checkpoint] = replace(before, epoch=self._epochs) if begins else before
            self._allow(snapshot, target)  # a fork may repeat the effect
            if before.next != target:
                self._say(snapshot, f"a fork before {before.next} goes on with {target}")
        else:
            if (before.next, target) not in EDGES:
                self._say(snapshot, f"no edge from {before.next} to {target}")
            self.transitions += before.next != START
            self.pasts[checkpoint] = replace(before, next=target, turns=self._turns(before, parent, values))
            if before.next != START and (values.get("outcome") is None) != bool(snapshot.next):
                self._say(snapshot, f"the outcome is {values.get('outcome')} before {target}")
        for problem in history_problems(values.get("messages", []), self._protocol()):
            self._say(snapshot, problem)
        if source in {"input", "fork"}:
            return
        self._allow(snapshot, target)
        if target == "execute_tools":
            self._judged(snapshot, parent)
        if before.next == "execute_tools":
            self._check_finished(snapshot)
        if before.next in TERMINALS:
            self._ended(snapshot, before.next)

    def _turns(self, before: Past, parent: str, values: Mapping[str, Any]) -> tuple[Turn, ...]:
        *earlier, turn = before.turns
        if before.next == START:
            return before.turns
        turn = replace(turn, nodes=turn.nodes + 1)
        if before.next == "call_model" and self._now.line is not None:
            turn = replace(turn, lines=(*turn.lines, self._now.line))
        if before.next == "guard" and parent in self._now.decisions:
            turn = replace(turn, answers=(*turn.answers, self._now.decisions[parent][0]))
        if self._now.stopping and turn.stop_at is None:
            turn = replace(turn, stop_at=turn.nodes - 1)
        if before.next in TERMINALS and values.get("outcome") is not None:
            turn = replace(turn, ended=values["outcome"].kind.value)
        return (*earlier, turn)

    def _allow(self, snapshot: StateSnapshot, target: str) -> None:
        if target == "execute_tools":
            judged = zip(snapshot.values["items"], snapshot.values["verdicts"], strict=False)
            self.allowed.update(action(item) for item, verdict in judged if verdict.kind is VerdictKind.ALLOW)

    def _judged(self, snapshot: StateSnapshot, parent: str) -> None:
        """Guard has just judged; it allows only what this run's mode, rules and person allow."""
        values, mode = snapshot.values, self._context.mode
        if self.pasts.get(parent, Past()).next != "guard":
            self._say(snapshot, "execute_tools without guard")
        _, approved = self._now.decisions.get(parent, (None, frozenset()))
        allowed = [v.kind is VerdictKind.ALLOW for v in values["verdicts"]]
        if len(allowed) != len(values["items"]) or not any(allowed):
            self._say(snapshot, f"{len(allowed)} verdicts for {len(values['items'])} calls, {sum(allowed)} may run")
        for place, (item, may_run) in enumerate(zip(values["items"], allowed, strict=False)):
            if not may_run:
                continue
            if not isinstance(item, ToolCall):
                self._say(snapshot, "a malformed call may run")
                continue
            path = str(item.arguments.get("path", ""))
            if any(word in path for word in DENIED_WORDS):
                self._say(snapshot, f"{path} may be touched")
            if item.tool in EFFECTS and (mode == "read-only" or (mode == "ask" and place not in approved)):
                self._say(snapshot, f"{item.tool} may run in mode {mode}, and nobody approved it")

    def _check_finished(self, snapshot: StateSnapshot) -> None:
        values = snapshot.values
        items, verdicts, results = values["items"], values["verdicts"], values["results"]
        if len(results) != len(items):
            self._say(snapshot, f"{len(results)} results of {len(items)} calls")
        for item, verdict, result in zip(items, verdicts, results, strict=False):
            if result.tool != item.tool or result.call_id != item.call_id:
                self._say(snapshot, f"the result of {item.tool} is that of {result.tool}")
            if verdict.kind is not VerdictKind.ALLOW and (
                verdict.error is None or result.result.error != verdict.error
            ):
                self._say(snapshot, f"{item.tool} was denied, and came to {result.result}")
            if result.result.ok and isinstance(item, ToolCall):
                self.done.add(action(item))

    def _ended(self, snapshot: StateSnapshot, terminal: str) -> None:
        outcome = snapshot.values.get("outcome")
        if outcome is None or outcome.kind.value != terminal:
            self._say(snapshot, f"{terminal} wrote {outcome}")
            return
        usage: JsonMap = outcome.usage
        for name, most in limits_of(self._context).items():
            if most is not None and usage[name] > most and not self.forked:
                self._say(snapshot, f"{name}: {usage[name]} of {most}")

    def _protocol(self) -> Protocol:
        return Protocol(self._context.protocol)

    def _say(self, snapshot: StateSnapshot, problem: str) -> None:
        self.problems.append(f"checkpoint {(snapshot.metadata or {}).get('step')}: {problem}")


def limits_of(context: AgentContext) -> dict[str, float | None]:
    """The most that each of these counters of an outcome may say."""
    return {
        "total_calls": context.max_calls_per_session,
        "calls_in_current_turn": context.max_calls_per_turn,
        "total_input_tokens": context.max_input_tokens_per_session,
        "total_output_tokens": context.max_output_tokens_per_session,
        "steps_in_current_turn": context.max_steps,
    }


def action(call: ToolCall) -> tuple[str, str]:
    """What a call does: its tool, and the mark by which its effect is counted."""
    arguments = call.arguments
    return call.tool, str(arguments.get("mark") or arguments.get("content", "")).strip()


def id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"]) if config else ""
