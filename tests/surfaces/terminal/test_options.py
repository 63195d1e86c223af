"""What the options change for a run, as shown by `mendgraph config --json`."""

import json
from typing import Any

from mendgraph.graph.configuration.settings import MAX_CALLS_PER_TURN_LIMIT
from mendgraph.graph.terminal.options import in_order
from tests.surfaces.conftest import Command


def settings(command: Command, *words: str) -> dict[str, Any]:
    """The settings that come from these options, and the session's limit of calls."""
    code, out, err = command("config", "--json", *words)
    assert (code, err) == (0, "")
    effective = json.loads(out)["settings"]
    named = {
        name: setting["value"]
        for name, setting in effective.items()
        if setting["origin"] == "command line" and name != "workspace"
    }
    return named | {"max_calls_per_session": effective["max_calls_per_session"]["value"]}


def test_higher_max_calls_per_turn_raises_the_session_limit(command: Command) -> None:
    limits = {1: 100, 100: 100, MAX_CALLS_PER_TURN_LIMIT: MAX_CALLS_PER_TURN_LIMIT}
    assert {n: settings(command, f"--max-calls={n}")["max_calls_per_session"] for n in limits} == limits


SPENDING = {
    "max_cost_usd": ("--max-cost-usd", "0.5", 0.5),
    "max_cost_usd_per_day": ("--max-cost-usd-per-day", "2", 2.0),
    "max_tokens_per_day": ("--max-tokens-per-day", "1000000", 1_000_000),
    "account": ("--account", "batch/nightly", "batch/nightly"),
    "max_cost_usd_per_account": ("--max-cost-usd-per-account", "20", 20.0),
    "max_tokens_per_account": ("--max-tokens-per-account", "5000000", 5_000_000),
    "window_tokens": ("--window-tokens", "16384", 16_384),
}


def test_spending_limits_and_fallbacks_are_command_line_options(command: Command) -> None:
    words = [word for option, text, _ in SPENDING.values() for word in (option, text)]
    more = ["--fallback", "gpt-x", "--fallback", "m @ https://llm.test/v1"]
    assert settings(command, *words, *more) == {
        **{name: value for name, (_, _, value) in SPENDING.items()},
        "fallback_models": ["gpt-x", "m @ https://llm.test/v1"],
        "max_calls_per_session": 100,
    }


COMMANDS = {"run", "chat", "undo", "model"}
GENERAL = {"--root": True, "--model": True, "--json": False, "--version": False}
ORDERED = {
    "": "",
    "task": "run -- task",
    "chat": "chat",
    "task --json --root a": "--json --root a run -- task",
    "--root=a task": "--root=a run -- task",
    "--model x chat": "--model x chat",
    "--json": "--json run",
    "--help": "--help",
    "run --help": "--help run",
    "-- --task --json": "run -- --task --json",
    "task --json --root": "--json --root",
    "model pull --root a": "--root a model pull",
    "task model": "run -- task model",
    "--unknown task": "--unknown run -- task",
    "undo a --skip --json": "--json undo a --skip",
    "undo a --at=3 --root=b": "--root=b undo a --at=3",
    "chat --run a --model b": "--model b chat --run a",
    "undo -- --at --json": "undo -- --at --json",
    "--at 3 undo a": "--at run -- 3 undo a",
}


def test_general_options_may_stand_anywhere_in_a_command_line() -> None:
    assert {line: " ".join(in_order(line.split(), COMMANDS, GENERAL)) for line in ORDERED} == ORDERED
