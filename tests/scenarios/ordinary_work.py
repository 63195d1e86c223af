"""Scenarios in which the work gets done: reading, searching, editing, checking, answering."""

from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK, plan
from tests.scenarios.scenario import Expectation, Scenario, Turn

CHECK = """from calc import add

total = add(2, 3)
print(f"2 and 3 make {total}")
raise SystemExit(total != 5)
"""
LINTED = "import os\n\n\ndef add(a, b):\n    return a - b\n"
RUN_CHECK = ("run_command", {"argv": ["python3", "-B", "check.py"]})

ORDINARY_WORK: tuple[Scenario, ...] = (
    Scenario(
        name="ordinary_repair",
        story="The model reads the file, fixes the bug, runs the check of the project, and answers.",
        files={**CALC, "check.py": CHECK},
        settings={"allowed_programs": ("python3",), "checks": ("python3 -B check.py",)},
        turns=(Turn(TASK, (use(READ), use(RUN_CHECK), use(EDIT), use(RUN_CHECK), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}, message="passed: python3 -B check.py."),
        resumed=True,
        sandboxed=True,
    ),
    Scenario(
        name="bug_repaired",
        story="The shortest repair: read, edit, answer. Nothing checks the change, and the outcome says so.",
        files=CALC,
        turns=(Turn(TASK, (use(READ), use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}, message="add now adds."),
        resumed=True,
    ),
    Scenario(
        name="projects_in_folders",
        story="The workspace holds two projects. Each changed file is checked by the tests of its own project, in the"
        " folder of this project.",
        files={
            "backend/pyproject.toml": "",
            "backend/shop/__init__.py": "",
            "backend/shop/calc.py": CALC["calc.py"],
            "backend/tests/test_calc.py": "from shop.calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
            "tools/Makefile": "test:\n\t@sh total.sh\n",
            "tools/total.sh": "exit 1\n",
        },
        settings={"evidence": True},
        turns=(
            Turn(
                TASK,
                (
                    use(
                        ("edit_file", {"path": "backend/shop/calc.py", "old_str": "a - b", "new_str": "a + b"}),
                        ("edit_file", {"path": "tools/total.sh", "old_str": "exit 1", "new_str": "exit 0"}),
                    ),
                    DONE,
                ),
            ),
        ),
        expected=Expectation(
            files={"backend/shop/calc.py": MENDED, "tools/total.sh": "exit 0\n"},
            message="1 test passes; passed: make test in tools.",
        ),
        sandboxed=True,
    ),
    Scenario(
        name="new_diagnostics",
        story="An edit uses a name that is not defined. The linter of the project says so in the same step, and nothing"
        " about the unused import that the file had before. The formatter keeps the format of a formatted file.",
        files={"calc.py": LINTED, "pyproject.toml": '[tool.ruff]\nlint.select = ["F"]\n'},
        settings={"diagnostics": True, "format_edits": True, "tool_timeout_s": 300},
        turns=(
            Turn(
                TASK,
                (
                    use(("edit_file", {"path": "calc.py", "old_str": "    return a - b", "new_str": "    return a+c"})),
                    use(("edit_file", {"path": "calc.py", "old_str": "a + c", "new_str": "a + b"})),
                    DONE,
                ),
            ),
        ),
        expected=Expectation(
            files={"calc.py": LINTED.replace("a - b", "a + b")},
            in_requests=(
                "calc.py:5: F821 Undefined name `c`",
                "by ruff format, so the file differs from what you wrote",
            ),
        ),
        sandboxed=True,
    ),
    Scenario(
        name="named_file_read_ahead",
        story="The request names a file. The machine reads it before the model is asked, so the model edits at once.",
        files=CALC,
        settings={"read_ahead": True},
        turns=(Turn(TASK, (use(EDIT), DONE)),),
        expected=Expectation(files={"calc.py": MENDED}),
    ),
    Scenario(
        name="two_calls_in_one_reply",
        story="One reply makes two calls. Both run, and both results return in one request, in the order of the calls.",
        files={"a/one.txt": "1\n", "b/two.txt": "2\n"},
        turns=(
            Turn(
                "List files in a and b.",
                (use(("list_files", {"path": "a"}), ("list_files", {"path": "b"})), Say("one.txt and two.txt.")),
            ),
        ),
    ),
    Scenario(
        name="edit_that_does_not_match",
        story="The text to replace does not occur. The result shows the actual lines, and the second edit matches.",
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
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("was not read yet", "    return a - b")),
    ),
    Scenario(
        name="unread_file_not_overwritten",
        story="A file that the model has not read is not overwritten. After reading it the model may.",
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
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("was not read yet",)),
    ),
    Scenario(
        name="missing_file",
        story="The model mistypes a path. The error suggests the file that exists.",
        files=CALC,
        turns=(Turn("Show me clac.py.", (use(("read_file", {"path": "clac.py"})), use(READ), Say("Here it is."))),),
        expected=Expectation(in_requests=("Did you mean 'calc.py'?",)),
    ),
    Scenario(
        name="question",
        story="A question needs no tool.",
        files=CALC,
        turns=(Turn("What is a mutex?", (Say("A lock that one thread holds at a time."),)),),
        expected=Expectation(message="A lock that one thread holds at a time."),
    ),
    Scenario(
        name="plan_kept_across_turns",
        story="The model updates a plan beside its calls. The second turn of the thread still has the plan of the"
        " first.",
        files=CALC,
        turns=(
            Turn(TASK, (use(plan("in_progress", "pending"), READ), use(EDIT, plan("done", "done")), DONE)),
            Turn("Thank you.", (Say("You are welcome."),)),
        ),
        expected=Expectation(files={"calc.py": MENDED}, message="You are welcome."),
    ),
    Scenario(
        name="search_without_result",
        story="Two searches find nothing. Their results say what to try next.",
        files=CALC,
        turns=(
            Turn(
                "Where is divide?",
                (
                    use(("search_files", {"pattern": "def divide"}), ("glob_files", {"pattern": "divide*"})),
                    Say("There is no divide."),
                ),
            ),
        ),
        expected=Expectation(
            in_requests=("no matches found; try list_files, check alternate naming, or broaden the filters",),
        ),
    ),
    Scenario(
        name="long_file_in_pages",
        story="A file of 1,200 lines is read in pages of 500 lines. Each page says how much is left and where the"
        " next one starts. Reading the next page is not a loop.",
        files={"long.txt": "".join(f"line {number}\n" for number in range(1, 1_201))},
        turns=(
            Turn(
                "What does the last line of long.txt say?",
                (
                    *(use(("read_file", {"path": "long.txt", "start_line": start})) for start in (1, 501, 1_001)),
                    Say("line 1200"),
                ),
            ),
        ),
        expected=Expectation(
            in_requests=(
                '"lines_shown":500,"lines_remaining":700,"has_more":true,"next_start_line":501',
                '"lines_shown":200,"lines_remaining":0,"has_more":false,"next_start_line":null',
            ),
        ),
    ),
    Scenario(
        name="answer_after_edit",
        story="The last reply contains an edit and the final answer: the run ends without another request.",
        files=CALC,
        turns=(Turn(TASK, (use(EDIT, ("final_answer", {"answer": "add now adds."})),)),),
        expected=Expectation(files={"calc.py": MENDED}, message="add now adds."),
        resumed=True,
    ),
    Scenario(
        name="delegated_part",
        story="The model delegates a part of the work to a child, which may change one file. The child's calls and"
        " tokens count in the budget of the run.",
        files=CALC,
        settings={"delegation": True},
        turns=(
            Turn(
                TASK,
                (
                    use(("delegate", {"task": "Make add in calc.py add.", "mode": "write", "paths": ["calc.py"]})),
                    use(EDIT),
                    Say("add adds."),
                    Say("A child has fixed add."),
                ),
            ),
        ),
        expected=Expectation(files={"calc.py": MENDED}, message="A child has fixed add."),
    ),
    Scenario(
        name="files_created_moved_and_deleted",
        story="A file is created, one is moved, one is deleted. The outcome marks the files that the request did not"
        " name.",
        files={"old.txt": "old\n", "notes.txt": "notes\n"},
        turns=(
            Turn(
                "Move notes.txt to docs/notes.txt and write docs/index.md.",
                (
                    use(
                        ("move_file", {"path": "notes.txt", "target": "docs/notes.txt"}),
                        ("read_file", {"path": "old.txt"}),
                    ),
                    use(
                        ("write_file", {"path": "docs/index.md", "content": "# Index\n\n- notes.txt\n"}),
                        ("delete_file", {"path": "old.txt"}),
                    ),
                    Say("The notes are in docs."),
                ),
            ),
        ),
        expected=Expectation(
            files={
                "notes.txt": "",
                "old.txt": "",
                "docs/notes.txt": "notes\n",
                "docs/index.md": "# Index\n\n- notes.txt\n",
            },
        ),
        resumed=True,
    ),
)
