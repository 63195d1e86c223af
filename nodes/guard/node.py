"""In: the calls of a reply. Out: one verdict for each. Effect: an interrupt if a person has to approve."""

from collections.abc import Callable, Mapping

from typing_extensions import TypedDict

from mendgraph.nodes.guard import approvals
from mendgraph.nodes.guard.approval_formats import ApprovalRequest, page_fields, response_schema
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.guard.policy import Item, results_of_denied
from mendgraph.nodes.records import LoopRecord, ToolSpec, Verdict, VerdictKind


class GuardState(TypedDict, total=False):
    """The slice of the state that guard reads; `judge` reads `loop` and the hashes of `known_files`."""

    items: list[Item]
    loop: LoopRecord
    permissions: list[Permission]
    known_files: dict[str, str]


def judge_step(
    state: GuardState,
    judge: Callable[[list[Item]], list[Verdict]],
    specs: Mapping[str, ToolSpec],
    ports: Callable[[Callable[[ApprovalRequest], object]], approvals.ApprovalPorts],
) -> approvals.GuardUpdate:
    """Judge every call, with one request for all that need approval; `ports` adds `ask` to the approval ports."""
    items = state.get("items", [])
    update = approvals.GuardUpdate()
    settled = approvals.Settled(items, judge(items))

    if any(verdict.kind is VerdictKind.ASK for verdict in settled.verdicts):
        settled = approvals.settle_with_person(items, settled.verdicts, specs, ports(ask_person))
        if settled.items != items:
            update["items"] = settled.items

        if settled.granted:
            update["permissions"] = list(dict.fromkeys([*state.get("permissions", []), *settled.granted]))

    update["verdicts"] = settled.verdicts
    update["results"] = []
    if not any(verdict.kind is VerdictKind.ALLOW for verdict in settled.verdicts):
        results = results_of_denied(settled.items, settled.verdicts)
        update["results"] = [result for result in results if result]

    cause = approvals.stop_requested(settled.verdicts)
    if cause:
        update["stop"] = cause

    return update


def ask_person(request: ApprovalRequest) -> object:
    """Interrupt the run, and return the answer once there is one."""
    from langgraph.types import interrupt

    return interrupt({**request, **page_fields(request["calls"])}, response_schema=response_schema())
