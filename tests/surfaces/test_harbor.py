"""mendgraph as an agent of harbor, where the extra is installed: it needs Python 3.12."""

import asyncio
import os
import shlex
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("harbor", reason="the extra `harbor` is not installed")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # otherwise harbor's litellm fetches prices when it is imported

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext as HarborContext
from harbor.models.trajectories import Trajectory

from mendgraph.harbor import Mendgraph, model_argument
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.surfaces.terminal.tmux import COMMAND


def agent(logs: Path, **options: Any) -> Mendgraph:
    return Mendgraph(logs_dir=logs, model_name="openai/gpt-5-mini", **options)


def test_model_name_of_harbor_is_converted_to_ours() -> None:
    assert model_argument("openai/gpt-5-mini") == model_argument("gpt-5-mini") == "gpt-5-mini"
    assert model_argument("anthropic/claude-sonnet-4-6") == "anthropic:claude-sonnet-4-6"
    assert model_argument("openrouter/qwen/qwen3-coder") == "openrouter:qwen/qwen3-coder"


def test_instruction_is_quoted_and_the_container_is_the_boundary(tmp_path: Path) -> None:
    harbor = agent(tmp_path, programs=["bash", "make"], require_changes=True)
    words = shlex.split(harbor.run_command("Fix 'it'; rm -rf $HOME\n`id`").replace("<<<", " <<< "))
    assert words[words.index("<<<") + 1] == "Fix 'it'; rm -rf $HOME\n`id`"
    assert words[words.index("--sandbox") + 1] == "container"
    assert {"--no-workspace-config", "--require-changes"} < {*words}
    assert [words[at + 1] for at, word in enumerate(words) if word == "--allow-program"] == ["bash", "make"]


SCRIPT = [
    Calls([("read_file", '{"path": "calc.py", "unknown": 1}')]),
    Calls([("read_file", '{"path": "calc.py"}'), ("run_command", '{"argv": ["rm", "calc.py"]}')]),
    Calls([("edit_file", '{"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}')]),
    Say("It adds now."),
]


class Shell:
    """The part of harbor's environments that runs a command; the logs of the agent are in a folder of the test."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder, self._logs = folder, logs

    async def exec(self, command: str, env: dict[str, str], **_: object) -> ExecResult:
        local_command = command.replace("/logs/agent", str(self._logs)).replace("$HOME/.local/bin", str(COMMAND.parent))
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", local_command, cwd=self._folder, env={**os.environ, **env}
        )
        return ExecResult(return_code=await shell.wait())


def test_run_is_a_trajectory_with_tokens_and_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    harbor = agent(logs)
    context = HarborContext()
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    with ScriptedServer(SCRIPT) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        asyncio.run(harbor.run("Fix add in calc.py", cast("BaseEnvironment", Shell(project, logs)), context))

    harbor.populate_context_post_run(context)
    trajectory = Trajectory.model_validate_json((logs / "trajectory.json").read_text())
    user, named, malformed, read, edit, answer = trajectory.steps
    assert (user.source, user.message) == ("user", "Fix add in calc.py")
    assert [call.function_name for call in named.tool_calls] == ["read_file"]
    assert malformed.tool_calls[0].arguments == {"raw_arguments": '{"path": "calc.py", "unknown": 1}'}
    assert "unknown argument" in malformed.observation.results[0].content
    assert [call.function_name for call in read.tool_calls] == ["read_file", "run_command"]
    assert "'rm' may not be run" in read.observation.results[1].content
    assert edit.tool_calls[0].arguments["new_str"] == "a + b"
    assert answer.message == "It adds now."
    assert sum(step.metrics.prompt_tokens for step in trajectory.steps[2:]) == context.n_input_tokens > 0
    assert context.metadata["outcome"]["kind"] == "FINISHED"


@pytest.mark.parametrize("text", [None, "{", "[1]"], ids=["missing", "cut", "a list"])
def test_run_without_events_has_no_usage(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "mendgraph.jsonl").write_text(text)
    context = HarborContext()
    agent(tmp_path).populate_context_post_run(context)
    assert (context.n_input_tokens, context.cost_usd) == (None, None)
    assert not (tmp_path / "trajectory.json").exists()
