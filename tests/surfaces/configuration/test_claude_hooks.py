"""Which files of a workspace the commands of hooks run: they are pinned by the mark of trust, and stay as they are."""

import json
import os
from pathlib import Path

from mendgraph.graph.hooks.claude_hooks import fingerprint, parse_hooks, scripts_of
from mendgraph.nodes.records import ToolError
from tests.row_tables import rows
from tests.workspace_files import write_files

FILES = {"check.py": "", "data.json": "", "run.sh": "", "x.sh": "", "hooks/a.js": "", "docs/n.md": ""}


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
)
def test_scripts_are_what_a_command_runs_and_not_what_it_reads(line: str, names: str, tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    (tmp_path / "x.sh").chmod(0o755)
    hooks = parse_hooks(settings(line))
    assert not isinstance(hooks, ToolError)
    assert [os.path.relpath(path, tmp_path) for path in scripts_of(hooks, str(tmp_path))] == names.split()


def test_mark_changes_with_the_file_and_with_its_scripts(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    data = settings("python3 check.py data.json; hooks/new.sh")
    mark = fingerprint(str(tmp_path), data)
    (tmp_path / "data.json").write_text("1")
    assert fingerprint(str(tmp_path), data) == mark
    (tmp_path / "hooks" / "new.sh").write_text("true\n")
    later = fingerprint(str(tmp_path), data)
    assert later != mark
    (tmp_path / "check.py").write_text("1\n")
    assert fingerprint(str(tmp_path), data) not in {mark, later}
    assert fingerprint(str(tmp_path), data + b" ")[:64] != mark[:64]
