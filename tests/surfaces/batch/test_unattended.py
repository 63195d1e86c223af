"""`mendgraph --unattended`: the branch, the commit and the report of an unattended task; and the GitHub Action."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from mendgraph.graph import cli
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.mcp_servers import fingerprint
from mendgraph.graph.configuration.presets import UNATTENDED
from mendgraph.graph.fleet.unattended import cost_limit
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store import user_files
from tests.architecture.product import ROOT
from tests.doubles.mcp_servers import program
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.workspace.processes.git_places import git, repository

BUG: Final = 'def add(a, b):\n    """Add.\n\n    >>> add(1, 2)\n    3\n    """\n    return a - b\n'
FIXED: Final = BUG.replace("a - b", "a + b")
FIX: Final = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
LOOK: Final = 'tool: read_file({"path": "calc.py"})'
FREE: Final = ("--no-require-checks", "--no-evidence")
"""The sandbox may be missing here."""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a bug as the current folder; git has an identity, and hooks that would be noticed."""
    folder = repository(tmp_path / "project", {"calc.py": BUG, ".gitignore": "*.log\n.venv/\n"})
    for hook in ("pre-commit", "post-commit", "post-checkout", "reference-transaction", "pre-push"):
        (folder / ".git/hooks").mkdir(exist_ok=True)
        path = folder / ".git/hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
        path.chmod(0o755)
    git(folder, "config", "commit.gpgsign", "true")
    git(folder, "config", "user.name", "Ann")
    git(folder, "config", "user.email", "ann@example.org")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process on a model that follows the script: exit code, standard output and error."""

    def called(*words: str, script: tuple[str, ...] = (FIX, "It adds now.")) -> tuple[int, str, str]:
        model = ScriptedModel([Say(line) for line in script])
        monkeypatch.setattr(cli, "_session_options", lambda: {"model": model})
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # a pipe would get only the answer
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("COLUMNS", "1000")
        code = cli.main([*words, *(["--protocol", "text"] if "--unattended" in words else [])])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    assert project.is_dir()
    return called


def branches(project: Path) -> list[str]:
    return git(project, "branch", "--format=%(refname:short)").split()


def worktrees(project: Path) -> int:
    return git(project, "worktree", "list", "--porcelain").count("worktree ")


def test_unattended_run_works_on_a_branch_and_leaves_the_users_files_unchanged(run: Run, project: Path) -> None:
    (project / "calc.py").write_text(f"{BUG}# mine\n")
    (project / ".venv").mkdir()
    code, out, err = run("--unattended", *FREE, "--json", "Fix add in calc.py")
    result = json.loads(out)
    assert code == 0
    assert (project / "calc.py").read_text() == f"{BUG}# mine\n"
    assert (Path(result["worktree"]) / "calc.py").read_text() == FIXED
    assert Path(result["worktree"], ".venv").readlink() == project / ".venv"
    assert git(Path(result["worktree"]), "branch", "--show-current").strip() == result["branch"]
    assert result["branch"].startswith("mendgraph/fix-add-in-calc-py-")
    assert result["commit"] == ""
    assert "Not included, because not committed: 'calc.py' and files that git does not track." not in err
    assert "Not included, because not committed: 'calc.py'." in err


def test_commit_holds_the_changes_of_the_run_and_runs_no_git_hook(run: Run, project: Path, tmp_path: Path) -> None:
    task = "\nFix #12 [skip ci] for @bob: see GH-3, https://github.com/o/r/issues/4, and subtract nothing\nmore"
    new = (f'tool: write_file({{"path": "{name}", "content": "new"}})' for name in ("trace.log", "notes.txt"))
    script = ("\n".join([FIX, *new]), "Done.")
    code, out, _ = run("--unattended", *FREE, "--commit", "--json", task, script=script)
    result = json.loads(out)
    assert (code, branches(project)) == (0, ["main", result["branch"]])
    assert git(project, "show", "--name-status", "--format=%an <%ae>", result["commit"]).split("\n") == [
        *("Ann <ann@example.org>", "", "M\tcalc.py", "A\tnotes.txt", "")
    ]
    subject, _, body = git(project, "log", "-1", "--format=%B", result["branch"]).partition("\n")
    assert subject == "Fix no. 12 (skip ci) for (at)bob: see GH 3..."
    assert f"Run {result['thread_id']} of mendgraph" in body
    assert not (tmp_path / "hook-ran").exists()
    assert git(project, "status", "--short") == ""


@slow
def test_file_ignored_by_git_is_kept_and_reported(run: Run, project: Path) -> None:
    trace = 'tool: write_file({"path": "trace.log", "content": "an hour"})'
    for reply, committed in ((trace, "Nothing is committed"), (f"{FIX}\n{trace}", "Committed 1 file to the branch")):
        code, out, _ = run("--unattended", *FREE, "--commit", "Trace add", script=(reply, "Done."))
        worktree = max((project.parent / "data/worktrees").iterdir(), key=lambda path: path.stat().st_ctime_ns)
        assert (code, committed in out) == (0, True)
        assert f"'trace.log' stays in {worktree}/workspace (git ignores it)" in out
        assert (worktree / "workspace/trace.log").read_text() == "an hour"
    assert worktrees(project) == 3


@slow
def test_write_into_an_uninitialized_submodule_is_refused(run: Run, project: Path, tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", {"lib.py": "x = 1\n"})
    quiet = ("-c", "protocol.file.allow=always", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false")
    git(project, *quiet, "submodule", "--quiet", "add", str(inner), "sub")
    git(project, *quiet, "commit", "-qm", "sub")
    write = 'tool: write_file({"path": "sub/lib.py", "content": "x = 2\\n"})'
    result = json.loads(run("--unattended", *FREE, "--commit", "--json", "Set x", script=(write, FIX, "Done."))[1])
    [refused] = result["outcome"]["refused"]
    assert "a submodule that is not checked out here" in refused
    assert git(project, "show", "--name-only", "--format=", result["commit"]) == "calc.py\n"


def test_report_quotes_the_task_and_the_answer(run: Run, project: Path) -> None:
    answer = "Fixes #1 @bob </details>\n```\n````"
    code, out, err = run("--unattended", *FREE, "--pr-body", "-", "Fix `add`, @ann", script=(FIX, answer))
    assert code == 0
    assert f"`````text\n{answer}\n`````\n" in out
    assert "```text\nFix `add`, @ann\n```" in out
    assert "```text\ncalc.py\n```" in out
    assert f"git switch --detach {git(project, 'rev-parse', 'HEAD').strip()}\n" in out
    outside = "".join(out.split("`````text")[0].split("```")[::2])
    assert "@" not in outside
    assert "FINISHED (answered)" in err


def test_no_secret_is_in_a_branch_a_commit_or_a_report(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", secret := "canary4f8a91c27e55")
    task, script = f"Fix add, {secret} is the key", (FIX, f"It adds, {secret}.")
    code, out, err = run("--unattended", *FREE, "--commit", "--pr-body", "-", task, script=script)
    assert (code, "Committed 1 file" in err) == (0, True)
    assert secret not in out + git(project, "log", "--all", "--format=%D%B")


@slow
def test_unfinished_run_is_not_committed_until_resume_completes_it(run: Run, project: Path, tmp_path: Path) -> None:
    report = tmp_path / "reports" / "report.md"
    report.parent.mkdir()
    words = ("--unattended", *FREE, "--commit", "--pr-body", str(report), "--max-calls", "1", "--json")
    code, out, err = run(*words, "Fix it", script=(FIX,))
    result = json.loads(out)
    assert (code, result["commit"]) == (3, "")
    assert "BUDGET_STOP (max_calls_per_turn)" in report.read_text()
    assert (
        "The defaults of Python, batches, servers and the embedded model are small."
        in result["outcome"]["how_to_go_on"]
    )
    resume = f"resume {result['thread_id'][:8]}"
    assert f"If it is interrupted, continue with: mendgraph {resume}\n" in err
    code, out, _ = run(*resume.split(), script=("It adds now.",))
    assert code == 0
    assert f"Committed 1 file to the branch {result['branch']}" in out
    assert git(project, "show", f"{result['branch']}:calc.py") == FIXED
    assert "FINISHED (answered)" in report.read_text()
    assert worktrees(project) == 1
    assert "finished" in run("runs", "--root", result["worktree"])[1]


@slow
def test_missing_report_folder_is_reported_and_the_commit_stays(run: Run, project: Path, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    report = tmp_path / "reports" / "report.md"
    words = ("--unattended", *FREE, "--commit", "--pr-body", str(report), "--max-calls", "1", "--json")
    result = json.loads(run(*words, "Fix it", script=(FIX,))[1])
    shutil.rmtree(report.parent)
    _, out, err = run("resume", "--root", result["worktree"], script=("It adds now.",))
    assert ("Committed 1 file" in out, "No report: " in out + err) == (True, True)
    assert git(project, "show", f"{result['branch']}:calc.py") == FIXED


@slow
def test_other_changes_in_the_worktree_are_neither_committed_nor_lost(run: Run, project: Path) -> None:
    words = ("--unattended", *FREE, "--commit", "--max-calls", "1", "--json", "Fix it")
    result = json.loads(run(*words, script=(FIX,))[1])
    worktree = Path(result["worktree"])
    (worktree / "staged.py").write_text("mine\n")
    git(worktree, "add", "staged.py")
    (worktree / ".gitignore").write_text("mine\n")
    look = ("--root", str(worktree), "--max-calls", "1", "--protocol", "text", "--json", "Look at it")
    other = json.loads(run(*look, script=(LOOK,))[1])
    out = run("resume", other["thread_id"], "--root", str(worktree), script=("I see.",))[1]
    assert ("FINISHED" in out, "commit" in out) == (True, False)
    code, out, _ = run("resume", "--root", result["worktree"], script=("It adds now.",))
    assert (code, "'staged.py', '.gitignore' stay in" in out) == (0, True)
    assert git(project, "show", "--name-only", "--format=", result["branch"]) == "calc.py\n"
    assert (worktree / "staged.py").exists()


@slow
def test_run_that_ended_before_its_commit_is_committed_by_resume(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        full = ToolError(code=ToolErrorCode.IO_ERROR, message="The disk is full.")
        patched.setattr("mendgraph.nodes.workspace.copies.workspace_copies.commit_branch", lambda *_: full)
        code, out, err = run("--unattended", *FREE, "--json", "--commit", "Fix it")
    result = json.loads(out)
    assert (code, result["commit"], "The disk is full." in err) == (4, "", True)
    assert run("resume", "--require-checks", "--root", result["worktree"], script=())[0] == 4
    code, out, _ = run("resume", "--no-require-checks", "--root", result["worktree"], script=())
    assert (code, f"Committed 1 file to the branch {result['branch']}" in out) == (0, True)
    assert worktrees(project) == 1


def test_unchecked_change_is_not_committed(run: Run, project: Path) -> None:
    code, out, err = run("--unattended", "--no-evidence", "--commit", "--json", "Fix it")
    result = json.loads(out)
    assert (code in {4, 5}, result["commit"]) == (True, "")
    assert git(project, "rev-parse", "main") == git(project, "rev-parse", result["branch"])
    assert (Path(result["worktree"]) / "calc.py").read_text() == FIXED
    assert "check" in err


@slow
def test_last_line_has_a_report_command_that_works_in_the_original_folder(run: Run) -> None:
    code, _, err = run("--unattended", *FREE, "--commit", "Fix add in calc.py")
    command = err.splitlines()[-1].partition("; report with: mendgraph ")[2]
    assert (code, run(*shlex.split(command))[0]) == (0, 0)


@needs_sandbox
def test_model_runs_the_projects_tests_by_their_usual_commands(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an environment that the copy links to, and of a tool in the home, are found as for the final checks."""
    home = tmp_path.resolve() / "home"
    cargo = home / ".cargo/bin/cargo"
    cargo.parent.mkdir(parents=True)
    cargo.write_text('#!/bin/sh\necho "cargo $1 with $CARGO_HOME"\n')
    cargo.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{cargo.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CARGO_HOME", raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # that of mendgraph, with its pytest
    (project / "Cargo.toml").write_text("")
    git(project, "add", "Cargo.toml")
    git(project, "-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "more")
    environment = project / ".venv"
    venv.create(environment)
    packages = next((environment / "lib").glob("python3*/site-packages"))
    (packages / "pytest").mkdir()
    (packages / "pytest/__main__.py").write_text("import shutil, sys\n\nprint(sys.prefix, shutil.which('python3'))\n")
    (environment / "bin/pytest").symlink_to("/usr/bin/true")

    model = ScriptedModel(
        [Calls([("run_shell", json.dumps({"command": line}))]) for line in ("python -m pytest -q", "cargo test")]
    )
    monkeypatch.setattr(cli, "_session_options", lambda: {"model": model})
    assert cli.main(["--unattended", *FREE, "--protocol", "native", "What do the tests say?"]) == 0
    results = [message["content"] for message in model.calls[-1].prompt.messages if message["role"] == "tool"]
    outputs = [json.loads(result)["data"]["stdout"] for result in results]
    assert outputs == [f"{environment} {environment}/bin/python3\n", f"cargo test with {home}/.cargo\n"]


def test_unattended_runs_are_listed_in_the_original_folder(run: Run, project: Path) -> None:
    words = ("--unattended", *FREE, "--commit", "--max-calls", "1", "--json", "Fix it")
    result = json.loads(run(*words, script=(FIX,))[1])
    unfinished, branch = result["thread_id"][:8], result["branch"]
    assert f"  branch {branch}\n" in run("runs")[1]
    assert [listed["branch"] for listed in json.loads(run("runs", "--json")[1])] == [branch]
    assert f"folder: {result['worktree']}\n" in run("runs", "show", unfinished)[1]
    assert "+    return a + b\n" in run("diff", unfinished)[1]
    assert (project / "calc.py").read_text() == BUG
    assert f"run {unfinished}: Fix it\n" in run("replay", unfinished, script=(FIX,))[1]
    assert f"wrote {project}/tests/test_run_{unfinished}.py\n" in run("cassette", "from-run", unfinished)[1]

    assert run("resume", script=("It adds now.",))[0] == 0
    assert (git(project, "show", f"{branch}:calc.py"), worktrees(project)) == (FIXED, 1)


def test_commands_on_a_committed_unattended_run_show_it_or_name_its_branch(run: Run, project: Path) -> None:
    result = json.loads(run("--unattended", *FREE, "--commit", "--json", "Fix it")[1])
    committed = result["thread_id"][:8]
    looked = json.loads(run("--unattended", "--json", "What is add?", script=("It adds.",))[1])["thread_id"][:8]
    assert [listed["branch"] for listed in json.loads(run("runs", "--json")[1])] == ["", result["branch"]]
    assert run("runs", "show", committed)[0] == run("report", committed)[0] == 0
    assert f"run {looked}" in run("report")[1]
    for words in (["resume"], ["undo"]):
        assert "name an unattended one, as `mendgraph runs` lists them" in run(*words)[2]

    start = git(project, "rev-parse", "--short=9", "main").strip()
    for words in (["diff"], ["undo"], ["apply"], ["fork", "--at", "1"], ["resume"], ["chat", "--run"]):
        code, _, err = run(*words, committed)
        assert (code, f"`git diff {start} {result['branch']}`" in err) == (2, True)
        assert "changed no file, and its worktree was removed" in run(*words, looked)[2]


@slow
@needs_sandbox
def test_command_to_apply_failed_work_can_be_run_in_the_original_folder(run: Run, project: Path) -> None:
    task = "Fix add in calc.py: the checks must pass."
    code, out, _ = run("--unattended", "--check", "false", task, script=(FIX, *["Done."] * 4))
    assert (code, "SYSTEM_ERROR (checks_failed)" in out) == (4, True)
    worktree = f"{next((project.parent / 'data/worktrees').iterdir())}/workspace"
    assert f"Nothing is committed: the changes are in the worktree {worktree}, and not yet on its branch " in out
    command = next(line for line in out.splitlines() if "mendgraph apply" in line).rpartition("mendgraph ")[2]
    code, out, _ = run(*shlex.split(command))
    assert (code, out.splitlines()[0], (project / "calc.py").read_text()) == (0, "edited calc.py", BUG)


@slow
def test_run_without_changes_leaves_no_branch_and_fails_if_changes_are_required(run: Run, project: Path) -> None:
    code, out, _ = run("--unattended", "--commit", "What is add?", script=("It adds.",))
    assert (code, "Nothing was changed: there is no commit, and no branch" in out) == (0, True)
    assert (branches(project), worktrees(project)) == (["main"], 1)
    code, out, _ = run("--unattended", "--commit", "--require-changes", "Fix add", script=("It adds.", "It adds."))
    assert (code, "SYSTEM_ERROR (nothing_changed)" in out, branches(project)[0]) == (4, True, "main")
    assert git(project, "log", "--format=%s", branches(project)[1]).count("\n") == 1


@slow
def test_subfolder_of_a_repository_can_be_the_workspace(run: Run, project: Path) -> None:
    (project / "sub").mkdir()
    git(project, "mv", "calc.py", "sub/calc.py")
    git(project, "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false", "commit", "-qm", "two")
    result = json.loads(run("--unattended", *FREE, "--commit", "--json", "--root", "sub", "Fix it")[1])
    assert git(project, "show", "--name-only", "--format=", result["commit"]) == "sub/calc.py\n"


LACKS: list[tuple[tuple[str, ...], str]] = [
    (("--commit", "Fix it"), "--commit and --pr-body need --unattended"),
    (("--unattended", "chat"), "--unattended is for a task"),
    (("--unattended", "--json", "--pr-body", "-", "Fix it"), "both write to standard output"),
    (("--unattended", "--pr-body", "none/pr.md", "Fix it"), "name a file in an existing folder"),
    (("--unattended", "--pr-body", ".git", "Fix it"), "name a file in an existing folder"),
    (("--unattended", "--root", "../plain", "Fix it"), "is not a git repository"),
    (("--unattended", "--commit", "Fix it"), "Git has no author for the commit"),
    (("--unattended", "--root", "../empty", "Fix it"), "has no commit yet: commit the files first"),
]


@slow
def test_missing_setting_is_reported_before_any_model_call(run: Run, project: Path, subtests: pytest.Subtests) -> None:
    git(project, "config", "--unset", "user.email")
    (project.parent / "plain").mkdir()
    git(project, "init", "--quiet", "../empty")
    for words, problem in LACKS:
        with subtests.test(words=words):
            code, _, err = run(*words)
            assert (code, problem in err) == (2, True)
    assert (branches(project), worktrees(project)) == (["main"], 1)


@slow
def test_preset_is_below_options_and_files_except_for_the_mode(run: Run, project: Path) -> None:
    preset = AgentContext.unattended(Path("there"), max_seconds=9)
    assert (preset.workspace, preset.max_seconds, preset.require_checks) == ("there", 9, True)
    (project / ".mendgraph.toml").write_text('mode = "ask"\nmax_calls_per_turn = 7\nmax_seconds = 60\n')
    out = run("--unattended", *FREE, "--json", "--max-seconds", "99", "--model", "gpt-5-mini", "Fix it")[1]
    result = json.loads(out)
    context = json.loads(run("runs", "show", result["thread_id"], "--json", "--root", result["worktree"])[1])["context"]
    expected = {"mode": "auto", "max_calls_per_turn": 7, "max_seconds": 99, "max_cost_usd": 5.0, "evidence": False}
    assert {name: context[name] for name in expected} == expected
    assert context["max_input_tokens_per_session"] == UNATTENDED["max_input_tokens_per_session"]


def test_cost_is_limited_only_if_every_price_is_known() -> None:
    assert cost_limit({"model": "gpt-5-mini"})
    unknown: tuple[Mapping[str, Any], ...] = (
        {"model": "gpt-5-mini", "fallback_models": ("local",)},
        {"model": "nobodys"},
        {},
    )
    assert not any(map(cost_limit, unknown))


# --- The Action


def run_step(step: Mapping[str, Any], values: Mapping[str, str], env: dict[str, str], cwd: Path) -> int:
    """The exit code of a step of the Action, run as a runner runs it; its outputs are files of the environment."""
    variables = {name: values[expression[3:-2].strip()] for name, expression in step.get("env", {}).items()}
    assert "${{" not in step["run"]
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(command, env={**env, **variables}, cwd=cwd, check=False).returncode


@needs_sandbox
def test_action_pushes_checked_work(project: Path, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    git(project, "clone", "--quiet", "--bare", str(project), str(tmp_path / "remote.git"))
    git(project, "remote", "add", "origin", str(tmp_path / "remote.git"))
    installer = tmp_path / "bin/pipx"
    installer.parent.mkdir()
    installer.write_text(f'#!/bin/sh\n[ "$1" = environment ] && echo {tmp_path} || echo "$@" >>{tmp_path}/installed\n')
    installer.chmod(0o755)
    env = {
        **os.environ,
        **{name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")},
        "RUNNER_TEMP": str(tmp_path),
        "OPENAI_API_KEY": "a-key-of-nobody",
        "PATH": f"{installer.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    task = "Fix add in calc.py: it subtracts. $(touch owned) `touch owned`"
    inputs = {"task": task, "model": "gpt-5-mini", "options": "--max-steps 3\n--seed '7'", "packages": "langchain-x"}
    values = {f"inputs.{name}": str(field.get("default", "")) for name, field in action["inputs"].items()}
    values |= {f"inputs.{name}": value for name, value in inputs.items()}
    values |= {"github.server_url": "https://github.com", "github.action_path": "/action"}
    edit = Calls([("edit_file", json.dumps({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}))])
    steps = {step["name"]: step for step in action["runs"]["steps"]}
    with ScriptedServer([edit, Say("It adds now.")], then=lambda _: Say("")) as server:
        env["OPENAI_BASE_URL"] = server.base_url
        assert run_step(steps["Install"], values, env, project) == 0
        assert run_step(steps["Run"], {**values, "inputs.options": "--seed '7"}, env, project) == 1
        assert not server.requests
        code = run_step(steps["Run"], values, env, project)
    outputs = dict(line.split("=", 1) for line in Path(env["GITHUB_OUTPUT"]).read_text().splitlines())
    assert (tmp_path / "installed").read_text() == "install --force /action\ninject mendgraph langchain-x\n"
    assert not (project / "owned").exists()
    assert outputs["exit-code"] == str(code)
    assert outputs["outcome"] in Path(outputs["pr-body"]).read_text()
    assert Path(env["GITHUB_STEP_SUMMARY"]).read_text().startswith("## What was asked")
    assert (code, outputs["outcome"]) == (0, "FINISHED")
    for name, value in outputs.items():
        values[f"steps.run.outputs.{name}"] = value
    assert run_step(steps["Push"], values, env, project) == 0
    remote = tmp_path / "remote.git"
    assert git(remote, "rev-parse", outputs["branch"]).strip() == outputs["commit"]
    assert git(remote, "show", f"{outputs['branch']}:calc.py") == FIXED
    assert Path(env["GITHUB_OUTPUT"]).read_text().endswith(f"branch={outputs['branch']}\n")
    assert not (tmp_path / "hook-ran").exists()


@slow
def test_mcp_server_of_a_trusted_file_is_also_used_in_the_worktree(
    run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = program(tmp_path)
    shared = {"mcpServers": {"s": {"command": connection["command"], "args": connection["args"]}}}
    (project / ".mcp.json").write_text(json.dumps(shared))
    (tmp_path / "user.toml").write_text("[mcp_servers.s]\nallow = ['echo']\n")
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(tmp_path / "user.toml"))
    git(project, "add", ".mcp.json")
    git(project, "commit", "--quiet", "--no-gpg-sign", "--message", "servers")

    data = (project / ".mcp.json").read_bytes()
    user_files.trust(str(project), fingerprint(str(project), data, os.environ), user_files.SERVERS_FILE)
    _, out, err = run("--unattended", "Echo it", *FREE, script=('tool: s__echo({"a": 1})', "Echoed."))
    assert "s__echo  ok" in out
    assert ".mcp.json is not used" not in err
