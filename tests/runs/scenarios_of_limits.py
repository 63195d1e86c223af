"""Scenarios in which a run is ended for its own good: loops, and each limit of the budget."""

from mendgraph.nodes.records import JsonMap, OutcomeKind, StopReason
from tests.doubles.replies import Reply, Say
from tests.runs.scenario import (
    ANSWER,
    BEGIN,
    BUDGET_STOP,
    DENIED,
    HEAL,
    STEP,
    SYSTEM_ERROR,
    Ends,
    Path,
    Scenario,
    Turn,
    Use,
    use,
)
from tests.runs.scenarios_of_healing import NOT_JSON
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, MENDED, READ, TASK

MODEST = (100, 10)
"""Tokens of a reply that is small against every limit here."""
NOT_SENT: Path = ("call_model",)
"""A call that does not fit into what is left is not sent."""


def stopped(
    name: tuple[str, str],
    reason: StopReason,
    message: str,
    path: Path,
    *replies: Use | Reply,
    seconds_per_call: float = 1.0,
    **context: float | bool,
) -> Scenario:
    """A run of reading steps that a limit ends. All calls went well, but the one for which no time was left."""
    done = sum(isinstance(reply, Use) for reply in replies)
    late = int(reason is StopReason.WALL_CLOCK)
    return Scenario(
        cassettes=name,
        files={"calc.py": "one\ntwo\nthree\n"},
        context=dict(context),
        turns=(Turn("Read calc.py line by line.", replies),),
        ends=Ends(
            kind=OutcomeKind.BUDGET_STOP,
            reason=reason,
            path=(*BEGIN, *path, *BUDGET_STOP),
            verdicts=("allow",) * done,
            results=("ok",) * (done - late) + ("timeout",) * late,
            message=message,
        ),
        seconds_per_call=seconds_per_call,
    )


def line(number: int, usage: tuple[int, int] = MODEST) -> Use:
    """Read one line: each line is another action, so that no loop ends the run first."""
    return use(("read_file", {"path": "calc.py", "start_line": number, "limit": 1}), usage=usage)


PRICES: JsonMap = {"usd_per_million_input": 1.0, "usd_per_million_output": 10.0}

SCENARIOS_OF_LIMITS: tuple[Scenario, ...] = (
    Scenario(
        cassettes=("loop_overridden/text", "loop_overridden/native"),
        files=CALC,
        turns=(Turn(TASK, (use(READ), use(READ), use(READ), use(EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *STEP * 4, *ANSWER),
            verdicts=("allow",) * 4,
            results=("ok",) * 4,
            files={"calc.py": MENDED},
            told=('"kind":"loop_override"', "It is refused until a file changes, and more repeats end the run."),
        ),
    ),
    Scenario(
        cassettes=("loop_persists/text", "loop_persists/native"),
        files=CALC,
        turns=(Turn(TASK, (use(READ),) * 4),),
        ends=Ends(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason=StopReason.LOOP_PERSISTED,
            path=(*BEGIN, *STEP * 3, *DENIED, *SYSTEM_ERROR),
            verdicts=("allow", "allow", "allow", "loop_override"),
            results=("ok", "ok", "ok", "loop_override"),
            message="read_file on 'calc.py'",
        ),
    ),
    stopped(
        ("stop_max_calls_per_turn/text", "stop_max_calls_per_turn/native"),
        StopReason.MAX_CALLS_PER_TURN,
        "Limit 'max_calls_per_turn' exceeded: 2/2",
        STEP * 2,
        line(1),
        line(2),
        max_calls_per_turn=2,
    ),
    Scenario(
        cassettes=("stop_max_calls_per_session/text", "stop_max_calls_per_session/native"),
        files=CALC,
        context={"max_calls_per_session": 3},
        turns=(Turn("Read calc.py.", (use(READ), DONE)), Turn("Read it again.", (use(READ),))),
        ends=Ends(
            kind=OutcomeKind.BUDGET_STOP,
            reason=StopReason.MAX_CALLS_PER_SESSION,
            path=(*BEGIN, *STEP, *ANSWER, *BEGIN, *STEP, *BUDGET_STOP),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            message="Limit 'max_calls_per_session' exceeded: 3/3",
        ),
    ),
    stopped(
        ("stop_max_input_tokens/text", "stop_max_input_tokens/native"),
        StopReason.MAX_INPUT_TOKENS,
        "input tokens, and 100 are left.",
        (*STEP, *NOT_SENT),
        line(1, usage=(49_900, 10)),
        max_input_tokens_per_session=50_000,
    ),
    stopped(
        ("stop_max_input_tokens_per_turn/text", "stop_max_input_tokens_per_turn/native"),
        StopReason.MAX_INPUT_TOKENS,
        "Limit 'max_input_tokens_per_turn' exceeded: 50000/50000",
        STEP,
        line(1, usage=(50_000, 10)),
        max_input_tokens_per_turn=50_000,
    ),
    stopped(
        ("stop_max_output_tokens/text", "stop_max_output_tokens/native"),
        StopReason.MAX_OUTPUT_TOKENS,
        "Only 10 output tokens are left.",
        (*STEP, *NOT_SENT),
        line(1, usage=(100, 990)),
        max_output_tokens_per_session=1_000,
    ),
    stopped(
        ("stop_max_output_tokens_per_turn/text", "stop_max_output_tokens_per_turn/native"),
        StopReason.MAX_OUTPUT_TOKENS,
        "Limit 'max_output_tokens_per_turn' exceeded: 1000/1000",
        STEP,
        line(1, usage=(100, 1_000)),
        max_output_tokens_per_turn=1_000,
    ),
    stopped(
        ("stop_max_steps/text", "stop_max_steps/native"),
        StopReason.MAX_STEPS,
        "Limit 'max_steps' exceeded: 2/2",
        STEP * 2,
        line(1),
        line(2),
        max_steps=2,
    ),
    Scenario(
        cassettes=("soft_max_steps/text", "soft_max_steps/native"),
        files=CALC,
        context={"max_steps": 1, "max_steps_soft": True},
        turns=(Turn(TASK, (use(READ), use(EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *STEP * 2, *ANSWER),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            files={"calc.py": MENDED},
        ),
    ),
    stopped(
        ("stop_wall_clock/text", "stop_wall_clock/native"),
        StopReason.WALL_CLOCK,
        "Limit 'max_seconds' exceeded: 40.0",
        STEP * 2,
        line(1),
        line(2),
        seconds_per_call=20.0,
        max_seconds=30.0,
    ),
    stopped(
        ("stop_max_cost/text", "stop_max_cost/native"),
        StopReason.MAX_COST,
        "The next call may cost more than is left of max_cost_usd=1.0.",
        (*STEP, *NOT_SENT),
        line(1, usage=(10_000, 98_990)),
        max_cost_usd=1.0,
        max_output_tokens_per_session=200_000,
        **PRICES,
    ),
    Scenario(
        cassettes=("healing_pays/text", "healing_pays/native"),
        files=CALC,
        context={"max_calls_per_turn": 2},
        turns=(Turn(TASK, (use(NOT_JSON), use(NOT_JSON))),),
        ends=Ends(
            kind=OutcomeKind.BUDGET_STOP,
            reason=StopReason.MAX_CALLS_PER_TURN,
            path=(*BEGIN, *HEAL * 2, *BUDGET_STOP),
            message="Limit 'max_calls_per_turn' exceeded: 2/2",
        ),
    ),
    Scenario(
        cassettes=("answer_on_the_last_call/text", "answer_on_the_last_call/native"),
        files=CALC,
        context={"max_calls_per_turn": 1},
        turns=(Turn("What is a mutex?", (Say("A lock."),)),),
        ends=Ends(path=(*BEGIN, *ANSWER), message="A lock."),
    ),
)
