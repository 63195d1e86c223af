"""Drives the real, compiled graph through all sequences of letters, one step at a time, and remembers where it was.

A state of the machine between two model calls is named by what its nodes look at (`Standing`): counters, open
corrections, loop control's memory, what was changed. Two sequences that lead to states of the same name are continued
once; that this loses nothing is tested beside it, by long sequences that are played from their start.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from unittest.mock import patch

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_machine
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import Used
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.heal.healing import is_unfounded
from mendgraph.nodes.records import JsonMap, LoopRecord, ModelReply, Outcome, ProviderFailure, StopReason
from tests.doubles.call_model import CallModel
from tests.doubles.scripted_model import reply_of
from tests.machine.exploration.alphabet import CLAIM, DENIED, FILES, LOOP, MADE, Letter
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

SETTINGS: Final[JsonMap] = {
    "provider_retries": 1,
    "read_ahead": False,
    "evidence": False,
    "audit": False,
    "max_calls_per_turn": 100,
}
TASK: Final = "Look at notes.txt, and mend what is wrong in calc.py."


class Standing(NamedTuple):
    """Where a turn stands between two model calls: what the machine's ways depend on, as far as letters can tell.

    What was `spent` counts only where a limit is near enough to be met. Texts, tokens, the plan and the last
    errors are left out: no router and no letter looks at them, and whole runs are compared with what was found.
    """

    spent: tuple[int, int]
    form: str
    malformed: int
    schema_failures: int
    claims: tuple[int, int]
    recent: tuple[tuple[str, ...], ...]
    overrides: tuple[tuple[str, int, bool], ...]
    failed_tries: int
    missed: tuple[str, ...]
    changed: bool


class Ended(NamedTuple):
    """How a turn ended."""

    kind: str
    reason: StopReason


class Edge(NamedTuple):
    """One letter, said in one state: the nodes that ran, guard's verdicts, the calls' results, and where that led."""

    path: tuple[str, ...]
    verdicts: tuple[str, ...]
    results: tuple[str, ...]
    to: Standing | Ended


class Voice(CallModel):
    """A model that repeats the given letter at every call."""

    def __init__(self, protocol: Protocol) -> None:
        self.letter: Letter | None = None
        self.protocol = protocol
        self.step = 0
        self.calls = 0

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        assert self.letter is not None
        self.calls += 1
        if self.letter.first is not None and self.calls == 1:
            return self.letter.first
        line = self.letter.spoken(self.step, self.protocol)
        if isinstance(line, ProviderFailure):
            return line
        if line.text:
            on_text(line.text)
        return reply_of(line, self.step, call)


class Direct(Model):
    """The voice without LangChain's side of it, which is a third of a step's time; whole runs have it."""

    user_names = ("voice",)

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    def connect(self, _: object, **__: object) -> Self:
        return self

    def without_request(self, *_: object) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        return self._voice.complete(call, on_text)

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        return self.complete(call, on_text)


class LiveObjects:
    """A serializer that writes nothing: checkpoints hold the very values, which no node may change.

    LangGraph does change the maps of a checkpoint itself, so these are copied.
    """

    def dumps_typed(self, value: Any) -> tuple[str, Any]:
        return "live", _copy(value)

    def loads_typed(self, typed: tuple[str, Any]) -> Any:
        return _copy(typed[1])


class OneBranch(SpendingStore):
    """A spending book that knows of no calls but those of the state: other branches of the thread would be charged."""

    def begin(self, thread: str, *, first: bool) -> None:
        """Nothing is marked."""

    def begin_number(self, *_: object, **__: object) -> None:
        return None

    def newest(self) -> int:
        return 0

    def lost(self, _thread: str, after: int, _until: int | None = None) -> tuple[Used, int]:
        return Used(), after

    def reserve(self, *_: object) -> int:
        return 0

    def settle(self, number: int, usage: Used) -> None:
        """Nothing is kept."""


class InThisThread:
    """An executor without threads: one for each step, to keep a checkpoint in memory, is a fifth of the step's time."""

    def submit(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - the future raises it, as any executor's
            future.set_exception(error)
        return future


@contextmanager
def no_threads(_config: object) -> Iterator[InThisThread]:
    yield InThisThread()


def _copy(value: Any) -> Any:
    if isinstance(value, dict) and "versions_seen" in value:
        seen = {node: dict(versions) for node, versions in value["versions_seen"].items()}
        return {name: dict(part) if isinstance(part, dict) else part for name, part in value.items()} | {
            "versions_seen": seen
        }
    return value


class Place(NamedTuple):
    """A checkpoint, and how many model calls have led there."""

    config: Any
    calls: int


BEGINNING: Final = Place({"configurable": {"thread_id": "t"}}, 0)


@dataclass
class Explorer:
    """The machine in a workspace of its own; `steps` and `transitions` count what it has done."""

    protocol: Protocol
    folder: Path
    letters: Sequence[Letter]
    limits: JsonMap = field(default_factory=dict)
    steps: int = 0
    transitions: int = 0
    repeatable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        write_files(self.folder, FILES)
        self.voice = Voice(self.protocol)
        saver = InMemorySaver()
        saver.serde = LiveObjects()
        self.saver = saver
        self.machine, self.nodes = build_machine(saver, model=self.voice, tools=None, rules=DEFAULT_GUARDRAIL_RULES)
        self.nodes._models.book = OneBranch()
        self.nodes._models.connections = lambda *_: Direct(self.voice)  # type: ignore[method-assign, assignment]
        self.context = AgentContext(
            workspace=str(self.folder), protocol=self.protocol.value, **{**SETTINGS, **self.limits}
        )

    def __enter__(self) -> Self:
        self.inline = ExitStack()
        self.inline.enter_context(patch("langgraph.pregel._executor.get_executor_for_config", no_threads))
        return self

    def __exit__(self, *_: object) -> None:
        self.inline.close()
        self.nodes.close()

    def begin(self) -> tuple[Place, Standing]:
        """A turn at its first model call, and what that state is called."""
        request: Any = {"messages": [HumanMessage(TASK)]}
        self.machine.invoke(
            request, BEGINNING.config, context=self.context, interrupt_before=["call_model"], durability="exit"
        )
        place, standing = self._place(0)
        for letter in (LOOP, DENIED):
            self.say(place, 1, letter)
            self.repeatable |= {name for step in self.values["loop"].recent for name in step}
        return place, standing

    def say(self, place: Place, number: int, letter: Letter) -> tuple[Edge, Place]:
        """Let the model reply with this letter as its `number`-th from `place` on; returns the edge and its target.

        The retries of a call are within the step.
        """
        self.voice.letter, self.voice.step, self.voice.calls = letter, number, 0
        noted, config, pending = NodeRecord(), place.config, True
        while pending:
            parts = self.machine.stream(
                None, config, interrupt_before=["call_model"], stream_mode="updates", durability="exit"
            )
            for part in parts:
                for node, update in part.items():
                    if node != "__interrupt__":
                        noted.note(node, update or {})
                        pending = bool((update or {}).get("pending_call"))
            config = BEGINNING.config
        self.steps += 1
        self.transitions += len(noted.path)
        after, standing = self._place(place.calls + self.voice.calls)
        self.letter, self.number, self.standing = letter, number, standing
        self.files_written = {path.name: path.read_text() for path in (self.folder / MADE).glob("*")}
        shutil.rmtree(self.folder / MADE, ignore_errors=True)  # the next branch creates it again
        return noted.edge(standing), after

    def _place(self, calls: int) -> tuple[Place, Standing]:
        snapshot = self.machine.get_state(BEGINNING.config)
        self.values, self.calls = snapshot.values, calls
        standing = standing_of(
            snapshot.values, self.repeatable, counted=bool(self.limits), claiming=CLAIM in self.letters
        )
        return Place(snapshot.config, calls), standing


@dataclass
class NodeRecord:
    """What the nodes have written in one step or a whole run; verdicts and results are those of each step."""

    path: list[str] = field(default_factory=list)
    verdicts: list[tuple[str, ...]] = field(default_factory=list)
    results: list[tuple[str, ...]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def note(self, node: str, update: JsonMap) -> None:
        self.path.append(node)
        if node == "guard":
            self.verdicts.append(
                tuple(f"{verdict.kind.value} {verdict.rule}".strip() for verdict in update["verdicts"])
            )
            self.results.append(())
        if node in {"guard", "execute_tools"}:
            errors = [result.result.error for result in update["results"]]
            self.results[-1:] = [tuple(error.code.value if error else "ok" for error in errors)]
        if update.get("outcome") is not None:
            self.outcomes.append(update["outcome"])

    @property
    def ends(self) -> list[Ended]:
        return [Ended(outcome.kind.value, outcome.reason) for outcome in self.outcomes]

    def edge(self, standing: Standing) -> Edge:
        """One step, which has led to this state, or to the end."""
        assert max(len(self.outcomes), len(self.verdicts)) <= 1, "two outcomes, or guard was asked twice"
        to: Standing | Ended = self.ends[0] if self.ends else standing
        judged, done = (*self.verdicts, ()), (*self.results, ())
        return Edge(tuple(self.path), judged[0], done[0], to)


def standing_of(values: JsonMap, repeatable: Collection[str], *, counted: bool, claiming: bool) -> Standing:
    """The name of a state, as far as the letters can tell states apart.

    Of signatures only the `repeatable` ones come again; what was spent matters where it is `counted`, and whether files
    were changed to those who are `claiming` that they did.
    """
    usage, corrections = values["spending"].usage, values.get("corrections") or []
    attempts = values.get("healing_attempts") or []
    loop: LoopRecord = values.get("loop") or LoopRecord()
    schema = sum(correction.schema_repair for correction in corrections)
    open_claims = sum(correction.claim for correction in corrections)
    return Standing(
        spent=(usage.calls_in_current_turn, values["spending"].steps) if counted else (0, 0),
        form=values["profile"].edit_form.value,
        malformed=len(corrections) - schema - open_claims,
        schema_failures=schema,
        claims=(open_claims, sum(map(is_unfounded, (attempt.errors for attempt in attempts)))),
        recent=tuple(tuple(name if name in repeatable else "" for name in step) for step in loop.recent),
        overrides=tuple((override.signature, override.repeats, override.obeyed) for override in loop.overrides),
        failed_tries=loop.failed_tries,
        missed=loop.missed,
        changed=bool(values.get("changes")) and claiming,
    )


@dataclass(repr=False)
class Explored:
    """All states to a depth, and the edges out of each of them by letter."""

    start: Standing
    edges: dict[tuple[Standing, str], Edge] = field(default_factory=dict)
    layers: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Explored(layers={self.layers})"


def explore(explorer: Explorer, depth: int, look: Callable[[Explorer, Edge], None]) -> Explored:
    """Every letter in every state that fewer letters lead to; `look` sees each edge, with the state behind it."""
    place, start = explorer.begin()
    explored, frontier, seen = Explored(start), {start: place}, {start}
    for number in range(1, depth + 1):
        explored.layers.append(len(frontier))
        behind: dict[Standing, Place] = {}
        for standing, at in frontier.items():
            for letter in explorer.letters:
                edge, after = explorer.say(at, number, letter)
                explored.edges[standing, letter.name] = edge
                look(explorer, edge)
                if isinstance(edge.to, Standing) and edge.to not in seen:
                    seen.add(edge.to)
                    behind[edge.to] = after
        frontier = behind
    return explored
