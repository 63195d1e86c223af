"""What the options mean to a run."""

from typing import Any, get_args

import pytest

from graph.context import MAX_CALLS_PER_TURN_LIMIT, AgentContext
from graph.terminal.options import MIN_CALLS_PER_SESSION, Role, program_problem, settings_of, unreachable_host
from nodes.execute_tools.policy.roles import BUILT_IN_ROLES


def test_what_was_not_given_keeps_its_default() -> None:
    settings = settings_of(None, mode=None, model=None, max_steps=None, temperature=None)
    assert AgentContext(**settings) == AgentContext()


def test_what_was_given_reaches_the_context() -> None:
    given: dict[str, Any] = {
        "mode": "ask",
        "model": "m",
        "base_url": "http://llm.test/v1",
        "protocol": "text",
        "max_steps": 2,
        "max_seconds": 0.5,
        "temperature": 0.0,
        "seed": 0,
    }
    context = AgentContext(**settings_of(None, **given))
    assert {name: getattr(context, name) for name in given} == given


@pytest.mark.parametrize(("calls", "session"), [(1, 100), (100, 100), (MAX_CALLS_PER_TURN_LIMIT, 1000)])
def test_more_calls_in_a_turn_raise_the_session_as_well(calls: int, session: int) -> None:
    context = AgentContext(**settings_of(calls))
    assert (context.max_calls_per_turn, context.max_calls_per_session) == (calls, session)


def test_the_session_never_gets_fewer_calls_than_by_default() -> None:
    assert AgentContext().max_calls_per_session == MIN_CALLS_PER_SESSION


def test_the_roles_are_those_that_are_built_in() -> None:
    assert get_args(get_args(get_args(Role)[0])[0]) == tuple(BUILT_IN_ROLES)


@pytest.mark.parametrize("entry", ["make", "python3.12", "g++", ".venv/bin/pytest", "./run", "/usr/bin/make", "é"])
def test_one_program_is_a_name_or_a_path(entry: str) -> None:
    assert program_problem(entry) is None


REMEDY = "give a name such as make, or a path such as .venv/bin/pytest"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("python3 -m pytest", "'python3 -m pytest' is not one program: give the program alone, 'python3'"),
        (" make", "' make' is not one program: give the program alone, 'make'"),
        ("/usr/bin/make\n", r"'/usr/bin/make\n' is not one program: give the program alone, '/usr/bin/make'"),
        ("", f"'' is not one program: {REMEDY}"),
        ("-m", f"'-m' is not one program: {REMEDY}"),
        ("*", f"'*' is not one program: {REMEDY}"),
        ("make;ls", f"'make;ls' is not one program: {REMEDY}"),
        ("$HOME/x y", f"'$HOME/x y' is not one program: {REMEDY}"),
        ("~/bin/x", f"'~/bin/x' is not one program: {REMEDY}"),
        ("/usr/bin/", f"'/usr/bin/' is not one program: {REMEDY}"),
    ],
)
def test_what_is_not_one_program_is_told_with_the_remedy(entry: str, problem: str) -> None:
    assert program_problem(entry) == problem


@pytest.mark.parametrize(
    ("private", "hosts", "found"),
    [
        ([], [], None),
        (["db.corp"], [], "db.corp"),
        (["db.corp"], ["other.corp"], "db.corp"),
        (["db.corp"], ["*"], None),
        (["DB.corp."], ["db.corp"], None),
        (["a.corp", "db.corp"], ["a.corp"], "db.corp"),
        (["db.corp"], ["*.corp"], None),
        (["*.corp"], ["db.corp"], None),
        (["*.corp"], ["*.corp"], None),
        (["*.corp"], ["corp"], "*.corp"),
        (["corp"], ["*.corp"], "corp"),
        (["*.db.corp"], ["*.corp"], None),
        (["db.corp:8080"], ["db.corp"], "db.corp:8080"),
        (["db.corp:443"], ["db.corp"], None),
        (["db.corp:8080"], ["db.corp:8080"], None),
        (["db.corp"], ["db.corp:8080"], None),
    ],
)
def test_a_private_host_has_to_be_an_allowed_one(private: list[str], hosts: list[str], found: str | None) -> None:
    assert unreachable_host(private, hosts) == found
