"""The machine as hypothesis plays it: replies, kills, resumes, forks, questions, stops and new requests in any order.

What a process keeps in memory is dropped with it. What is on its disk stays: the workspace, the data folder, and the
checkpoints, which the saver serialises as it would for a file.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar, Final

from hypothesis import note, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.bound_nodes import BoundNodes
from mendgraph.graph.machine.build import Machine, build_graph, build_machine
from mendgraph.graph.machine.routes import NODES, recursion_limit
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.records import JsonMap, ProviderErrorKind
from tests.machine.exploration import alphabet, tally
from tests.machine.exploration.alphabet import Letter, calls_line, failure
from tests.machine.exploration.line_model import LineModel, LineOfStep
from tests.machine.exploration.replay import differences
from tests.machine.exploration.watch import START, Now, Watch, id_of
from tests.machine.exploration.world import POINTS, SECRET, UNDISTURBING, Database, KilledInTool, Memory, World, prepare
from tests.surfaces.runs.run_plays import Killed
from tests.vocabulary import Protocol

RING = Letter("ring", lambda step: calls_line(("ring", {"mark": f"m{step}"}), ("stamp", {"mark": f"s{step}"})))
RING_AGAIN = Letter("ring again", lambda _: calls_line(("ring", {"mark": "again"})))
APPEND = Letter("append", lambda step: calls_line(("append_file", {"path": "made/log.txt", "content": f"m{step}\n"})))
TELL = Letter(
    "tell", lambda step: calls_line(("write_file", {"path": f"made/{step}.txt", "content": f"key={SECRET}\n"}))
)
OUT = Letter("out", lambda _: calls_line(("write_file", {"path": "../outside.txt", "content": "mine\n"})))
BOTH = Letter("both", lambda step: calls_line(("read_file", {"path": ".env"}), ("ring", {"mark": f"m{step}"})))
OWN: Final = (RING, RING, RING_AGAIN, APPEND, TELL, OUT, BOTH)
"""Letters whose effects are counted, or that tell or ask for what nobody may have."""
EFFECTS: Final = (RING.name, RING_AGAIN.name, APPEND.name)
LETTERS: Final = {letter.name: letter for letter in (*alphabet.ALPHABET, *OWN)}

WAYS: Final = ("invoke", "ainvoke", "stream", "astream", "left")
COUNTED: Final = frozenset({"ring", "stamp", "append_file"})
"""Tools whose effects are counted by their marks."""
REST: Final = "call_model"
"""Where a reply is due: nothing is in the middle there."""
ANSWERS: Final = ("approve", "reject", "stop", "some", "nonsense")
KILLS: Final = st.none() | st.tuples(st.sampled_from(POINTS), st.integers(1, 4))
BOUNDARIES: Final = st.sampled_from([(), (), (), *((node,) for node in NODES)])
READ_TO_THE_END: Final = st.sampled_from(WAYS[:4])
contexts = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["auto", "auto", "ask", "ask", "read-only"]),
        "max_calls_per_turn": st.sampled_from([10, 10, 10, 2, 4]),
        "max_calls_per_session": st.sampled_from([100, 100, 5, 9]),
        "max_healing_attempts": st.sampled_from([3, 0, 1]),
        "provider_retries": st.sampled_from([2, 0]),
        "loop_repeat_threshold": st.sampled_from([3, 2]),
        "max_steps": st.sampled_from([None, None, 2]),
    }
)


@dataclass(frozen=True)
class Process:
    """What a process has in memory."""

    machine: Machine
    nodes: BoundNodes
    stop: StopRequest

    @classmethod
    def started(
        cls, saver: BaseCheckpointSaver[Any], model: LineModel, world: World, middleware: Sequence[Any]
    ) -> "Process":
        stop = StopRequest()
        settings: JsonMap = {"model": model, "tools": world.tools, "rules": DEFAULT_GUARDRAIL_RULES}
        settings["middleware"] = middleware
        return cls(*build_machine(saver, **settings, secrets=(SECRET,), stop=stop), stop)


class AnyOrder(RuleBasedStateMachine):
    """One thread in one workspace. `profile` is the way of talking: protocol and edit form."""

    profile: tuple[Protocol, str] = (Protocol.NATIVE, "auto")
    kept_on: type[Memory | Database] = Memory
    """What the checkpoints are kept on."""
    limits: ClassVar[JsonMap] = {}
    """What is not drawn of the context."""
    middleware: ClassVar[Sequence[Any]] = ()
    """Hooks that change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="mendgraph-any-order-"))
        self.world = World(self.folder / "world")
        self.exits = ExitStack()
        self.exits.enter_context(prepare(self.world))
        self.disk = self.kept_on(self.world)
        self.teller = LineModel(self.world.fuse)
        self.now = Now()
        self.thread: Any = {"configurable": {"thread_id": "t"}}
        self.spoken, self.calls_of = 0, dict[int, int]()
        self.undisturbed, self.forked, self.broken = True, False, False
        self.running: Process | None = None
        self.replied = True  # since the last request
        self.next, self.asks, self.head = "", dict[str, Any](), ""

    # --- A process

    @initialize(limits=contexts, forks=st.booleans())
    def begin(self, limits: JsonMap, forks: bool) -> None:
        limits = {**limits, **self.limits}
        protocol, form = self.profile
        talk: JsonMap = {"protocol": protocol.value, "edit_form": form}
        off: JsonMap = {"evidence": False, "read_ahead": False, "max_failed_tries": 20}
        self.context = AgentContext(workspace=str(self.world.root), **talk, **off, **limits)
        self.thread["recursion_limit"] = recursion_limit(self.context.max_calls_per_turn)
        self.watch = Watch(build_graph(self.disk.reader(), tools=()), self.context, self.thread, self.now)
        self.may_fork = forks

    @property
    def process(self) -> "Process":
        if self.running is None:
            self.running = Process.started(self.disk.saver, self.teller, self.world, self.middleware)
        return self.running

    def died(self) -> None:
        """The process is killed, with all that it had not written yet."""
        if self.running is not None:
            self.running.nodes._models.book._settled.clear()
            self.running.nodes.close()
            self.running = None
            self.disk.died()
            self.watch.machine = build_graph(self.disk.reader(), tools=())
        self.teller.begin_again()
        self.now.stopping = False

    def advance(self, turn_input: Any, way: str, after: Sequence[str] = (), at: Any = None) -> None:
        """Give this to the machine, and check its state when a reply is due."""
        epoch, calls_before = self.watch.pasts[self.head].epoch if self.head else 0, self.teller.calls
        config = {**self.thread, "configurable": {**self.thread["configurable"], **(at or {})}}
        settings: JsonMap = {"interrupt_before": [REST], "interrupt_after": list(after), "durability": "sync"}
        going_on_with = self.watch.pasts[self.head].next if self.head else ""
        if isinstance(turn_input, dict) or going_on_with in {START, "begin_turn"}:  # it has stored no context yet
            settings["context"] = self.context
        try:
            run(self.process.machine, way, turn_input, config, settings)
        except (Killed, KilledInTool):
            self.died()
        finally:
            self.world.fuse.set("", 0)
        state = self.watch.look()
        self.next = state.next[0] if state.next else ""
        self.asks = state.interrupts[0].value if state.interrupts else {}
        self.head = id_of(state.config)
        self.calls_of[epoch] = self.calls_of.get(epoch, 0) + self.teller.calls - calls_before
        self.check()

    def arm(self, kill: tuple[str, int] | None) -> None:
        if kill is not None:
            self.world.fuse.set(*kill)
            self.undisturbed &= kill[0] in UNDISTURBING

    # --- Rules

    @precondition(lambda self: self.next == REST)
    @rule(
        letter=st.sampled_from([*LETTERS, *(letter.name for letter in OWN)]),
        way=st.sampled_from(WAYS),
        after=BOUNDARIES,
        kill=st.none() | KILLS,
    )
    def say(self, letter: str, way: str, after: tuple[str, ...], kill: tuple[str, int] | None) -> None:
        """The model replies, and the machine runs until its next model call, or until it is interrupted."""
        self.replied = True
        self.choose(LETTERS[letter])
        self.arm(kill)
        self.advance(None, way, after)

    @precondition(lambda self: self.next == REST)
    @rule(
        letter=st.sampled_from(EFFECTS), way=READ_TO_THE_END, point=st.sampled_from(POINTS[1:]), nth=st.integers(1, 5)
    )
    def work(self, letter: str, way: str, point: str, nth: int) -> None:
        """The model wants an effect, and the process dies on the way."""
        self.say(letter=letter, way=way, after=(), kill=(point, nth))

    def choose(self, letter: Letter) -> None:
        if letter.only not in {None, self.profile[0]}:
            letter = alphabet.READ
        self.spoken += 1
        line = letter.spoken(self.spoken, self.profile[0])
        first = failure(ProviderErrorKind.RATE_LIMITED)
        tries = (first, line) if self.spoken % 5 == 0 else (line,)
        self.now.line = LineOfStep(self.spoken, tries, letter.name)
        self.teller.say(self.now.line)

    @precondition(lambda self: self.next not in {"", REST} and not self.asks)
    @rule(way=st.sampled_from(WAYS), after=BOUNDARIES, kill=KILLS)
    def resume(self, way: str, after: tuple[str, ...], kill: tuple[str, int] | None) -> None:
        self.arm(kill)
        self.advance(None, way, after)

    @precondition(lambda self: self.asks or not self.next or (self.replied and self.next == REST))
    @rule(text=st.sampled_from(["Mend calc.py.", "And then?", f"My key is {SECRET}."]), way=READ_TO_THE_END)
    def request(self, text: str, way: str) -> None:
        """A person sends a request: first of all, after an end, before a reply, or instead of an answer."""
        self.ask_for(text, way)

    @precondition(lambda self: self.next not in {"", REST})
    @rule(way=READ_TO_THE_END)
    def interrupt(self, way: str) -> None:
        """A person sends another request in the middle of a step."""
        self.ask_for("Stop that, and read notes.txt.", way)

    def ask_for(self, text: str, way: str) -> None:
        self.now.request, self.now.stopping = text, False
        self.process.stop.clear()
        self.replied = False
        self.advance({"messages": [HumanMessage(text)]}, way)

    @precondition(lambda self: self.asks)
    @rule(answer=st.sampled_from(ANSWERS), way=st.sampled_from(WAYS), kill=st.none() | KILLS)
    def answer(self, answer: str, way: str, kill: tuple[str, int] | None) -> None:
        places = [call["index"] for call in self.asks["calls"]]
        turn_input: Any = answer
        approved = frozenset(places if answer == "approve" else ())
        if answer == "some":
            approved = frozenset(places[::2])
            rejection = {"action": "reject", "reason": f"not with {SECRET}"}
            turn_input = {
                "decisions": {str(place): {"action": "approve"} if place in approved else rejection for place in places}
            }
        self.now.decisions[self.head] = (turn_input, approved)
        self.arm(kill)
        self.advance(Command(resume=turn_input), way)

    @precondition(lambda self: self.next and self.running)
    @rule()
    def kill(self) -> None:
        self.died()

    @precondition(lambda self: self.next and self.running and not self.now.stopping)
    @rule()
    def stop(self) -> None:
        self.process.stop.ask("by a person")
        self.now.stopping = True

    @precondition(lambda self: self.may_fork and self.next)
    @rule(back=st.integers(0, 40), letter=st.sampled_from([alphabet.READ.name, *EFFECTS]), way=READ_TO_THE_END)
    def fork(self, back: int, letter: str, way: str) -> None:
        """Continue from an earlier checkpoint, of this branch or of another."""
        places = [checkpoint for checkpoint, past in self.watch.pasts.items() if past.next in NODES]
        checkpoint = places[-1 - back % len(places)]
        self.choose(LETTERS[letter])
        self.forked = self.watch.forked = True
        self.head = checkpoint
        note(f"forks before {self.watch.pasts[checkpoint].next}")
        self.advance(None, way, at={"checkpoint_id": checkpoint})

    # --- What holds at any time

    def check(self) -> None:
        """The invariants that can be seen from one step to the next."""
        done = self.world.rung + self.world.appended()
        may = Counter[str]()
        for (_, mark), times in self.watch.allowed.items():
            may[mark] += times
        marks = {mark for tool, mark in self.watch.done if tool in COUNTED}
        most = self.context.max_calls_per_session, self.context.max_calls_per_turn
        call_counts = self.teller.calls, max(self.calls_of.values())
        self.hold(
            [
                *self.watch.problems,
                *self.world.problems(),
                *(f"the model was shown {word}" for word in self.teller.heard),
                *(f"{mark} was done {n} times, and allowed {may[mark]}" for mark, n in done.items() if n > may[mark]),
                *(f"{mark} is told to be done, and is not" for mark in marks if not done[mark]),
                *(
                    f"{calls} calls, and {limit} are allowed"
                    for calls, limit in zip(call_counts, most, strict=True)
                    if calls > limit
                ),
            ]
        )

    def hold(self, problems: Sequence[str]) -> None:
        if problems:
            self.broken = True
            raise AssertionError("\n".join(problems))

    def teardown(self) -> None:
        """Bring the play to an end, which equals that of an undisturbed play."""
        try:
            if self.head and not self.broken:
                self.end()
        finally:
            if self.running is not None:
                self.running.nodes.close()
            self.disk.close()
            self.exits.close()
            shutil.rmtree(self.folder)

    def end(self) -> None:
        """Each turn ends, and nothing that is stored holds a secret."""
        for _ in range(9):
            if not self.next:
                break
            if self.asks:
                self.now.decisions[self.head] = ("reject", frozenset())
            if self.next == REST:
                self.choose(alphabet.FINAL)
            self.advance(Command(resume="reject") if self.asks else None, "invoke")
        self.hold([f"it stays before {self.next}"] if self.next else [])
        self.hold([f"a secret is in {place}" for place in (*self.disk.leaks(), *self.world.leaks())])
        tally.count(self.watch.transitions, 1)
        if self.undisturbed and not self.forked:
            state = self.watch.look()
            turns = self.watch.pasts[self.head].turns
            self.hold(differences(self, turns, state))


def run(machine: Machine, way: str, turn_input: Any, config: Any, settings: JsonMap) -> None:
    """Play on in one of the ways in which a program can; a stream that is `left` is not read to its end."""
    if way == "invoke":
        machine.invoke(turn_input, config, **settings)
    elif way == "ainvoke":
        asyncio.run(_ended(machine.ainvoke(turn_input, config, **settings)))
    elif way == "stream":
        for _ in machine.stream(turn_input, config, stream_mode=["messages", "custom", "updates"], **settings):
            pass
    elif way == "astream":
        asyncio.run(_read(machine.astream(turn_input, config, stream_mode=["custom", "values"], **settings)))
    else:
        parts = machine.stream(turn_input, config, stream_mode="updates", **settings)
        list(islice(parts, 2))
        parts.close()  # type: ignore[attr-defined]  # it is a generator


async def _ended(work: Any) -> None:
    await work


async def _read(parts: Any) -> None:
    async for _ in parts:
        pass
