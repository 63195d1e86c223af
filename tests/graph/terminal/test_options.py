"""What the options mean to a run."""

from pathlib import Path

import pytest

from mendgraph.graph import cli
from mendgraph.graph.configuration.context import MAX_CALLS_PER_TURN_LIMIT, AgentContext
from mendgraph.graph.terminal.options import Options, in_order, settings_of


@pytest.mark.parametrize(("calls", "session"), [(1, 100), (100, 100), (MAX_CALLS_PER_TURN_LIMIT, 1000)])
def test_more_calls_in_a_turn_raise_the_session_as_well(calls: int, session: int) -> None:
    context = AgentContext(**settings_of({"max_calls_per_turn": calls}))
    assert (context.max_calls_per_turn, context.max_calls_per_session) == (calls, session)


SPENDING = {
    "max_cost_usd": ("--max-cost-usd", "0.5", 0.5),
    "max_cost_usd_per_day": ("--max-cost-usd-per-day", "2", 2.0),
    "max_tokens_per_day": ("--max-tokens-per-day", "1000000", 1_000_000),
    "account": ("--account", "batch/nightly", "batch/nightly"),
    "max_cost_usd_per_account": ("--max-cost-usd-per-account", "20", 20.0),
    "max_tokens_per_account": ("--max-tokens-per-account", "5000000", 5_000_000),
    "window_tokens": ("--window-tokens", "16384", 16_384),
}


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options with which the command line starts runs, none of which it does."""
    started: list[Options] = []

    def start(options: Options, *_: object, **__: object) -> int:
        started.append(options)
        return 0

    monkeypatch.setattr(cli, "_start", start)
    monkeypatch.chdir(tmp_path)
    return started


@pytest.mark.parametrize("order", [0, 1])
def test_what_limits_spending_can_be_said_on_the_command_line(chosen: list[Options], order: int) -> None:
    words = [word for option, text, _ in SPENDING.values() for word in (option, text)]
    more = ["--fallback", "gpt-x", "--fallback", "m @ https://llm.test/v1"]
    lines = (["Fix it", *words, *more], [*words, *more, "chat"])
    assert cli.main(lines[order]) == 0
    (options,) = chosen
    context = AgentContext(**options.settings)
    assert {name: getattr(context, name) for name in SPENDING} == {name: said[2] for name, said in SPENDING.items()}
    assert context.fallback_models == ("gpt-x", "m @ https://llm.test/v1")
    assert set(options.given) == {"--fallback", *(option for option, _, _ in SPENDING.values())}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max-cost-usd", "0.00009"], "greater than or equal to 0.0001"),
        (["--max-tokens-per-day", str(2**53 + 1)], "less than or equal to 9007199254740992"),
        (["--account", "a\nb"], "an account's name is empty, or has 1 to 200 printable characters"),
        (["--fallback", "x @ y"], "Fallback model 1 is none: write"),
        (["--model", "m", "--fallback", "m"], "Fallback model 1 (m) is in the list already"),
        (
            ["--reasoning-effort", "HIGH"],
            "'HIGH' is not one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'",
        ),
    ],
)
def test_what_no_run_can_have_is_said_at_once(
    chosen: list[Options], capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert cli.main(["Fix it", *words]) == 2
    assert problem in capsys.readouterr().err
    assert chosen == []


COMMANDS = {"run", "chat", "undo", "model"}
GENERAL = {"--root": True, "--model": True, "--json": False, "--version": False}


@pytest.mark.parametrize(
    ("line", "ordered"),
    [
        ("", ""),
        ("task", "run -- task"),
        ("chat", "chat"),
        ("task --json --root a", "--json --root a run -- task"),
        ("--root=a task", "--root=a run -- task"),
        ("--model x chat", "--model x chat"),
        ("--json", "--json run"),
        ("--help", "--help"),
        ("run --help", "--help run"),
        ("-- --task --json", "run -- --task --json"),
        ("task --json --root", "--json --root"),
        ("model pull --root a", "--root a model pull"),
        ("task model", "run -- task model"),
        ("--unknown task", "--unknown run -- task"),
        ("undo a --skip --json", "--json undo a --skip"),
        ("undo a --at=3 --root=b", "--root=b undo a --at=3"),
        ("chat --run a --model b", "--model b chat --run a"),
        ("undo -- --at --json", "undo -- --at --json"),
        ("--at 3 undo a", "--at run -- 3 undo a"),
    ],
)
def test_order_of_words(line: str, ordered: str) -> None:
    assert in_order(line.split(), COMMANDS, GENERAL) == ordered.split()
