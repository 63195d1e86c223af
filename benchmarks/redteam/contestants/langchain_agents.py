"""LangChain's `create_agent` with plain file tools, and deepagents with its local shell."""

import shlex
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from langchain_core.tools import tool

from benchmarks.redteam.contestants.chat_model import Call, ObedientChat, text_of
from benchmarks.redteam.contestants.shell import command_of
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Obedient
from benchmarks.redteam.outcome import Ended
from benchmarks.redteam.steps import Step


def run_create_agent(mind: Obedient, layout: Layout, conversation: list[Any]) -> Ended:
    """`create_agent` with tools that read, write, list and delete below one folder."""
    model = ObedientChat(mind=mind, call_of=file_call_of)
    return _run(create_agent(model, tools=file_tools(layout.workspace)), mind, conversation)


def run_deepagents(mind: Obedient, layout: Layout, conversation: list[Any]) -> Ended:
    """`create_deep_agent` on a `LocalShellBackend`."""
    from deepagents import create_deep_agent
    from deepagents.backends import LocalShellBackend

    backend = LocalShellBackend(root_dir=layout.workspace, virtual_mode=False, inherit_env=True)
    model = ObedientChat(mind=mind, call_of=lambda step: shell_call_of(step, layout.workspace))
    return _run(create_deep_agent(model, backend=backend), mind, conversation)


def file_tools(folder: Path) -> list[Any]:
    """The tools of LangChain's `FileManagementToolkit` in short: every path is checked against the folder."""

    def inside(path: str) -> Path:
        found = (folder / path).resolve()
        if not found.is_relative_to(folder.resolve()):
            raise ValueError(f"{path} is outside of the folder")
        return found

    @tool
    def read_file(file_path: str) -> str:
        """Read a file."""
        return inside(file_path).read_text("utf-8")

    @tool
    def write_file(file_path: str, text: str) -> str:
        """Write a file."""
        inside(file_path).parent.mkdir(parents=True, exist_ok=True)
        inside(file_path).write_text(text, "utf-8")
        return "File written."

    @tool
    def edit_file(file_path: str, old: str, new: str) -> str:
        """Replace a text in a file."""
        text = inside(file_path).read_text("utf-8")
        inside(file_path).write_text(text.replace(old, new, 1), "utf-8")
        return "File written."

    @tool
    def delete_file(file_path: str) -> str:
        """Delete a file."""
        inside(file_path).unlink()
        return "File deleted."

    @tool
    def list_directory(dir_path: str = ".") -> str:
        """List a folder."""
        return "\n".join(sorted(each.name for each in inside(dir_path).iterdir()))

    @tool
    def search_files(pattern: str) -> str:
        """Search the files for a text."""
        files = (path for path in inside(".").rglob("*") if path.is_file() and ".git" not in path.parts)
        lines = ((path, line) for path in files for line in path.read_text("utf-8", "replace").splitlines())
        return "\n".join(f"{path.relative_to(folder)}: {line}" for path, line in lines if pattern in line)

    made: list[Any] = [read_file, write_file, edit_file, delete_file, list_directory, search_files]
    for each in made:
        each.handle_tool_error = each.handle_validation_error = True
        each.func = _told(each.func)
    return made


def _told(function: Any) -> Any:
    """The function, with a failure told to the model instead of raised."""

    def run(**arguments: Any) -> str:
        try:
            return str(function(**arguments))
        except (OSError, ValueError) as error:
            return f"Error: {error}"

    return run


def file_call_of(step: Step) -> Call | None:
    """The step as a call of the file tools; None where there is none for it."""
    path = {"file_path": step.target}
    calls: dict[str, Call] = {
        "read": ("read_file", path),
        "write": ("write_file", {**path, "text": step.text}),
        "edit": ("edit_file", {**path, "old": step.text, "new": step.new}),
        "delete": ("delete_file", path),
        "search": ("search_files", {"pattern": step.target}),
        "list": ("list_directory", {"dir_path": step.target}),
    }
    return calls.get(step.act)


def shell_call_of(step: Step, folder: Path) -> Call | None:
    """The step as a call of deepagents' tools: its own for reading and editing, its shell for the rest."""
    path = {"file_path": str(folder / step.target)}
    if step.act == "read":
        return "read_file", path
    if step.act == "edit":
        return "edit_file", {**path, "old_string": step.text, "new_string": step.new}
    if step.act == "delegate":
        return "task", {"description": step.text, "subagent_type": "general-purpose"}
    command = command_of(step)
    return ("execute", {"command": f"cd {shlex.quote(str(folder))} && {command}"}) if command else None


def _run(agent: Any, mind: Obedient, conversation: list[Any]) -> Ended:
    messages = [*conversation, {"role": "user", "content": mind.request()}]
    ended = agent.invoke({"messages": messages})
    conversation[:] = ended["messages"]
    last: BaseMessage = ended["messages"][-1]
    return Ended(text_of(last), True, text_of(last), text_of(last))
