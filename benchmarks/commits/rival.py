"""LangChain's `create_agent` with the filesystem tools of deepagents, and deepagents itself, on the script."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage

from benchmarks.commits.chat_model import Call, Replies, ScriptedChat
from benchmarks.commits.result import Row
from benchmarks.commits.script import READ_LINES, Script, Step

MOST_STEPS = 10_000


def run(row: Row, request: str, script: Script, folder: Path) -> None:
    """Make the commit, and add the result to the row."""
    backend = FilesystemBackend(root_dir=folder, virtual_mode=True)
    model = ScriptedChat(replies=Replies(script, call_of), row=row, last=[""])
    if row.contestant == "deepagents":
        agent = create_deep_agent(model, backend=backend)
    else:
        agent = create_agent(model, middleware=[FilesystemMiddleware(backend=backend)])

    state = agent.invoke({"messages": [{"role": "user", "content": request}]}, {"recursion_limit": MOST_STEPS})

    row.errors = list(_errors(state["messages"]))
    row.first_line = str(state["messages"][-1].content)
    row.outcome = "ended"


def call_of(step: Step) -> Call:
    """Return the call of deepagents' tool for a step."""
    path = {"file_path": f"/{step.path}"}
    calls: dict[str, Call] = {
        "read": ("read_file", {**path, "offset": step.line - 1, "limit": READ_LINES}),
        "write": ("write_file", {**path, "content": step.text}),
        "edit": ("edit_file", {**path, "old_string": step.text, "new_string": step.new}),
        "delete": ("delete", path),
    }
    return calls[step.act]


def _errors(messages: Sequence[object]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ToolMessage) and message.status == "error":
            yield f"{message.name}: {message.content}"
