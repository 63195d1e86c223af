"""Orders that are no repairs: new files, settings, names."""

from tests.recorded.recorded_run import RecordedRun, Turn
from tests.recorded.repairs import EDITED

SETTINGS = '{\n  "host": "localhost",\n  "timeout_s": 10,\n  "retries": 3\n}\n'
PROJECT = '[project]\nname = "ferry"\nversion = "1.2.0"\ndependencies = ["httpx>=0.27"]\n'
PIPELINE = """# Built on every push to main.
name: build

python: "3.10"  # keep in step with the servers

steps:
  - name: test
    run: pytest -q
    timeout: 10
"""
STORE = {
    "store.py": 'USERS = {1: "ann", 2: "bob"}\n\n\ndef fetch_user(number):\n    return USERS[number]\n',
    "report.py": "from store import fetch_user\n\n\ndef line(number):\n"
    '    return f"{number}: {fetch_user(number).title()}"\n',
}
SLUGS = '''import re


def slugify(title):
    """Lower case, words joined with dashes, no punctuation."""
    return re.sub(r'\\W+', '-', title.lower())
'''

CHANGES: tuple[RecordedRun, ...] = (
    RecordedRun(
        name="file_created",
        story="The file that the request names does not exist. The model is told so and writes it; a dash stays at the"
        " end of a title with an exclamation mark, which nothing checks.",
        files={"README.md": "# Text tools\n"},
        turns=(
            Turn(
                request="Write slugs.py with a function slugify(title): lower case, words joined with dashes,"
                " no punctuation.",
                steps=EDITED,
                message="Changed slugs.py; not checked",
            ),
        ),
        changed={"slugs.py": SLUGS},
        in_requests=("There is no slugs.py yet.",),
    ),
    RecordedRun(
        name="constant_in_json",
        story="One value of a JSON file.",
        files={"settings.json": SETTINGS},
        turns=(
            Turn(
                request="Set timeout_s in settings.json to 30.",
                steps=EDITED,
                message="Changed settings.json",
            ),
        ),
        changed={"settings.json": SETTINGS.replace("10", "30")},
    ),
    RecordedRun(
        name="package_renamed_in_toml",
        story="A name in a TOML file.",
        files={"pyproject.toml": PROJECT},
        turns=(
            Turn(
                request="Rename the package to ferry-tools in pyproject.toml.",
                steps=EDITED,
                message="Changed pyproject.toml",
            ),
        ),
        changed={"pyproject.toml": PROJECT.replace('"ferry"', '"ferry-tools"')},
    ),
    RecordedRun(
        name="versions_in_yaml",
        story="Two values of a YAML file, whose comments stay.",
        files={"pipeline.yaml": PIPELINE},
        turns=(
            Turn(
                request="pipeline.yaml should use Python 3.12 and give the tests 20 minutes (timeout).",
                steps=EDITED,
                message="Changed pipeline.yaml",
            ),
        ),
        changed={"pipeline.yaml": PIPELINE.replace("3.10", "3.12").replace("timeout: 10", "timeout: 20")},
    ),
    RecordedRun(
        name="function_renamed_in_two_files",
        story="One reply has a block for each of two files.",
        files=STORE,
        turns=(
            Turn(
                request="Rename fetch_user to load_user in store.py and report.py.",
                steps=("read_file: ok", "read_file: ok", "edit_blocks: ok", "edit_blocks: ok", "final_answer: ok"),
                message="Changed store.py, report.py; not checked",
            ),
        ),
        changed={name: text.replace("fetch_user", "load_user") for name, text in STORE.items()},
    ),
)
