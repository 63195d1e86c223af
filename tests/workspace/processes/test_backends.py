"""Which sandbox is chosen, and the error if none starts."""

from typing import get_args

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.sandboxes.backends import AUTO, BACKENDS, choose_sandbox
from mendgraph.nodes.workspace.sandboxes.sandbox import Guarantee
from tests.architecture.product import ROOT
from tests.sandboxes import set_sandbox_problem


def test_error_says_why_no_sandbox_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, "it does not start")
    refusal = choose_sandbox()

    assert isinstance(refusal, ToolError)
    assert refusal.code is ToolErrorCode.UNAVAILABLE
    assert "it does not start" in refusal.message


def test_unknown_sandbox_is_refused_with_the_known_ones() -> None:
    refusal = choose_sandbox("chroot")

    assert isinstance(refusal, ToolError)
    assert refusal.code is ToolErrorCode.INVALID_ARGUMENT
    assert all(name in refusal.message for name in BACKENDS)


def test_documented_guarantees_are_those_of_the_backends() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    table = text.partition("| Guarantee |")[2].partition("\n\n")[0].splitlines()
    names = [cell.strip(" `") for cell in table[0].split("|") if cell.strip()]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:]]

    assert names == [*BACKENDS]
    assert [row[0] for row in rows] == [guarantee.value for guarantee in Guarantee]
    for place, name in enumerate(names, start=1):
        documented = {row[0] for row in rows if row[place] == "yes"}
        assert documented == {guarantee.value for guarantee in BACKENDS[name]().guarantees}


def test_setting_offers_each_backend() -> None:
    assert get_args(AgentContext.model_fields["sandbox"].annotation) == (AUTO, *BACKENDS)
