"""The same play once more, in another workspace and in an undisturbed process."""

from collections.abc import Sequence
from typing import Any, Protocol as Shape

from langchain_core.messages import HumanMessage
from langgraph.types import Command, StateSnapshot

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_machine
from mendgraph.graph.machine.routes import NODES
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.records import JsonMap, OutcomeKind
from tests.machine.exploration.line_model import LineModel
from tests.machine.exploration.watch import Turn
from tests.machine.exploration.world import SECRET, MortalSaver, World, prepare


class Play(Shape):
    """What was played."""

    folder: Any
    world: World
    context: AgentContext
    thread: Any
    teller: LineModel


def differences(play: Play, turns: Sequence[Turn], state: StateSnapshot) -> list[str]:
    """What is not as it would be if nothing had happened in between.

    Calls that were lost with a process are paid: where there are any, counters differ, and what a limit ended ended
    earlier.
    """
    world = World(play.folder / "replayed")
    teller = LineModel(world.fuse)
    with prepare(world):
        values = replay_values(
            world, teller, play.context.model_copy(update={"workspace": str(world.root)}), play, turns
        )
    lost = teller.calls != play.teller.calls
    if lost and OutcomeKind.BUDGET_STOP in (*(turn.ended for turn in turns), values["outcome"].kind):
        return []
    replayed_end, played_end = ending(state.values, play.world, lost), ending(values, world, lost)
    return [
        f"{name}: {replayed_end[name]} instead of {played_end[name]}"
        for name in replayed_end
        if replayed_end[name] != played_end[name]
    ]


def replay_values(world: World, teller: LineModel, context: AgentContext, play: Play, turns: Sequence[Turn]) -> Any:
    stop = StopRequest()
    machine_options: JsonMap = {"model": teller, "tools": world.tools, "rules": DEFAULT_GUARDRAIL_RULES}
    machine, nodes = build_machine(MortalSaver(world.fuse), **machine_options, secrets=(SECRET,), stop=stop)
    try:
        for turn in turns:
            stop.clear()
            teller.say(*turn.lines)
            answers = iter(turn.answers)
            finished_nodes = 0
            sent: Any = {"messages": [HumanMessage(turn.request)]}
            while not (finished_nodes and not machine.get_state(play.thread).next) and (
                turn.ended or finished_nodes < turn.nodes
            ):
                stepwise = not turn.ended or (turn.stop_at is not None and finished_nodes < turn.stop_at)
                if turn.stop_at is not None and finished_nodes >= turn.stop_at:
                    stop.ask("by a person")
                settings: JsonMap = {"interrupt_after": NODES if stepwise else []}
                if finished_nodes == 0:
                    settings["context"] = context
                parts = machine.stream(sent, play.thread, stream_mode="updates", **settings)
                finished_nodes += sum(node in NODES for part in parts for node in part)
                sent = Command(resume=next(answers)) if machine.get_state(play.thread).interrupts else None
        return machine.get_state(play.thread).values
    finally:
        nodes.close()


def ending(values: Any, world: World, lost: bool) -> JsonMap:
    """What has to be the same: the outcome but for its times, the history but for ids of messages, files, effects."""
    outcome = values["outcome"].model_dump()
    usage = {name: count for name, count in outcome["usage"].items() if not name.startswith("seconds")}
    history = [message.model_dump(exclude={"id"}) for message in values["messages"]]
    report = {**outcome, "usage": {} if lost else usage}
    return {"outcome": report, "history": history, "files": world.files(), "rung": dict(world.rung)}
