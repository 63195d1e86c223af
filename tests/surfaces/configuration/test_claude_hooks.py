"""Which workspace files the commands of hooks run: trust pins them, and runs cannot change them."""

import json
from pathlib import Path

from mendgraph.graph.hooks.claude_hooks import mark_of, runners_in, scripts_of
from tests.row_tables import rows
from tests.workspace_files import write_files

FILES = {"check.py": "", "data.json": "", "run.sh": "", "x.sh": "", "hooks/a.js": "", "docs/n.md": ""}
MODULES = {"tools/lint.py": "", "tools/tidy/__init__.py": "", "tools/tidy/__main__.py": ""}


def settings(line: str) -> bytes:
    return json.dumps({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": line}]}]}}).encode()


@rows(
    ("python3 check.py data.json", "check.py"),
    ("FOO=1 node --no-warnings hooks/a.js", "hooks/a.js"),
    ('"$CLAUDE_PROJECT_DIR"/hooks/new.sh', "hooks/new.sh"),
    ("uv run check.py && . run.sh", "check.py run.sh"),
    ("jq . | xargs -0 x.sh", "x.sh"),
    ("timeout 5 bash run.sh", "run.sh"),
    ("bash -c 'true; python3 check.py'", "check.py"),
    ("cat data.json docs/n.md > out/x.json", ""),
    ("~/bin/check /usr/bin/true ../other/run.sh", ""),
    ("python3 -c \"open('docs/n.md')\"", ""),
    ("echo 'an open quote", ""),
    ('bash "$(git rev-parse --show-toplevel)/hooks/a.js"', "hooks/a.js"),
    ('"${CLAUDE_PROJECT_DIR:-.}/run.sh" && "$PWD"/x.sh', "run.sh x.sh"),
    ("cd hooks && node a.js", "a.js hooks/a.js"),
    ("bash < run.sh\nbash -o pipefail x.sh", "run.sh x.sh"),
    ("echo a#b; python3 -m check", "check.py"),
    ("python3 -um tools.lint --fix", "tools/lint.py"),
    ("python3 -mtools.tidy", "tools/tidy/__init__.py tools/tidy/__main__.py"),
    ("curl https://example.com/run2.sh", ""),
    ("d=hooks; node $d/a.js", "a.js hooks/a.js"),
)
def test_scripts_of_a_command_are_the_files_it_runs_and_not_those_it_reads(
    line: str, names: str, tmp_path: Path
) -> None:
    write_files(tmp_path, {**FILES, **MODULES})
    (tmp_path / "x.sh").chmod(0o755)
    assert scripts_of(line, str(tmp_path)) == tuple(names.split())


def test_trust_hash_covers_the_file_and_its_scripts_of_any_length(tmp_path: Path) -> None:
    write_files(tmp_path, {**FILES, "run.sh": "# long\n" * 2_000_000})
    data = settings("python3 check.py data.json; ./run.sh; hooks/new.sh")
    mark = mark_of(str(tmp_path), data)
    (tmp_path / "data.json").write_text("1")
    assert mark_of(str(tmp_path), data) == mark

    marks = {mark, mark_of(str(tmp_path), data + b" ")}
    for name in ("hooks/new.sh", "check.py", "run.sh"):
        (tmp_path / name).write_text("1\n")
        marks.add(mark_of(str(tmp_path), data))

    assert len(marks) == 5


@rows(
    ("make -s hook", "make"), ("npx prettier --write x && npm run lint", "npx, npm"), ("python3 -m hk", "python3 -m"),
    ("jq -r .make.x | grep go.mod", ""), ("bash make.sh; ./npm/x", ""), ("cd x;make", "make"), ("uv run x.py", "uv"),
)  # fmt: skip
def test_runners_are_programs_that_run_code_without_naming_it(line: str, names: str) -> None:
    assert runners_in(line) == names
