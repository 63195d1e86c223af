"""What nodes decide about replies, loops and the end of a turn: a line of the run's log for each, and what is counted.

Each function looks at the state before a node and at the node's update, and gives what `ledger.count_mending` counts.
The log is opened where there is something to write, as that asks the disk.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.records import Effect, LoopRecord, Reading, ToolCall, ToolSpec

Counts = dict[str, int]
OpenLog = Callable[[], RunLog]


def after_parse(open_log: OpenLog, state: AgentState, update: Update) -> Counts:
    """A reply that can be used ends the open corrections."""
    corrections = state.get("corrections") or []
    if not corrections or update["reading"] is Reading.MALFORMED:
        return {}

    open_log().healed(state.get("step", 0), len(corrections))
    return {"healed": 1}


def after_heal(open_log: OpenLog, state: AgentState, update: Update) -> Counts:
    """A reply is read as it is, or asked for again; how the run ends for it is told by the terminal."""
    step = state.get("step", 0)
    corrections = state.get("corrections") or []

    if "reading" in update:
        formats = {item.format for item in state["items"] if isinstance(item, ToolCall) and item.format}
        log = open_log()
        log.rescued(step, sorted(formats))

        if corrections:
            log.healed(step, len(corrections))

        return {"rescued": 1, "healed": int(bool(corrections))}

    if "corrections" not in update:
        return {}

    open_log().asked_again(step, state["errors"], len(update["corrections"]))
    return {"asked_again": 1}


def after_tools(update: Update, specs: Mapping[str, ToolSpec]) -> Counts:
    """Results of tools that read, which show a part of what there is."""
    read = [result for result in update["results"] if result.tool in specs and specs[result.tool].effect is Effect.READ]
    return {"truncated": sum(_is_truncated(result.result.data) for result in read)}


def after_loop_check(open_log: OpenLog, state: AgentState, update: Update) -> Counts:
    """Actions that were overridden in this step, or called again in spite of that."""
    before = {each.signature: each.repeats for each in (state.get("loop") or LoopRecord()).overrides}
    repeated = [each for each in update["loop"].overrides if before.get(each.signature) != each.repeats]
    for override in repeated:
        open_log().repeated(state.get("step", 0), override, new=override.signature not in before)

    overrides = sum(override.signature not in before for override in repeated)
    return {"loops": int(bool(repeated)), "overrides": overrides}


def _is_truncated(data: Mapping[str, Any]) -> bool:
    return bool(data.get("has_more") or data.get("clipped"))
