"""Made-up visits of nodes, to test single texts of the report."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from mendgraph.graph.report.history import History, JudgedCall, Step, Visit
from mendgraph.graph.report.texts import Texts
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import CallResult, ToolCall, ToolResult, Verdict, VerdictKind

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TEXTS = Texts(Redactor(()))
CALL = ToolCall(call_id="c", tool="edit_file", arguments={"path": "a.py"}, raw_arguments="{}")
ALLOWED = Verdict(kind=VerdictKind.ALLOW)
DONE = CallResult(call_id="c", tool="edit_file", result=ToolResult.success(action="edited"), ms=4, attempts=1)


def visit(node: str, target: str = "", *, seconds: float = 1.0, **more: Any) -> Visit:
    """A visit that takes a second; one without a target is not over."""
    ended = NOW + timedelta(seconds=seconds) if target else None
    return Visit(
        **{"node": node, "target": target, "started_at": NOW, "ended_at": ended, "before": {}, "after": {}, **more}
    )


def step(*visits: Visit, number: int = 1) -> Step:
    """A step of these visits."""
    return Step(number, 1, [*visits])


def history(*visits: Visit, **more: Any) -> History:
    """A history of these visits."""
    return History(**{"visits": visits, "values": {}, "requests": (), **more})


def allowed_call(**more: Any) -> JudgedCall:
    """A call that was allowed and went well."""
    return JudgedCall(**{"item": CALL, "verdict": ALLOWED, "result": DONE, **more})


def attributes(view: Any) -> Any:
    """A view as the template reads it: what its maps hold, as attributes."""
    if isinstance(view, dict):
        return SimpleNamespace(**{name: attributes(value) for name, value in view.items()})
    return list(map(attributes, view)) if type(view) is list else view
