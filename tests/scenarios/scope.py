"""Scenarios of what a run may change: ordinary files of a project, protected ones, and the scope of a strict run."""

from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.scenarios.scenario import Expectation, Scenario, Turn
from tests.vocabulary import JsonMap

MAINTAINED = {
    "pyproject.toml": 'version = "1.2.0"\n',
    "CHANGES.rst": "1.2.0\n",
    "tests/conftest.py": "VERSION = '1.2.0'\n",
    "Makefile": "VERSION = 1.2.0\n",
    "Cargo.lock": 'version = "1.2.0"\n',
    ".github/workflows/ci.yml": "version: 1.2.0\n",
}
RELEASED = {name: text.replace("1.2.0", "1.3.0") for name, text in MAINTAINED.items()}

PACKAGE = {
    "tox.ini": "[tox]\nenvlist = py312\n",
    "setup.py": "from setuptools import setup\nsetup(name='a')\n",
    "requirements-dev.txt": "ruff\npytest\n",
    ".github/workflows/tests.yml": "python: [3.12]\n",
    "pyproject.toml": '[project]\nversion = "1.2.0"\nrequires-python = ">=3.8"\n',
    "Makefile": "dev:\n\tpip install -e .\n",
}
MAINTENANCE: tuple[tuple[str, str, str, str], ...] = (
    ("Support Python 3.13", "tox.ini", "py312", "py312,py313"),
    (
        "Give the package a command line tool that users can install, with --version",
        "setup.py",
        "setup(name='a')",
        "setup(name='a', entry_points={'console_scripts': ['a=a:main']})",
    ),
    ("The build is red since ruff 0.9: pin it", "requirements-dev.txt", "ruff", "ruff<0.9"),
    ("Run the tests in CI on 3.13 too", ".github/workflows/tests.yml", "3.12", "3.12, 3.13"),
    ("Bump the version to 1.3.0", "pyproject.toml", '"1.2.0"', '"1.3.0"'),
    ("Release 1.4.0", "pyproject.toml", '"1.3.0"', '"1.4.0"'),
    ("Use uv instead of pip for development", "Makefile", "pip install", "uv pip install"),
    ("Add type checking with mypy", "pyproject.toml", '"1.4.0"\n', '"1.4.0"\n[tool.mypy]\nstrict = true\n'),
    ("Drop Python 3.8", "pyproject.toml", ">=3.8", ">=3.9"),
)
"""What maintainers ask for, the file that it changes, and the old and new text."""

TASKS = ".vscode/tasks.json"
EDITOR = {TASKS: '{"tasks": []}\n', "app.py": "x = 1\n"}
NEW_TASKS = '{"tasks": [{}]}\n'
EDIT_TASKS = ("edit_file", {"path": TASKS, "old_str": "[]", "new_str": "[{}]"})
COPY = ("run_command", {"argv": ["cp", "app.py", TASKS]})
LAUNCH = ".vscode/launch.json"
COPY_BESIDE = ("run_command", {"argv": ["cp", "app.py", LAUNCH]})
MAKE = ("run_command", {"argv": ["cp", "app.py", "AGENTS.md"]})
PROGRAMS: JsonMap = {"allowed_programs": ("cp",)}
REFUSED = "refused (editor settings, which run tasks when the folder is opened; not named by the user)"

PROJECT = {"calc.py": "x = 1\n", "test_calc.py": "x = 1\n", "README.md": "x = 1\n", "build.rs": "x = 1\n"}


def edit(path: str, old: str, new: str) -> tuple[str, JsonMap]:
    """Call `edit_file` on this file."""
    return ("edit_file", {"path": path, "old_str": old, "new_str": new})


def maintained() -> dict[str, str]:
    """The files of the package after all of `MAINTENANCE`."""
    files = dict(PACKAGE)
    for _, path, old, new in MAINTENANCE:
        files[path] = files[path].replace(old, new)
    return files


SCOPE: tuple[Scenario, ...] = (
    Scenario(
        name="maintenance_of_a_package",
        story="Nine requests of a package's maintainer, none of which names the file to change. All changes are made.",
        files=PACKAGE,
        settings={"max_input_tokens_per_session": 200_000},
        turns=tuple(
            Turn(request, (use(edit(path, old, new)), Say("It is done."))) for request, path, old, new in MAINTENANCE
        ),
        expected=Expectation(files=maintained(), message="Changed pyproject.toml; not checked"),
    ),
    Scenario(
        name="release_of_a_project",
        story="The request is the message of a commit. Files that it does not name are changed, and marks say which"
        " of them run later.",
        files=MAINTAINED,
        turns=(Turn("Release 1.3.0", (use(*(edit(name, "1.2.0", "1.3.0") for name in MAINTAINED)), Say("Released."))),),
        expected=Expectation(
            files=RELEASED, message="runs later: tests/conftest.py, Makefile, .github/workflows/ci.yml;"
        ),
    ),
    Scenario(
        name="protected_file_refused",
        story="In mode auto an editor's settings are not changed. The outcome says so, although the model's answer"
        " does not.",
        files=EDITOR,
        turns=(Turn("Add a build task.", (use(EDIT_TASKS), Say("The task is there."))),),
        expected=Expectation(message=f"No file was changed: {REFUSED}: edit_file {TASKS}."),
        resumed=True,
    ),
    Scenario(
        name="protected_file_named",
        story="A request of the thread names the folder of the editor's settings, so a later turn may change them.",
        files=EDITOR,
        turns=(
            Turn("What is in .vscode?", (Say("Tasks."),)),
            Turn("Add a build task.", (use(EDIT_TASKS), Say("The task is there."))),
        ),
        expected=Expectation(files={TASKS: NEW_TASKS}, message=f"runs later: {TASKS}"),
    ),
    Scenario(
        name="protected_file_asked",
        story="In mode ask a person is asked about each change of the editor's settings, with the reason.",
        files=EDITOR,
        settings={"mode": "ask", "role": "editor"},
        turns=(Turn("Add a build task.", (use(EDIT_TASKS), Say("It is there.")), decisions=("approve",)),),
        expected=Expectation(files={TASKS: NEW_TASKS}),
    ),
    Scenario(
        name="protected_file_and_a_program",
        story="A program can neither change the editor's settings nor create instructions for agents: a file that it"
        " creates under such a name is renamed.",
        files=EDITOR,
        settings=PROGRAMS,
        turns=(Turn("Add a build task.", (use(COPY), use(MAKE), Say("Done."))),),
        expected=Expectation(
            files={"AGENTS.md.untrusted": "x = 1\n"},
            in_requests=("Read-only file system",),
            message="so it is called AGENTS.md.untrusted",
        ),
        sandboxed=True,
    ),
    Scenario(
        name="protected_file_named_for_a_program",
        story="The request names the file, so a program may change it, but no other file beside it.",
        files={**EDITOR, LAUNCH: "{}\n"},
        settings=PROGRAMS,
        turns=(Turn(f"Copy app.py to {TASKS}.", (use(COPY), use(COPY_BESIDE), Say("Done."))),),
        expected=Expectation(files={TASKS: "x = 1\n"}, in_requests=("Read-only file system",)),
        sandboxed=True,
    ),
    Scenario(
        name="strict_run",
        story="A strict run changes code. The request must name tests, documents, build files and deletions.",
        files=PROJECT,
        settings={"strict": True},
        turns=(
            Turn(
                "Set x to 2, also in README.md",
                (
                    use(*(edit(name, "x = 1", "x = 2") for name in PROJECT)),
                    use(("delete_file", {"path": "calc.py"})),
                    Say("x is 2."),
                ),
            ),
        ),
        expected=Expectation(
            files={"calc.py": "x = 2\n", "README.md": "x = 2\n"},
            message="refused (a file that would be gone; not named by the user): delete_file calc.py",
        ),
    ),
)
