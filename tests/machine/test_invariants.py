"""The invariants of CONTRIBUTING.md, for any replies of a model.

Each story is a script of replies drawn by hypothesis. A model in this process gives them to the real machine with its
real tools in a fresh workspace.
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, event, given, settings, strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, Outcome, build_graph, serializer
from mendgraph.graph.machine.build import Machine
from mendgraph.graph.machine.routes import NODES, recursion_limit
from mendgraph.nodes.records import OutcomeKind, Verdict, VerdictKind
from tests.doubles.history import history_problems
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow
from tests.machine.models import FILES, HIDDEN, Story, contexts, stories, tight_tokens
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import changed_files, write_files

MAY_CHANGE = {"calc.py", "notes.txt", "new", "new.py"}
"""What the stories name for writing, and nothing denies."""
TERMINALS = frozenset(kind.value for kind in OutcomeKind)

rich = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
"""Few examples, each of them a whole run in a folder of its own; `exploration/` goes through many more."""


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
        """The run, prepared and not started."""
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


def new_folder(folder: Path) -> Path:
    """A new folder below this one."""
    return Path(tempfile.mkdtemp(dir=folder))


# --- Invariants 1 to 4, and 7


@rich
@given(story=stories(), profile=st.sampled_from(PROFILES), limits=contexts(), tight=tight_tokens())
def test_run_with_any_replies_keeps_all_invariants(
    tmp_path: Path, story: Story, profile: Profile, limits: JsonMap, tight: JsonMap
) -> None:
    run = Run.prepared(story, profile, limits | tight, new_folder(tmp_path))
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
    """Only calls that guard has just allowed run; a denied call keeps guard's own error."""
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
    """No limit is exceeded."""
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


def stream(machine: Machine, run: Run) -> None:
    deque(machine.stream(request(), run.config, context=run.context, stream_mode=["messages", "custom", "updates"]))


def astream(machine: Machine, run: Run) -> None:
    async def read_all() -> None:
        async for _ in machine.astream(request(), run.config, context=run.context, stream_mode=["messages", "values"]):
            pass

    asyncio.run(read_all())


def resume_after_every_step(machine: Machine, run: Run) -> None:
    """Each step in a new call, which does not get the context again."""
    machine.invoke(request(), run.config, context=run.context, interrupt_after=NODES)
    while machine.get_state(run.config).next:
        machine.invoke(None, run.config, interrupt_after=NODES)


@rich
@given(story=stories(), profile=st.sampled_from(PROFILES), limits=contexts())
def test_invoke_stream_astream_and_resume_have_the_same_outcome(
    tmp_path: Path, story: Story, profile: Profile, limits: JsonMap
) -> None:
    ends = [
        end_of(Run.prepared(story, profile, limits, new_folder(tmp_path)), way)
        for way in (invoke, stream, astream, resume_after_every_step)
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


@slow
@rich
@given(story=stories(same_in_both=True), limits=contexts())
def test_text_and_native_protocol_visit_the_same_nodes(tmp_path: Path, story: Story, limits: JsonMap) -> None:
    ways = [way_of(Run.prepared(story, profile, limits, new_folder(tmp_path))) for profile in PROFILES[:2]]
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


def without_seconds(usage: JsonMap) -> JsonMap:
    """Usage as far as it repeats."""
    return {name: count for name, count in usage.items() if not name.startswith("seconds")}
