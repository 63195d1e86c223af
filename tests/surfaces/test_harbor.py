"""mendgraph as an agent of harbor, where the extra is installed: it needs Python 3.12."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor", reason="the extra `harbor` is not installed")

from harbor.models.agent.context import AgentContext as HarborContext

from mendgraph.harbor import Mendgraph, model_argument


def agent(logs: Path, **options: Any) -> Mendgraph:
    return Mendgraph(logs_dir=logs, model_name="openai/gpt-5-mini", **options)


def test_model_of_harbor_is_an_argument_of_ours() -> None:
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


def test_result_of_a_run_reaches_harbor(tmp_path: Path) -> None:
    usage = {"total_input_tokens": 700, "total_output_tokens": 12, "cached_tokens": 100, "cost_usd": 0.5}
    result = {"outcome": {"kind": "FINISHED"}, "thread_id": "t", "usage": usage}
    (tmp_path / "mendgraph.json").write_text(json.dumps(result))
    context = HarborContext()
    agent(tmp_path).populate_context_post_run(context)
    assert (context.n_input_tokens, context.n_output_tokens, context.n_cache_tokens) == (700, 12, 100)
    assert (context.cost_usd, context.metadata) == (0.5, {"outcome": {"kind": "FINISHED"}, "thread_id": "t"})


@pytest.mark.parametrize("text", [None, "{", "[1]", " " * 1_000_001], ids=["missing", "cut", "a list", "too long"])
def test_result_that_cannot_be_read_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "mendgraph.json").write_text(text)
    context = HarborContext()
    agent(tmp_path).populate_context_post_run(context)
    assert (context.n_input_tokens, context.cost_usd) == (None, None)
