"""Scenarios in which a call needs a permission: rules deny it, or a person decides."""

from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.scenarios.scenario import Expectation, Scenario, Turn
from tests.vocabulary import JsonMap, OutcomeKind

SECRETS = {".env": "TOKEN=swordfish\n", "app.py": "import os\n"}
ASK = {"mode": "ask", "role": "editor"}
"""A person is asked about files only: which other tools are offered would depend on the sandboxes of the machine."""

NEW_FILE = ("write_file", {"path": "test_calc.py", "content": "from calc import add\n\nassert add(2, 3) == 5\n"})

PRICES = """def total(prices):
    return sum(prices)


def count(prices):
    return len(prices)


def net(price, rate):
    return price / (1 + rate)
"""
PATCH = """*** Begin Patch
*** Update File: prices.py
@@
-def total(prices):
+def total_eur(prices):
@@
-def net(price, rate):
+def net_eur(price, rate):
*** Add File: units.md
+Prices are in euros.
*** End Patch"""

SENSITIVE = (".env", "server.pem", "server.key", "credentials.json", ".git/config", "id_rsa")
SYSTEM_FILES = ("/etc/passwd", "/usr/lib/os-release", "../../../../../../../../../../etc/passwd")
CONFIGURATION = ("config.yaml", "settings.py", "pyproject.toml")


def edit_x(name: str) -> tuple[str, JsonMap]:
    """Call `edit_file` to set x in this file."""
    return ("edit_file", {"path": name, "old_str": "x = 1", "new_str": "x = 2"})


DENIED: tuple[Scenario, ...] = (
    Scenario(
        name="env_file_denied",
        story="A protected file is neither read nor written, whatever the case of its name. A call beside it runs.",
        files=SECRETS,
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
        expected=Expectation(
            in_requests=("Blocked by rule 'env_file': Environment variable files (.env). Go on without this file.",),
        ),
        resumed=True,
    ),
    Scenario(
        name="outside_denied",
        story="Nothing outside the workspace is listed or read.",
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
        expected=Expectation(in_requests=("'../' is outside the workspace. Use a relative path under '.'.",)),
    ),
    Scenario(
        name="sensitive_files_denied",
        story="Each kind of sensitive file is denied by the rule that names it, and the file is unchanged.",
        files=dict.fromkeys(SENSITIVE, "x = 1\n"),
        turns=(Turn("Set x to 2 everywhere.", (use(*(edit_x(name) for name in SENSITIVE)), Say("I may not."))),),
        expected=Expectation(in_requests=("env_file", "private_key", "sensitive_config", "git_internal")),
    ),
    Scenario(
        name="system_files_denied",
        story="Files of the system are denied, by absolute names and by names that lead out of the workspace.",
        files=CALC,
        turns=(Turn("Set x to 2 there.", (use(*(edit_x(name) for name in SYSTEM_FILES)), Say("I may not."))),),
        expected=Expectation(in_requests=("is outside the workspace",)),
    ),
    Scenario(
        name="project_configuration_edited",
        story="In mode auto no rule denies the configuration of the project.",
        files=dict.fromkeys(CONFIGURATION, "x = 1\n"),
        turns=(Turn("Set x to 2 everywhere.", (use(*(edit_x(name) for name in CONFIGURATION)), Say("x is 2."))),),
        expected=Expectation(files=dict.fromkeys(CONFIGURATION, "x = 2\n")),
    ),
    Scenario(
        name="read_only_run",
        story="In mode read-only no change is made, and the model explains instead.",
        files=CALC,
        settings={"mode": "read-only"},
        turns=(Turn(TASK, (use(EDIT), Say("Change line 2 to `return a + b`."))),),
        expected=Expectation(message="Change line 2"),
    ),
    Scenario(
        name="plan_mode",
        story="In mode plan the model is asked for a plan. A change is refused, and its answer is the plan.",
        files=CALC,
        settings={"mode": "plan"},
        turns=(Turn(TASK, (use(READ), use(EDIT), Say("1. calc.py, line 2: return a + b."))),),
        expected=Expectation(message="1. calc.py"),
    ),
)

APPROVALS: tuple[Scenario, ...] = (
    Scenario(
        name="approval_granted",
        story="In mode ask a person sees the diff of an edit before it is made, and approves it.",
        files=CALC,
        settings=ASK,
        turns=(Turn(TASK, (use(READ), use(EDIT), DONE), decisions=("approve",)),),
        expected=Expectation(files={"calc.py": MENDED}),
        resumed=True,
    ),
    Scenario(
        name="approval_refused",
        story="A person rejects an edit and says why. The model reads the reason and answers without the edit.",
        files=CALC,
        settings=ASK,
        turns=(
            Turn(
                TASK,
                (use(EDIT), Say("Then I leave it as it is.")),
                decisions=({"decisions": {"0": {"action": "reject", "reason": "Not before the release."}}},),
            ),
        ),
        expected=Expectation(in_requests=("Not before the release.",)),
        resumed=True,
    ),
    Scenario(
        name="approval_for_one_of_two",
        story="One reply makes two changes. The person approves the first and does not answer for the second.",
        files=CALC,
        settings=ASK,
        turns=(
            Turn(
                TASK,
                (use(EDIT, NEW_FILE), DONE),
                decisions=({"decisions": {"0": {"action": "approve"}}},),
            ),
        ),
        expected=Expectation(files={"calc.py": MENDED}),
    ),
    Scenario(
        name="approval_for_the_run",
        story="The person approves edits for the rest of the run, so the second edit is not asked about.",
        files=CALC,
        settings=ASK,
        turns=(
            Turn(
                TASK,
                (
                    use(EDIT),
                    use(("edit_file", {"path": "calc.py", "old_str": "(a, b)", "new_str": "(a, b, /)"})),
                    DONE,
                ),
                decisions=("approve_for_run",),
            ),
        ),
        expected=Expectation(files={"calc.py": MENDED.replace("(a, b)", "(a, b, /)")}),
    ),
    Scenario(
        name="approval_of_hunks",
        story="A patch changes two places of one file and adds another file. The person approves the first place and"
        " the new file, and the model reads which part was not written.",
        files={"prices.py": PRICES},
        settings={**ASK, "edit_form": "patch"},
        turns=(
            Turn(
                "Prices are in euros. Rename total to total_eur.",
                (use(("apply_patch", {"patch": PATCH})), Say("Renamed total. net stays as it was.")),
                decisions=({"decisions": {"0": {"action": "approve", "hunks": [1, 3]}}},),
            ),
        ),
        expected=Expectation(
            files={"prices.py": PRICES.replace("total(", "total_eur("), "units.md": "Prices are in euros.\n"},
            in_requests=("a person approved only 1, 3: the declined ones are not written",),
        ),
        resumed=True,
    ),
    Scenario(
        name="stopped_instead_of_approving",
        story="Instead of approving a call, a person stops the run. No call of the reply runs.",
        files=CALC,
        settings=ASK,
        turns=(Turn(TASK, (use(READ), use(READ, EDIT)), decisions=("stop",)),),
        expected=Expectation(
            kind=OutcomeKind.BUDGET_STOP,
            reason="cancelled",
            message="A person stopped the run instead of approving a call",
        ),
        resumed=True,
    ),
)

PROGRAMS: tuple[Scenario, ...] = (
    Scenario(
        name="approval_of_a_program",
        story="In mode ask a person approves a program that the run does not allow, and it runs in the sandbox. A"
        " program that is not installed is refused without a question.",
        files={"note.txt": "Remember.\n"},
        settings={"mode": "ask", "allowed_programs": ("ls",)},
        turns=(
            Turn(
                "What does note.txt say?",
                (
                    use(("run_command", {"argv": ["cat", "note.txt"]})),
                    use(("run_command", {"argv": ["no-such-program"]})),
                    Say("Remember."),
                ),
                decisions=("approve",),
            ),
        ),
        expected=Expectation(in_requests=("The program 'no-such-program' is not installed",)),
        sandboxed=True,
    ),
)

LINES: tuple[Scenario, ...] = (
    Scenario(
        name="approval_of_a_command_line",
        story="A person allows a program for the run, and the next simple command line with it runs without a"
        " question. A line with a pipe counts as the program bash, and no answer allows lines with the same prefix.",
        files={"note.txt": "Remember.\n"},
        settings={"mode": "ask", "role": "operator"},
        turns=(
            Turn(
                "How many lines has note.txt?",
                (
                    use(("run_shell", {"command": "cat 'note.txt'"})),
                    use(("run_shell", {"command": "cat note.txt"})),
                    use(("run_shell", {"command": "cat note.txt | wc -l"})),
                    use(("run_shell", {"command": "cat note.txt > copy.txt"})),
                    Say("One."),
                ),
                decisions=("approve_for_run", "approve", "reject"),
            ),
        ),
        expected=Expectation(in_requests=("A person did not approve this call",)),
        sandboxed=True,
    ),
    Scenario(
        name="command_line_of_the_settings",
        story="In mode auto a command line runs if the settings list a prefix of each of its commands, and its output"
        " may be filtered. One that writes a file is refused, as the settings do not list the shell.",
        files={"note.txt": "Remember.\n"},
        settings={"mode": "auto", "allowed_commands": ("cat", "no-such-program")},
        turns=(
            Turn(
                "What does note.txt say?",
                (
                    use(("run_shell", {"command": "cat note.txt"})),
                    use(("run_shell", {"command": "cd . && cat note.txt 2>&1 | wc -l"})),
                    use(("run_shell", {"command": "cat note.txt > copy.txt"})),
                    Say("Remember."),
                ),
            ),
        ),
        expected=Expectation(in_requests=("A command line may only join allowed commands",)),
        sandboxed=True,
    ),
    Scenario(
        name="tests_of_the_project_in_mode_auto",
        story="The settings list the command that runs the project's tests. It runs with any arguments, as do its other"
        " forms. Other code is refused, and so is a program that would prepare the environment.",
        files={"manage.py": "import sys\n\nprint('arguments:', *sys.argv[1:])\n"},
        settings={"mode": "auto", "allowed_commands": ("python manage.py test",)},
        turns=(
            Turn(
                "What do the tests say?",
                (
                    use(("run_shell", {"command": "poetry run python manage.py test"})),
                    use(("run_shell", {"command": "python manage.py test shop"})),
                    use(("run_shell", {"command": "python3 manage.py test -v 2"})),
                    use(("run_shell", {"command": "python manage.py shell"})),
                    use(("run_shell", {"command": "cd . && ls -l | head; sed -n 1,9p manage.py"})),
                    Say("They print their arguments."),
                ),
            ),
        ),
        expected=Expectation(
            in_requests=(
                "arguments: test shop",
                "arguments: test -v 2",
                "without poetry: start its programs directly, such as 'python manage.py test'.",
                "'python' may not be run with these arguments: allowed are python manage.py test.",
                "'bash' may not be run: allowed are python manage.py test. Use list_files and read_file instead.",
            )
        ),
        sandboxed=True,
    ),
)

SERVER = """from http.server import HTTPServer, SimpleHTTPRequestHandler

SimpleHTTPRequestHandler.log_message = lambda *_: None
server = HTTPServer(("127.0.0.1", 8000), SimpleHTTPRequestHandler)
open("log.txt", "w").write("started\\n")
print("ready", flush=True)
server.serve_forever()
"""
CLIENT = """from urllib.request import urlopen

print(urlopen("http://127.0.0.1:8000/note.txt").read().decode())
"""

MENDER = """import pathlib, time

while not pathlib.Path("start.txt").exists():
    time.sleep(0.01)

pathlib.Path("calc.py").write_text("def add(a, b):\\n    return a + b\\n")
print("mended", flush=True)
time.sleep(1_000)
"""

CHECK = """from calc import add

assert add(2, 3) == 5
"""

JOBS: tuple[Scenario, ...] = (
    Scenario(
        name="server_in_the_background",
        story="A server runs in the background, a second program connects to it, and then the server is ended. What"
        " it has written is a change of the run.",
        files={"note.txt": "Remember.", "serve.py": SERVER, "ask.py": CLIENT},
        settings={"allowed_programs": ("python3",), "jobs": True, "sandbox": "bubblewrap"},
        turns=(
            Turn(
                "What does the server say?",
                (
                    use(("run_command", {"argv": ["python3", "serve.py"], "background": True})),
                    use(("job_output", {"job": "1.1", "wait_s": 30, "pattern": "ready"})),
                    use(("run_command", {"argv": ["python3", "ask.py"]})),
                    use(("job_kill", {"job": "1.1"}), ("job_output", {"job": "2.1"})),
                    Say("It says: Remember."),
                ),
            ),
        ),
        expected=Expectation(files={"log.txt": "started\n"}, in_requests=('"running":false,"exit_code":143',)),
        sandboxed=True,
    ),
    Scenario(
        name="job_ends_before_the_checks",
        story="A command runs in the background and changes a file. It ends with the turn, before the change is"
        " checked, and cannot change what was checked.",
        files={"calc.py": "def add(a, b):\n    return a - b\n", "mend.py": MENDER, "check.py": CHECK},
        settings={
            "allowed_programs": ("python3",),
            "checks": ("python3 -B check.py",),
            "jobs": True,
            "sandbox": "bubblewrap",
        },
        turns=(
            Turn(
                "Mend calc.py.",
                (
                    use(("run_command", {"argv": ["python3", "mend.py"], "background": True})),
                    use(
                        ("write_file", {"path": "start.txt", "content": "Start.\n"}),
                        ("job_output", {"job": "1.1", "wait_s": 30, "pattern": "mended"}),
                    ),
                    Say("It is mended."),
                ),
            ),
        ),
        expected=Expectation(files={"calc.py": "def add(a, b):\n    return a + b\n", "start.txt": "Start.\n"}),
        sandboxed=True,
    ),
)


WHICH = ("ask_user", {"question": "Which sum?", "choices": ["of integers", "of decimals"]})
QUESTIONS: tuple[Scenario, ...] = (
    Scenario(
        name="question_answered",
        story="The model asks the user and continues with the answer. A call beside the question runs as well.",
        files=CALC,
        settings={"questions": True},
        turns=(Turn(TASK, (use(READ, WHICH), use(EDIT), DONE), decisions=("of decimals, please",)),),
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("of decimals, please",)),
        resumed=True,
    ),
    Scenario(
        name="question_and_approval_together",
        story="A question and an edit in one reply reach the person as one request.",
        files=CALC,
        settings={**ASK, "questions": True},
        turns=(
            Turn(
                TASK,
                (use(WHICH, EDIT), DONE),
                decisions=(
                    {
                        "decisions": {
                            "0": {"action": "answer", "answer": "of integers"},
                            "1": {"action": "approve"},
                        }
                    },
                ),
            ),
        ),
        expected=Expectation(files={"calc.py": MENDED}, in_requests=("of integers",)),
    ),
    Scenario(
        name="question_not_answered",
        story="The user does not answer a question, so the model decides.",
        files=CALC,
        settings={"questions": True},
        turns=(Turn(TASK, (use(WHICH), Say("I decided on integers.")), decisions=("reject",)),),
        expected=Expectation(
            in_requests=("The user gives no answer. Decide yourself, and say in your answer what you",)
        ),
    ),
    Scenario(
        name="question_without_a_person",
        story="If nobody can answer, ask_user is not offered to the model; a call of it returns that the model must"
        " decide.",
        files=CALC,
        turns=(Turn(TASK, (use(WHICH), Say("I decided on integers."))),),
        expected=Expectation(
            in_requests=("Nobody can answer. Decide yourself, and say in your answer what you decided.",)
        ),
    ),
)

PERMISSIONS = (*DENIED, *APPROVALS, *PROGRAMS, *LINES, *JOBS, *QUESTIONS)
