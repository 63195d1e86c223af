"""What the programs of hooks find in the workspace."""

import json
from pathlib import Path

import pytest

from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE
from tests.row_tables import rows
from tests.sandboxes import needs_sandbox
from tests.surfaces.conftest import Command
from tests.workspace_files import write_files

NEW = 'tool: write_file({"path": "new.py", "content": "x = 1\\n"})'


@needs_sandbox
@rows("make -s guard", "python3 -m checks.guard")
def test_hook_that_runs_the_code_of_the_project_finds_its_modules(
    line: str, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(folder.parent / "user.toml"))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder.parent / "data"))
    (folder.parent / "user.toml").touch()
    (folder / "new.py").unlink(missing_ok=True)
    hooks = {"PreToolUse": [{"hooks": [{"type": "command", "command": line}]}]}
    files = {
        HOOKS_FILE: json.dumps({"hooks": hooks}),
        "Makefile": "guard:\n\tpython3 checks/guard.py\n",
        "checks/guard.py": "from beside import NAME\n",
        "checks/beside.py": "NAME = 1\n",
        "beside.py": "NAME = 1\n",
    }
    write_files(folder, files)
    assert command("config", "trust")[0] == 0
    code, out, err = command("--protocol", "text", "--no-evidence", "Write it", says=(NEW, "Done."))
    assert (code, (folder / "new.py").exists()) == (0, True), out + err
