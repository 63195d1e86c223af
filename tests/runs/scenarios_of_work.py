"""Scenarios in which the work gets done: what a good model does, and what the tools tell one that misses."""

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Say
from tests.runs.scenario import ANSWER, BEGIN, DENIED, FINISHED, STEP, Ends, Scenario, Turn, use

BROKEN = "def add(a, b):\n    return a - b\n"
MENDED = "def add(a, b):\n    return a + b\n"
CALC = {"calc.py": BROKEN}
TASK = "The add function in calc.py is wrong: it subtracts. Fix it."

READ: tuple[str, JsonMap] = ("read_file", {"path": "calc.py"})
EDIT: tuple[str, JsonMap] = ("edit_file", {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})
DONE = Say("add now adds.")


def plan(first: str, second: str) -> tuple[str, JsonMap]:
    """A plan of two steps, in these states."""
    steps = [{"title": "find the bug", "status": first}, {"title": "mend it", "status": second}]
    return ("update_plan", {"steps": steps})


SCENARIOS_OF_WORK: tuple[Scenario, ...] = (
    Scenario(
        cassettes=("bug_repaired/text", "bug_repaired/native"),
        files=CALC,
        turns=(Turn(TASK, (use(READ), use(EDIT), DONE)),),
        ends=Ends(
            path=(*BEGIN, *STEP, *STEP, *ANSWER),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            files={"calc.py": MENDED},
            message="add now adds.",
        ),
    ),
    Scenario(
        cassettes=("two_calls_in_one_reply/text", "two_calls_in_one_reply/native"),
        files={"a/one.txt": "1\n", "b/two.txt": "2\n"},
        turns=(
            Turn(
                "List files in a and b.",
                (use(("list_files", {"path": "a"}), ("list_files", {"path": "b"})), Say("one.txt and two.txt.")),
            ),
        ),
        ends=Ends(path=(*BEGIN, *STEP, *ANSWER), verdicts=("allow", "allow"), results=("ok", "ok")),
    ),
    Scenario(
        cassettes=("edit_that_misses/text", "edit_that_misses/native"),
        files=CALC,
        turns=(
            Turn(
                TASK,
                (
                    use(("edit_file", {"path": "calc.py", "old_str": "  return a-b\n", "new_str": "  return a+b\n"})),
                    use(EDIT),
                    DONE,
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *STEP, *STEP, *ANSWER),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            files={"calc.py": MENDED},
            told=("was not read yet", "    return a - b"),
        ),
    ),
    Scenario(
        cassettes=("overwriting_unread/text", "overwriting_unread/native"),
        files=CALC,
        turns=(
            Turn(
                TASK,
                (
                    use(("write_file", {"path": "calc.py", "content": MENDED})),
                    use(READ, ("write_file", {"path": "calc.py", "content": MENDED})),
                    DONE,
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *STEP, *STEP, *ANSWER),
            verdicts=("allow", "allow", "allow"),
            results=("ok", "ok", "ok"),
            files={"calc.py": MENDED},
            told=("was not read yet",),
        ),
    ),
    Scenario(
        cassettes=("missing_file/text", "missing_file/native"),
        files=CALC,
        turns=(Turn("Show me clac.py.", (use(("read_file", {"path": "clac.py"})), use(READ), Say("Here it is."))),),
        ends=Ends(
            path=(*BEGIN, *STEP, *STEP, *ANSWER),
            verdicts=("allow", "allow"),
            results=("not_found", "ok"),
            told=("Did you mean 'calc.py'?",),
        ),
    ),
    Scenario(
        cassettes=("question/text", "question/native"),
        files=CALC,
        turns=(Turn("What is a mutex?", (Say("A lock that one thread holds at a time."),)),),
        ends=Ends(path=(*BEGIN, *ANSWER), message="A lock that one thread holds at a time."),
    ),
    Scenario(
        cassettes=("plan_kept/text", "plan_kept/native"),
        files=CALC,
        turns=(
            Turn(TASK, (use(plan("in_progress", "pending"), READ), use(EDIT, plan("done", "done")), DONE)),
            Turn("Thank you.", (Say("You are welcome."),)),
        ),
        ends=Ends(
            path=(*BEGIN, *STEP, *STEP, *ANSWER, *BEGIN, *ANSWER),
            verdicts=("allow",) * 4,
            results=("ok",) * 4,
            files={"calc.py": MENDED},
        ),
    ),
    Scenario(
        cassettes=("search_without_result/text", "search_without_result/native"),
        files=CALC,
        turns=(
            Turn("Where is divide?", (use(("search_files", {"pattern": "def divide"})), Say("There is no divide."))),
        ),
        ends=Ends(
            path=(*BEGIN, *STEP, *ANSWER),
            verdicts=("allow",),
            results=("ok",),
            told=("no matches found; try list_files",),
        ),
    ),
    Scenario(
        cassettes=("long_file_in_pages/text", "long_file_in_pages/native"),
        files={"long.txt": "".join(f"line {number}\n" for number in range(1, 601))},
        turns=(
            Turn(
                "What does the last line of long.txt say?",
                (
                    use(("read_file", {"path": "long.txt"})),
                    use(("read_file", {"path": "long.txt", "start_line": 501})),
                    Say("line 600"),
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *STEP, *STEP, *ANSWER),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            told=('"lines_shown":500,"lines_remaining":100,"has_more":true,"next_start_line":501',),
        ),
    ),
    Scenario(
        cassettes=("answer_after_edit/text", "answer_after_edit/native"),
        files=CALC,
        turns=(Turn(TASK, (use(EDIT, ("final_answer", {"answer": "add now adds."})),)),),
        ends=Ends(
            path=(*BEGIN, *STEP, *FINISHED),
            verdicts=("allow", "allow"),
            results=("ok", "ok"),
            files={"calc.py": MENDED},
            message="add now adds.",
        ),
    ),
    Scenario(
        cassettes=("env_file_denied/text", "env_file_denied/native"),
        files={".env": "TOKEN=swordfish\n", "app.py": "import os\n"},
        turns=(
            Turn(
                "Set DEBUG in the environment file.",
                (
                    use(("read_file", {"path": ".env"})),
                    use(("read_file", {"path": "app.py"}), ("write_file", {"path": ".ENV", "content": "DEBUG=1\n"})),
                    Say("I may not touch .env: please set DEBUG there."),
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *DENIED, *STEP, *ANSWER),
            verdicts=("env_file", "allow", "env_file"),
            results=("permission_denied", "ok", "permission_denied"),
            told=("Blocked by rule 'env_file': Environment variable files (.env). Go on without this file.",),
        ),
    ),
    Scenario(
        cassettes=("outside_denied/text", "outside_denied/native"),
        files=CALC,
        turns=(
            Turn(
                "Look around.",
                (
                    use(("read_file", {"path": "../"}), ("list_files", {"path": "/etc"})),
                    use(("list_files", {"path": "."})),
                    Say("There is calc.py."),
                ),
            ),
        ),
        ends=Ends(
            path=(*BEGIN, *DENIED, *STEP, *ANSWER),
            verdicts=("workspace_boundary", "workspace_boundary", "allow"),
            results=("permission_denied", "permission_denied", "ok"),
            told=("'../' is outside the workspace. Use a relative path under '.'.",),
        ),
    ),
    Scenario(
        cassettes=("read_only_run/text", "read_only_run/native"),
        files=CALC,
        context={"mode": "read-only"},
        turns=(Turn(TASK, (use(EDIT), Say("Change line 2 to `return a + b`."))),),
        ends=Ends(
            path=(*BEGIN, *DENIED, *ANSWER),
            verdicts=("read_only",),
            results=("permission_denied",),
            message="Change line 2",
        ),
    ),
)
