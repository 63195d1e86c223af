"""Scenarios that a limit, a loop, failed work or a failing endpoint ends, or nearly ends."""

from dataclasses import replace

from mendgraph import ApprovalAnswer, Effect, ToolError, tool
from mendgraph.documents import ToolErrorCode
from tests.doubles.replies import Reply, Say, Slow, Status
from tests.doubles.tool_use import Use, use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.scenarios.scenario import Expectation, Scenario, Turn
from tests.scenarios.unusable_replies import NOT_JSON, failed
from tests.vocabulary import JsonMap, OutcomeKind, Protocol

MODEST = (200, 10)
"""A usage that is small against every limit here."""

BUSY = Status(429, headers={"Retry-After": "0"})
DOWN = Status(503, headers={"Retry-After": "0"})
BAD_KEY = Status(401, {"error": {"message": "Incorrect API key provided.", "code": "invalid_api_key"}})

TOO_LONG = Status(400, {"error": {"message": "This is too long.", "code": "context_length_exceeded"}})

LINES = use(("read_file", {"path": "lines.txt", "limit": 60}), usage=MODEST)
OTHER_LINES = use(("read_file", {"path": "lines.txt", "start_line": 2, "limit": 59}), usage=MODEST)
WHOLE_FILE = ("write_file", {"path": "calc.py", "content": MENDED})
MISS = use(("edit_file", {"path": "calc.py", "old_str": "return a * b", "new_str": "return a + b"}))
RENAME = ("edit_file", {"path": "calc.py", "old_str": "def add", "new_str": "def plus"})
TWO_NAMES = ("calc.py", "./calc.py", "calc.py", "./calc.py")
PRICES: JsonMap = {"usd_per_million_input": 1.0, "usd_per_million_output": 10.0}


@tool(effect=Effect.WRITE)
def publish(name: str) -> ToolError:
    """Publish the package."""
    return ToolError(code=ToolErrorCode.IO_ERROR, message=f"Cannot publish {name!r}: the disk is full.", fatal=True)


def reads(*names: str) -> Use:
    """Read these files."""
    return use(*(("read_file", {"path": name}) for name in names))


def line(number: int, usage: tuple[int, int] | None = MODEST) -> Use:
    """Read one line. Each line is another call, so that no loop ends the run first."""
    return use(("read_file", {"path": "lines.txt", "start_line": number, "limit": 1}), usage=usage)


def calls_of_session(number: float) -> ApprovalAnswer:
    """Raise the limit to this number of calls."""
    return {"decisions": {"0": {"action": "edit", "arguments": {"max_calls_per_session": number}}}}


def stopped(
    name: str,
    story: str,
    reason: str,
    message: str,
    *replies: Use | Reply,
    **settings: float | bool,
) -> Scenario:
    """A run of reading steps that a limit ends."""
    return Scenario(
        name=name,
        story=story,
        files={"lines.txt": "".join(f"line {number}\n" for number in range(1, 13))},
        settings=dict(settings),
        turns=(Turn("Read lines.txt line by line.", replies),),
        expected=Expectation(kind=OutcomeKind.BUDGET_STOP, reason=reason, message=message),
    )


LIMITS: tuple[Scenario, ...] = (
    stopped(
        "stop_max_calls_per_turn",
        "The turn has used the ten model calls of the default limit. The step is completed, and no further request is"
        " made.",
        "max_calls_per_turn",
        "Limit 'max_calls_per_turn' exceeded: 10/10",
        *(line(number) for number in range(1, 11)),
    ),
    Scenario(
        name="stop_max_calls_per_session",
        story="The calls of both turns count against the limit of the session.",
        files=CALC,
        settings={"max_calls_per_session": 3},
        turns=(Turn("Read calc.py.", (use(READ), DONE)), Turn("Read it again.", (use(READ),))),
        expected=Expectation(
            kind=OutcomeKind.BUDGET_STOP,
            reason="max_calls_per_session",
            message="Limit 'max_calls_per_session' exceeded: 3/3",
        ),
        resumed=True,
    ),
    stopped(
        "stop_max_input_tokens",
        "The next request would not fit into what is left of the session's input tokens, so it is not sent.",
        "max_input_tokens",
        "input tokens, and 100 are left.",
        line(1, usage=(49_900, 10)),
        max_input_tokens_per_session=50_000,
    ),
    stopped(
        "stop_max_input_tokens_per_turn",
        "The turn has used its input tokens.",
        "max_input_tokens",
        "Limit 'max_input_tokens_per_turn' exceeded: 50000/50000",
        line(1, usage=(50_000, 10)),
        max_input_tokens_per_turn=50_000,
    ),
    stopped(
        "stop_max_output_tokens",
        "Ten output tokens are too few for a reply, so no request is sent.",
        "max_output_tokens",
        "Only 10 output tokens are left.",
        line(1, usage=(200, 990)),
        max_output_tokens_per_session=1_000,
    ),
    stopped(
        "stop_max_output_tokens_per_turn",
        "The turn has used its output tokens.",
        "max_output_tokens",
        "Limit 'max_output_tokens_per_turn' exceeded: 1000/1000",
        line(1, usage=(200, 1_000)),
        max_output_tokens_per_turn=1_000,
    ),
    stopped(
        "stop_max_steps",
        "The turn has used its steps.",
        "max_steps",
        "Limit 'max_steps' exceeded: 2/2",
        line(1),
        line(2),
        max_steps=2,
    ),
    Scenario(
        name="soft_max_steps",
        story="A soft limit of steps is exceeded, and the run continues.",
        files=CALC,
        settings={"max_steps": 1, "max_steps_soft": True},
        turns=(Turn(TASK, (use(READ), use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
    ),
    stopped(
        "stop_wall_clock",
        "The reply does not arrive before the turn's deadline. The call is dropped.",
        "wall_clock",
        "Limit 'max_seconds' exceeded: ",
        Slow(600, Say("Too late.")),
        max_seconds=0.1,
    ),
    stopped(
        "stop_max_cost",
        "The next call may cost more than is left, so it is not sent.",
        "max_cost",
        "The next call may cost more than is left of max_cost_usd=1.0.",
        line(1, usage=(10_000, 98_990)),
        max_cost_usd=1.0,
        max_output_tokens_per_session=200_000,
        **PRICES,
    ),
    Scenario(
        name="quota_of_a_tool",
        story="A tool may be called twice in a turn, and another one not at all. A denied call does not count. The"
        " next turn counts from zero.",
        files={"a.py": "a = 1\n", "b.py": "b = 2\n", "c.py": "c = 3\n", ".env": "A=1\n"},
        settings={"tool_quotas": {"read_file": 2, "list_files": 0}},
        turns=(
            Turn("Look.", (reads(".env", "a.py"), reads("b.py", "c.py"), use(("list_files", {})), DONE)),
            Turn("Once more.", (reads("c.py"), DONE)),
        ),
        expected=Expectation(
            in_requests=("The quota of read_file is used up: it may be called 2 times. Go on with what you have.",)
        ),
    ),
    Scenario(
        name="healing_pays",
        story="Corrections count as model calls: the limit ends the run before healing is exhausted.",
        files=CALC,
        settings={"max_calls_per_turn": 2},
        turns=(Turn(TASK, (use(NOT_JSON), use(NOT_JSON))),),
        expected=Expectation(
            kind=OutcomeKind.BUDGET_STOP,
            reason="max_calls_per_turn",
            message="Limit 'max_calls_per_turn' exceeded: 2/2",
        ),
    ),
    Scenario(
        name="answer_on_the_last_call",
        story="The last call that the limit allows may give the answer.",
        files=CALC,
        settings={"max_calls_per_turn": 1},
        turns=(Turn("What is a mutex?", (Say("A lock."),)),),
        expected=Expectation(message="A lock."),
    ),
)

READ_TWO_LINES = Turn("Read two lines of lines.txt.", (line(1), line(2), Say("Done.")))
ASKING_LIMITS: tuple[Scenario, ...] = (
    Scenario(
        name="limit_raised",
        story="A person is asked at the limit and raises it as proposed. The turn continues.",
        files={"lines.txt": "one\ntwo\n"},
        settings={"on_limit": "ask", "max_calls_per_turn": 2},
        turns=(replace(READ_TWO_LINES, decisions=("approve",)),),
        expected=Expectation(),
        resumed=True,
    ),
    Scenario(
        name="limit_raised_by_number",
        story="A person types another number than the proposed one; the first adds less than a call. The limit of the"
        " thread also holds in the next turn.",
        files={"lines.txt": "one\ntwo\n"},
        settings={"on_limit": "ask", "max_calls_per_session": 2},
        turns=(
            replace(READ_TWO_LINES, decisions=(calls_of_session(2.5), calls_of_session(5))),
            Turn("Read a line again.", (line(1), DONE)),
        ),
        expected=Expectation(),
        resumed=True,
    ),
    Scenario(
        name="limit_raised_to_fit_a_request",
        story="The next request does not fit into the remaining budget, so a person is asked for as much as it needs.",
        files={"lines.txt": "one\ntwo\n"},
        settings={"on_limit": "ask", "max_input_tokens_per_session": 50_000},
        turns=(Turn("Read lines.txt.", (line(1, usage=(49_900, 10)), DONE), decisions=("approve",)),),
        expected=Expectation(),
    ),
    Scenario(
        name="limit_not_raised",
        story="A person does not raise the limit, and the run stops at it.",
        files={"lines.txt": "one\ntwo\n"},
        settings={"on_limit": "ask", "max_steps": 1},
        turns=(Turn("Read lines.txt.", (line(1),), decisions=("reject",)),),
        expected=Expectation(
            kind=OutcomeKind.BUDGET_STOP, reason="max_steps", message="Limit 'max_steps' exceeded: 1/1"
        ),
    ),
    Scenario(
        name="limit_raised_before_a_correction",
        story="The limit is reached before a correction, which follows once a person has raised it.",
        files=CALC,
        settings={"on_limit": "ask", "max_calls_per_turn": 1},
        turns=(Turn(TASK, (use(NOT_JSON), use(EDIT), DONE), decisions=("approve", "approve")),),
        expected=Expectation(files={"calc.py": MENDED}),
    ),
)

LOOPS: tuple[Scenario, ...] = (
    Scenario(
        name="loop_overridden",
        story="The model makes the same call three times. A typed override refuses a fourth one, and the model"
        " continues with something else.",
        files=CALC,
        turns=(Turn(TASK, (use(READ), use(READ), use(READ), use(EDIT), DONE)),),
        expected=Expectation(
            files={"calc.py": MENDED},
            in_requests=('"kind":"loop_override"', "It is refused until a file changes, and more repeats end the run."),
        ),
    ),
    Scenario(
        name="two_equal_calls_are_no_loop",
        story="The same call made twice is not a loop yet.",
        files=CALC,
        turns=(Turn("Show me calc.py.", (use(READ), use(READ), Say("Here it is."))),),
    ),
    Scenario(
        name="loop_persists",
        story="The model repeats a call that the override refuses. The run ends and names the call.",
        files=CALC,
        turns=(Turn(TASK, (use(READ),) * 4),),
        expected=failed("loop_persisted", "read_file on 'calc.py'"),
        resumed=True,
    ),
    Scenario(
        name="one_file_under_two_names",
        story="The model reads one file under two names. That is one action, and its repetition is a loop.",
        files=CALC,
        turns=(Turn("Read it.", tuple(use(("read_file", {"path": path})) for path in TWO_NAMES)),),
        expected=failed("loop_persisted", "read_file on 'calc.py'"),
    ),
    Scenario(
        name="page_size_and_overrides_configured",
        story="The settings have pages of three lines, and two loop overrides before the run ends.",
        files={"a.txt": "1\n2\n3\n4\n"},
        settings={"read_max_lines": 3, "loop_override_retries": 2},
        turns=(Turn("Read it.", (use(("read_file", {"path": "a.txt"})),) * 5),),
        expected=Expectation(
            kind=OutcomeKind.SYSTEM_ERROR,
            reason="loop_persisted",
            in_requests=('"lines_shown":3,"lines_remaining":1,"has_more":true',),
        ),
    ),
)

FAILED_WORK: tuple[Scenario, ...] = (
    Scenario(
        name="edits_that_never_match",
        story="Two edits do not match the same file. The second result suggests writing the whole file.",
        files=CALC,
        turns=(Turn(TASK, (use(READ), MISS, MISS, use(WHOLE_FILE), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("That is miss 2 on calc.py in this turn",)),
        protocols=(Protocol.NATIVE,),
    ),
    Scenario(
        name="edits_step_down_to_blocks",
        story="Two edits do not match the same file. In the text protocol the machine then asks for the whole code in"
        " a fenced block, which needs no old text.",
        files=CALC,
        turns=(Turn(TASK, (use(READ), MISS, MISS, Say(f"```python\n{MENDED}```"))),),
        expected=Expectation(files={"calc.py": MENDED}),
        protocols=(Protocol.TEXT,),
    ),
    Scenario(
        name="checks_that_never_pass",
        story="The check passes before the change and fails after it. After two tries the run gives up and reverts"
        " its change.",
        files=CALC,
        settings={"checks": ("grep -q 'def add' calc.py",), "max_failed_tries": 2},
        turns=(Turn(TASK, (use(RENAME), DONE, DONE)),),
        expected=failed("checks_failed"),
        sandboxed=True,
    ),
    Scenario(
        name="workspace_failed",
        story="A tool meets a full disk. No reply of the model can help, so the run ends.",
        files=CALC,
        tools=(publish,),
        turns=(Turn("Publish calc.", (use(READ, ("publish", {"name": "calc"})),)),),
        expected=failed("workspace_failed", "the disk is full"),
        resumed=True,
    ),
    Scenario(
        name="invalid_request",
        story="A request without text is refused before anything is spent.",
        files=CALC,
        turns=(Turn(" \n"),),
        expected=failed("invalid_request", "There is no request"),
    ),
)

ENDPOINTS: tuple[Scenario, ...] = (
    Scenario(
        name="endpoint_busy",
        story="The endpoint is busy twice. The same request is sent again, and its edit is made once.",
        files=CALC,
        turns=(Turn(TASK, (BUSY, BUSY, use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
        resumed=True,
    ),
    Scenario(
        name="endpoint_down",
        story="The endpoint fails three times. Two retries are allowed, so the run ends.",
        files=CALC,
        turns=(Turn(TASK, (DOWN,) * 3),),
        expected=failed("provider_failed", "failed"),
    ),
    Scenario(
        name="key_refused",
        story="The endpoint refuses the key. A retry would not help, so none is made.",
        files=CALC,
        turns=(Turn(TASK, (BAD_KEY,)),),
        expected=failed("provider_failed", "OPENAI_API_KEY"),
    ),
    Scenario(
        name="fallback_model",
        story="The first model fails for good, and the fallback gets the same request. In the next step the first"
        " model is called again.",
        files=CALC,
        settings={"provider_retries": 0, "fallback_models": ("second-model",)},
        turns=(Turn(TASK, (use(READ), DOWN, use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
        resumed=True,
    ),
    Scenario(
        name="conversation_too_long",
        story="The endpoint refuses a request as too long. The next request leaves out the beginning of the"
        " conversation.",
        files={"lines.txt": "A line with many words in it, so that the whole file takes room.\n" * 60},
        turns=(Turn("Read lines.txt.", (LINES, OTHER_LINES, TOO_LONG, Say("It has 60 lines.", usage=MODEST))),),
        resumed=True,
    ),
    Scenario(
        name="retries_pay",
        story="Retries count as model calls: the limit ends the run before the retries are used up.",
        files=CALC,
        settings={"max_calls_per_turn": 2},
        turns=(Turn(TASK, (DOWN, DOWN)),),
        expected=Expectation(kind=OutcomeKind.BUDGET_STOP, reason="max_calls_per_turn"),
    ),
)

ENDINGS = (*LIMITS, *ASKING_LIMITS, *LOOPS, *FAILED_WORK, *ENDPOINTS)
