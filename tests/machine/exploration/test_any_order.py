"""The invariants of CONTRIBUTING.md over random plays: kills, resumes, forks, questions and stops in any order.

Each example is a play of some twenty transitions, at 10 ms of CPU each: half of that is SQLite and a thread for each
event loop. `make test` has time for one play in three of the ways; `MENDGRAPH_EXPLORE=1` draws new ones.
"""

import os
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from langchain.agents.middleware import before_model, wrap_model_call, wrap_tool_call

from tests.extent import LEVEL, sampled
from tests.machine.exploration.any_order import AnyOrder
from tests.machine.exploration.world import Database, Memory
from tests.vocabulary import Protocol

around_models, around_tools = wrap_model_call(name="models"), wrap_tool_call(name="tools")


def _passed(request: Any, handler: Any) -> Any:
    return handler(request)


EXPLORING: Final = bool(os.environ.get("MENDGRAPH_EXPLORE"))
PLAYS: Final[dict[str, dict[str, Any]]] = {
    "text": {"profile": (Protocol.TEXT, "replace"), "kept_on": Memory},
    "native": {"profile": (Protocol.NATIVE, "replace"), "kept_on": Memory},
    "blocks": {"profile": (Protocol.TEXT, "blocks"), "kept_on": Memory},
    "text in a database": {"profile": (Protocol.TEXT, "auto"), "kept_on": Database},
    "native in a database": {"profile": (Protocol.NATIVE, "auto"), "kept_on": Database},
    "native with hooks": {
        "profile": (Protocol.NATIVE, "replace"),
        "middleware": [before_model(lambda _, __: None), around_models(_passed), around_tools(_passed)],
    },
}
depth = settings(
    max_examples=400 if EXPLORING else (1, 6, 40)[LEVEL],
    stateful_step_count=60 if EXPLORING else 25,
    phases=[Phase.generate, *[Phase.shrink] * EXPLORING],  # to make a failing play shorter takes minutes
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@sampled
@pytest.mark.parametrize("play", PLAYS if LEVEL or EXPLORING else ["native in a database"])
def test_any_order_of_kills_resumes_forks_and_stops_keeps_the_invariants(play: str) -> None:
    run_state_machine_as_test(type("Played", (AnyOrder,), PLAYS[play]), settings=depth)
