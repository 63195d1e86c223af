"""The agent as an MCP tool and as an A2A agent of `langgraph dev`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.architecture.product import text_of
from tests.extent import slow
from tests.langchain.embedding import REPAIR
from tests.scenarios.sample_repair import CALC, MENDED, TASK
from tests.surfaces.serving.studio import Studio, native_server
from tests.workspace_files import changed_files, write_files

pytestmark = pytest.mark.studio

DESCRIPTION: str = json.loads(text_of("langgraph.json"))["graphs"]["mendgraph"]["description"]


@pytest.fixture
def repairer(studio: Studio, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """An assistant for the project of the test: it has the context that clients of MCP and A2A cannot send."""
    write_files(tmp_path, CALC)
    with native_server(*REPAIR) as model:
        assistant: Any = studio.client.assistants.create(
            "mendgraph", context=studio.context(tmp_path, model), name="repairer", description="Repairs calc.py."
        )
        yield assistant
        studio.client.assistants.delete(assistant["assistant_id"])


def call_method(studio: Studio, path: str, method: str, **params: Any) -> Any:
    """The result of one JSON-RPC request."""
    headers = {"accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
    answer = httpx.post(f"{studio.url}{path}", json=body, headers=headers, timeout=60)
    return answer.json()["result"]


@slow
@pytest.mark.usefixtures("repairer")
def test_agent_is_available_as_an_mcp_tool(studio: Studio, tmp_path: Path) -> None:
    tools = {description["name"]: description for description in call_method(studio, "/mcp", "tools/list")["tools"]}
    assert (tools["mendgraph"]["description"], tools["repairer"]["description"]) == (DESCRIPTION, "Repairs calc.py.")
    assert [*tools["mendgraph"]["inputSchema"]["properties"]] == ["messages"]
    turn_input = {"messages": [{"role": "user", "content": TASK}]}
    answer = call_method(studio, "/mcp", "tools/call", name="repairer", arguments=turn_input)
    assert "add now adds." in json.dumps(answer)
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}


@slow
def test_agent_is_available_over_a2a(studio: Studio, repairer: dict[str, Any], tmp_path: Path) -> None:
    [default_assistant] = studio.client.assistants.search(graph_id="mendgraph", metadata={"created_by": "system"})
    cards = [
        httpx.get(f"{studio.url}/.well-known/agent-card.json", params={"assistant_id": assistant_id}).json()[
            "description"
        ]
        for assistant_id in (default_assistant["assistant_id"], repairer["assistant_id"])
    ]
    assert cards == [DESCRIPTION, "Repairs calc.py."]
    message = {"role": "user", "parts": [{"kind": "text", "text": TASK}], "messageId": "m1", "kind": "message"}
    answer = call_method(studio, f"/a2a/{repairer['assistant_id']}", "message/send", message=message)
    assert "add now adds." in json.dumps(answer)
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}
