"""What a cassette's settings make of a run."""

import pytest

from graph.cassettes.pinned import context_on, pinned_problem

SETTINGS = {"model": "m", "protocol": "text", "edit_form": "patch", "window_tokens": "8192", "mendgraph": "0"}


def test_what_is_pinned_goes_before_what_is_usual_and_after_what_is_given() -> None:
    context = context_on(SETTINGS, {}, "/w", "http://u/v1")
    assert (context.model, context.protocol, context.edit_form, context.window_tokens) == ("m", "text", "patch", 8192)
    assert (context.workspace, context.base_url, context.evidence) == ("/w", "http://u/v1", False)
    other = context_on(SETTINGS, {"model": "n", "evidence": True, "base_url": "http://v"}, "/w", "http://u/v1")
    assert (other.model, other.evidence, other.base_url, other.protocol) == ("n", True, "http://v", "text")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (SETTINGS, ""),
        ({"mendgraph": "any"}, ""),
        ({"protocol": "foo"}, "settings.protocol that no run can have (Input should be 'text', 'native' or 'auto')"),
        ({"edit_form": ""}, "settings.edit_form that no run can have (Input should be 'replace', 'blocks', "),
        ({"window_tokens": "wide"}, "settings.window_tokens that no run can have (Input should be a valid integer"),
    ],
)
def test_settings_that_no_run_can_have_are_named(settings: dict[str, str], problem: str) -> None:
    found = pinned_problem(settings)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
