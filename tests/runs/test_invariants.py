"""The invariants of CONTRIBUTING.md, under whatever a model may reply.

Each story is a script of replies drawn by hypothesis, told by a model in this process to the real machine with its real
tools in a fresh workspace.
"""

import asyncio
import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, event, given, settings, strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.routes import NODES, recursion_limit
from mendgraph.graph.machine.state import serializer
from mendgraph.nodes.records import JsonMap, Outcome, OutcomeKind, Protocol, StopReason, Verdict, VerdictKind
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import use
from tests.runs.history import history_problems
from tests.runs.models import FILES, HIDDEN, Story, contexts, stories, tight_tokens
from tests.workspace_files import changed_files, write_files

MAY_CHANGE = {"calc.py", "notes.txt", "new", "new.py"}
"""What the stories name for writing, and nothing denies."""
TERMINALS = frozenset(kind.value for kind in OutcomeKind)

rich = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
"""Few examples, each of them a whole run in a folder of its own; `tests/machine` goes through many more."""


@dataclass(frozen=True)
class Profile:
    """A way of talking."""

    protocol: Protocol
    edit_form: str = "replace"


PROFILES = (Profile(Protocol.TEXT), Profile(Protocol.NATIVE), Profile(Protocol.TEXT, "blocks"))


@dataclass
class Run:
    """One story on one machine, in a workspace of its own."""

    story: Story
    profile: Profile
    context: AgentContext
    folder: Path
    saver: BaseCheckpointSaver[Any]

    @classmethod
    def prepared(cls, story: Story, profile: Profile, limits: JsonMap, folder: Path) -> "Run":
        """Everything in its place, and nothing done yet."""
        write_files(folder, FILES)
        talk: JsonMap = {"protocol": profile.protocol.value, "edit_form": profile.edit_form}
        context = AgentContext(workspace=str(folder), **talk, **limits)
        return cls(story, profile, context, folder, InMemorySaver(serde=serializer()))

    @property
    def config(self) -> Any:
        """The thread, and the net under the limits that a session would pass."""
        limit = recursion_limit(self.context.max_calls_per_turn)
        return {"configurable": {"thread_id": "t"}, "recursion_limit": limit}

    def machine(self) -> Machine:
        """A machine whose model begins the story."""
        lines, then = self.story.script(self.profile.protocol)
        return build_graph(self.saver, model=ScriptedModel(lines, then))


def request(text: str = "Mend calc.py; notes.txt may help.") -> Any:
    """The input of a turn."""
    return {"messages": [HumanMessage(text)]}


def fresh(folder: Path) -> Path:
    """A new folder below this one."""
    return Path(tempfile.mkdtemp(dir=folder))


# --- Invariants 1 to 4, and 7


@rich
@given(story=stories(), profile=st.sampled_from(PROFILES), limits=contexts(), tight=tight_tokens())
def test_run_keeps_within_everything(
    tmp_path: Path, story: Story, profile: Profile, limits: JsonMap, tight: JsonMap
) -> None:
    run = Run.prepared(story, profile, limits | tight, fresh(tmp_path))
    machine = run.machine()
    parts = [
        (node, update or {})
        for part in machine.stream(request(), run.config, context=run.context, stream_mode="updates")
        for node, update in part.items()
    ]
    path = [node for node, _ in parts]
    outcomes = [update["outcome"] for _, update in parts if update.get("outcome") is not None]
    assert [node for node in path if node in TERMINALS] == path[-1:]
    assert [outcome.kind.value for outcome in outcomes] == path[-1:]
    event(f"{outcomes[0].kind.value}: {outcomes[0].reason.value}")
    assert_guarded(parts)
    assert_within(outcomes[0].usage, run.context)
    for snapshot in machine.get_state_history(run.config):
        assert history_problems(snapshot.values.get("messages", []), profile.protocol) == []
        assert HIDDEN not in str(snapshot.values)
    assert {name.split("/")[0] for name in changed_files(run.folder, FILES)} <= MAY_CHANGE


def assert_guarded(parts: list[tuple[str, Any]]) -> None:
    """Nothing runs but what guard has just allowed; whatever it denied keeps guard's own error."""
    for (before, judged), (node, done) in pairwise(parts):
        if node != "execute_tools":
            continue
        assert before == "guard"
        verdicts: list[Verdict] = judged["verdicts"]
        denied = [(v.error, r.result.error) for v, r in zip(verdicts, done["results"], strict=True) if not allowed(v)]
        assert all(verdict == result is not None for verdict, result in denied)
        assert any(map(allowed, verdicts))


def allowed(verdict: Verdict) -> bool:
    return verdict.kind is VerdictKind.ALLOW


def assert_within(usage: JsonMap, context: AgentContext) -> None:
    """No limit is passed."""
    used_and_allowed = [
        (usage["total_calls"], context.max_calls_per_session),
        (usage["calls_in_current_turn"], context.max_calls_per_turn),
        (usage["total_input_tokens"], context.max_input_tokens_per_session),
        (usage["total_output_tokens"], context.max_output_tokens_per_session),
        (usage["input_tokens_in_current_turn"], context.max_input_tokens_per_turn),
        (usage["output_tokens_in_current_turn"], context.max_output_tokens_per_turn),
        (usage["steps_in_current_turn"], context.max_steps),
        (usage["cost_usd"], context.max_cost_usd),
    ]
    passed = [pair for pair in used_and_allowed if None not in pair and pair[0] > pair[1]]
    assert passed == []


# --- Invariant 5


def invoke(machine: Machine, run: Run) -> None:
    machine.invoke(request(), run.config, context=run.context)


def ainvoke(machine: Machine, run: Run) -> None:
    asyncio.run(machine.ainvoke(request(), run.config, context=run.context))


def stream(machine: Machine, run: Run) -> None:
    deque(machine.stream(request(), run.config, context=run.context, stream_mode=["messages", "custom", "updates"]))


def astream(machine: Machine, run: Run) -> None:
    async def read_all() -> None:
        async for _ in machine.astream(request(), run.config, context=run.context, stream_mode=["messages", "values"]):
            pass

    asyncio.run(read_all())


def resumed_after_every_step(machine: Machine, run: Run) -> None:
    """Each step in a new call, which is not told the context again."""
    machine.invoke(request(), run.config, context=run.context, interrupt_after=NODES)
    while machine.get_state(run.config).next:
        machine.invoke(None, run.config, interrupt_after=NODES)


@rich
@given(story=stories(), profile=st.sampled_from(PROFILES), limits=contexts())
def test_every_way_of_running_gives_the_same(tmp_path: Path, story: Story, profile: Profile, limits: JsonMap) -> None:
    ends = [
        end_of(Run.prepared(story, profile, limits, fresh(tmp_path)), way)
        for way in (invoke, ainvoke, stream, astream, resumed_after_every_step)
    ]
    assert ends == ends[:1] * len(ends)


def end_of(run: Run, way: Callable[[Machine, Run], None]) -> tuple[JsonMap, list[JsonMap], dict[str, str]]:
    """Outcome without timings, history without ids of messages, and files."""
    machine = run.machine()
    way(machine, run)
    values = machine.get_state(run.config).values
    outcome: Outcome = values["outcome"]
    history = [message.model_dump(exclude={"id"}) for message in values["messages"]]
    return outcome.model_dump() | {"usage": without_seconds(outcome.usage)}, history, changed_files(run.folder, FILES)


# --- Invariant 6


@rich
@given(story=stories(same_in_both=True), limits=contexts())
def test_both_protocols_take_the_same_way(tmp_path: Path, story: Story, limits: JsonMap) -> None:
    ways = [way_of(Run.prepared(story, profile, limits, fresh(tmp_path))) for profile in PROFILES[:2]]
    assert ways[0] == ways[1]


def way_of(run: Run) -> tuple[list[str], list[tuple[str, str]], tuple[str, str], dict[str, str]]:
    """Node path, verdicts, outcome and files."""
    path, verdicts, ending = [], [], ("", "")
    for part in run.machine().stream(request(), run.config, context=run.context, stream_mode="updates"):
        for node, update in part.items():
            path.append(node)
            if node == "guard":
                verdicts += [(verdict.kind.value, verdict.rule) for verdict in update["verdicts"]]
            if node in TERMINALS:
                ending = (update["outcome"].kind.value, update["outcome"].reason.value)
    return path, verdicts, ending, changed_files(run.folder, FILES)


# --- A turn that was given up, and counters


@rich
@given(story=stories(), profile=st.sampled_from(PROFILES[:2]), steps=st.integers(1, 12))
def test_new_request_may_come_at_any_time(tmp_path: Path, story: Story, profile: Profile, steps: int) -> None:
    run = Run.prepared(story, profile, {}, fresh(tmp_path))
    machine = run.machine()
    machine.invoke(request(), run.config, context=run.context, interrupt_after=NODES)
    for _ in range(steps):
        if machine.get_state(run.config).next:
            machine.invoke(None, run.config, interrupt_after=NODES)
    ended = build_graph(run.saver, model=ScriptedModel([Say("Yes.")])).invoke(
        request("Are you there?"), run.config, context=run.context
    )
    assert (ended["outcome"].kind, ended["outcome"].answer) == (OutcomeKind.FINISHED, "Yes.")
    for snapshot in machine.get_state_history(run.config):
        assert history_problems(snapshot.values.get("messages", []), profile.protocol) == []


READS = [use(("read_file", {"path": "notes.txt", "start_line": line}), usage=(100, 10)) for line in (1, 2, 3)]


def test_counters_survive_a_resume(tmp_path: Path) -> None:
    """A process that stops after each step and starts again has spent as much as one that does not."""
    limits: JsonMap = {"max_calls_per_turn": 3, "read_ahead": False}
    whole = Run.prepared(Story(tuple(READS)), PROFILES[0], limits, fresh(tmp_path))
    invoke(whole.machine(), whole)
    parted = Run.prepared(Story(tuple(READS)), PROFILES[0], limits, fresh(tmp_path))
    lines, _ = parted.story.script(Protocol.TEXT)
    sent: Any = request()
    spent, steps = 0, 0
    while True:
        with reopened(tmp_path / "threads.sqlite") as saver:
            machine = build_graph(saver, model=ScriptedModel(lines[spent:]))
            context = parted.context if sent else None
            machine.invoke(sent, parted.config, context=context, interrupt_after=NODES)
            sent, steps = None, steps + 1
            state = machine.get_state(parted.config)
            spent = state.values["spending"].usage.total_calls
            if not state.next:
                break
    expected = whole.machine().get_state(whole.config).values["outcome"]
    assert state.values["outcome"].reason is expected.reason is StopReason.MAX_CALLS_PER_TURN
    assert without_seconds(state.values["outcome"].usage) == without_seconds(expected.usage)
    assert steps == 2 + 5 * 3


def test_threads_do_not_share_counters(tmp_path: Path) -> None:
    limits: JsonMap = {"max_calls_per_session": 4, "mode": "read-only"}
    run = Run.prepared(Story(tuple(READS)), PROFILES[0], limits, fresh(tmp_path))
    with reopened(tmp_path / "threads.sqlite") as saver:
        calls = []
        for thread in ("a", "b", "a"):
            machine = build_graph(saver, model=ScriptedModel([Say("Yes.")]))
            config: Any = run.config | {"configurable": {"thread_id": thread}}
            calls.append(machine.invoke(request(), config, context=run.context)["outcome"].usage["total_calls"])
    assert calls == [1, 1, 2]


@contextmanager
def reopened(path: Path) -> Iterator[SqliteSaver]:
    """The threads' file, as a new process opens it."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        yield SqliteSaver(connection, serde=serializer())


def without_seconds(usage: JsonMap) -> JsonMap:
    """Usage as far as it repeats."""
    return {name: count for name, count in usage.items() if not name.startswith("seconds")}
