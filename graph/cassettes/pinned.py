"""What a cassette says of its run, so that a replay asks for the same without asking the model. Pure."""

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from graph.context import AgentContext
from nodes.records import JsonMap

PINNED: Final = ("model", "protocol", "edit_form", "window_tokens")
"""The settings of a cassette that are settings of `AgentContext`, with the same meaning."""


def context_on(settings: Mapping[str, str], given: JsonMap, workspace: str, base_url: str) -> AgentContext:
    """The context of a run on a cassette with these settings; what is `given` goes before them.

    Evidence is off unless it is asked for: it needs bubblewrap, so what the model is told of it would differ from
    machine to machine.

    Raises:
        ValidationError: what is given is no context.
    """
    known: JsonMap = {"base_url": base_url, "evidence": False, **_pinned(settings), **given}
    return AgentContext.model_validate({**known, "workspace": workspace})


def pinned_problem(settings: Mapping[str, str]) -> str:
    """Which of a cassette's settings no run can have, and why; "" where all are good."""
    try:
        AgentContext.model_validate(_pinned(settings))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"settings.{first['loc'][0]} that no run can have ({first['msg']})"
    return ""


def _pinned(settings: Mapping[str, str]) -> JsonMap:
    return {name: settings[name] for name in PINNED if name in settings}
