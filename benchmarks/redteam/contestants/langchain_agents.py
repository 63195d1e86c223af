"""LangChain's `create_agent` with plain file tools, and deepagents with its local shell."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from langchain_core.tools import tool

from benchmarks.redteam.contestants.chat_model import Call, ObedientChat, text_of
from benchmarks.redteam.contestants.shell import command_of
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import ObedientModel
from benchmarks.redteam.outcome import RunEnd
from benchmarks.redteam.steps import Step


def run_create_agent(obedient: ObedientModel, layout: Layout, conversation: list[Any]) -> RunEnd:
    """Run `create_agent` with tools that read, write, list and delete files of one folder."""
    model = ObedientChat(obedient=obedient, call_of=file_call_of)
    agent = create_agent(model, tools=file_tools(layout.workspace))
    return _run(agent, obedient, conversation)


def run_deepagents(obedient: ObedientModel, layout: Layout, conversation: list[Any]) -> RunEnd:
    """Run `create_deep_agent` on a `LocalShellBackend`."""
    from deepagents import create_deep_agent
    from deepagents.backends import LocalShellBackend

    backend = LocalShellBackend(root_dir=layout.workspace, virtual_mode=False, inherit_env=True)
    model = ObedientChat(obedient=obedient, call_of=lambda step: shell_call_of(step, layout.workspace))
    agent = create_deep_agent(model, backend=backend)
    return _run(agent, obedient, conversation)


def file_tools(folder: Path) -> list[Any]:
    """Return tools like those of LangChain's `FileManagementToolkit`, which reject paths outside of the folder."""

    def resolve(path: str) -> Path:
        file = (folder / path).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise ValueError(f"{path} is outside of the folder")
        return file

    @tool
    def read_file(file_path: str) -> str:
        """Read a file."""
        return resolve(file_path).read_text("utf-8")

    @tool
    def write_file(file_path: str, text: str) -> str:
        """Write a file."""
        file = resolve(file_path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return "File written."

    @tool
    def edit_file(file_path: str, old: str, new: str) -> str:
        """Replace a text in a file."""
        file = resolve(file_path)
        text = file.read_text("utf-8")
        file.write_text(text.replace(old, new, 1), "utf-8")
        return "File written."

    @tool
    def delete_file(file_path: str) -> str:
        """Delete a file."""
        resolve(file_path).unlink()
        return "File deleted."

    @tool
    def list_directory(dir_path: str = ".") -> str:
        """List a folder."""
        return "\n".join(sorted(path.name for path in resolve(dir_path).iterdir()))

    @tool
    def search_files(pattern: str) -> str:
        """Search the files for a text."""
        return "\n".join(_matching_lines(folder.resolve(), pattern))

    tools: list[Any] = [read_file, write_file, edit_file, delete_file, list_directory, search_files]
    for file_tool in tools:
        file_tool.handle_tool_error = True
        file_tool.handle_validation_error = True
        file_tool.func = _return_errors(file_tool.func)
    return tools


def _matching_lines(folder: Path, pattern: str) -> Iterator[str]:
    """Yield the lines of files that contain the pattern, with the path of the file."""
    for path in folder.rglob("*"):
        if not path.is_file() or ".git" in path.parts:
            continue
        for line in path.read_text("utf-8", "replace").splitlines():
            if pattern in line:
                yield f"{path.relative_to(folder)}: {line}"


def _return_errors(function: Any) -> Any:
    """Wrap a function so that it returns its errors as text."""

    def run(**arguments: Any) -> str:
        try:
            return str(function(**arguments))
        except (OSError, ValueError) as error:
            return f"Error: {error}"

    return run


def file_call_of(step: Step) -> Call | None:
    """Return the call of a file tool for a step; None if no tool can do it."""
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
    """Return the call of deepagents' tool for a step: its file tools to read and edit, its shell for other steps."""
    path = {"file_path": str(folder / step.target)}
    if step.act == "read":
        return "read_file", path
    if step.act == "edit":
        return "edit_file", {**path, "old_string": step.text, "new_string": step.new}
    if step.act == "delegate":
        return "task", {"description": step.text, "subagent_type": "general-purpose"}

    command = command_of(step)
    if not command:
        return None
    return "execute", {"command": f"cd {shlex.quote(str(folder))} && {command}"}


def _run(agent: Any, obedient: ObedientModel, conversation: list[Any]) -> RunEnd:
    messages = [*conversation, {"role": "user", "content": obedient.request()}]
    state = agent.invoke({"messages": messages})
    conversation[:] = state["messages"]

    last: BaseMessage = state["messages"][-1]
    answer = text_of(last)
    return RunEnd(answer, is_finished=True, lines=answer, marks=answer)
