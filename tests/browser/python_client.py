"""Plays the scenario with the SDK for Python, as `node_client.mjs` does with the one for Node: the same steps.

    python_client.py SERVER SCENARIO WORKSPACE MODEL

It prints one JSON object: what each step of the scenario saw, without ids and times.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from langgraph_sdk import get_sync_client

GRAPH = "mendgraph"
Json = dict[str, Any]


class Client:
    """One person with one thread."""

    def __init__(self, url: str, workspace: str, model: str) -> None:
        self.sdk = get_sync_client(url=url)
        self.context: Json = {"workspace": workspace, "model": model, "read_ahead": False, "allowed_programs": []}
        self.thread: Json = dict(self.sdk.threads.create())
        self.id = str(self.thread["thread_id"])

    def assistants(self, _: Json) -> Any:
        """The assistants that a client can choose from."""
        return [[assistant["graph_id"], assistant["name"]] for assistant in self.sdk.assistants.search(graph_id=GRAPH)]

    def schemas(self, step: Json) -> Any:
        """What a client makes its forms of."""
        [assistant] = self.sdk.assistants.search(graph_id=GRAPH)
        schemas: Any = self.sdk.assistants.get_schemas(assistant["assistant_id"])
        form = schemas["context_schema"]["properties"]
        return {
            "input": sorted(schemas["input_schema"]["properties"]),
            "output": sorted(schemas["output_schema"]["properties"]),
            "form": {name: without(form[name], "description") for name in step["fields"]},
        }

    def run(self, step: Json) -> Any:
        """A turn, the answer to an interrupt, or a plain continuation."""
        more: Json = {"context": {**self.context, **step.get("context", {})}}
        if "resume" in step:
            more = {"command": {"resume": step["resume"]}}
        elif "task" in step:
            more["input"] = request(step["task"])
        return self.streamed(more)

    def streamed(self, more: Json) -> Any:
        """The nodes that ran, and the text as it came."""
        nodes: list[str] = []
        text: list[str] = []
        errors: list[Any] = []
        parts: Any = self.sdk.runs.stream(self.id, GRAPH, stream_mode=["updates", "custom"], **more)
        for part in parts:
            if part.event == "updates":
                nodes += part.data
            elif part.event == "custom" and part.data["type"] == "text":
                text.append(part.data["text"])
            elif part.event == "error":
                errors.append(part.data)
        return {"nodes": nodes, "text": "".join(text), "errors": errors}

    def state(self, _: Json) -> Any:
        """What the state shows of guard, healing, loop control and the outcome."""
        state: Any = self.sdk.threads.get_state(self.id)
        values = state["values"]
        outcome = values.get("outcome")
        return {
            "next": state["next"],
            "asked": [question_rows(interrupt["value"]) for task in state["tasks"] for interrupt in task["interrupts"]],
            "verdicts": [[verdict["kind"], verdict["rule"], verdict["path"]] for verdict in values["verdicts"]],
            "results": [
                [result["tool"], (result["result"]["error"] or {}).get("code")] for result in values["results"]
            ],
            "healing": [
                [error["line_content"] for error in attempt["errors"]] for attempt in values["healing_attempts"]
            ],
            "loop": values["loop"]["verdict"],
            "changed": [change["path"] for change in values["changes"]],
            "outcome": outcome and {name: outcome[name] for name in ("kind", "reason", "answer", "changed_files")},
            "messages": [
                [message["type"], message["content"]] for message in values["messages"] if message["type"] != "tool"
            ],
        }

    def history(self, _: Json) -> Any:
        """Which nodes were next at each checkpoint, the newest first."""
        return [state["next"] for state in self.past()]

    def past(self) -> list[Any]:
        """All checkpoints."""
        return list(self.sdk.threads.get_history(self.id, limit=100))

    def fork(self, step: Json) -> Any:
        """Continue from an earlier checkpoint."""
        point = next(state for state in self.past() if state["next"] == [step["before"]])
        return self.streamed({"checkpoint_id": point["checkpoint"]["checkpoint_id"]})

    def update(self, step: Json) -> Any:
        """Add a message without running anything."""
        self.sdk.threads.update_state(self.id, request(step["task"]), as_node=step["as_node"])
        state: Any = self.sdk.threads.get_state(self.id)
        return {"next": state["next"], "last": state["values"]["messages"][-1]["content"]}

    def cancel(self, step: Json) -> Any:
        """Cancel a run as soon as its first text is there."""
        parts: Any = self.sdk.runs.stream(
            self.id, GRAPH, input=request(step["task"]), context=self.context, stream_mode=["custom"]
        )
        run_id, text = "", ""
        for part in parts:
            run_id = part.data.get("run_id", run_id) if part.event == "metadata" else run_id
            if part.event == "custom" and part.data["type"] == "text" and not text:
                text = part.data["text"]
                self.sdk.runs.cancel(self.id, run_id, wait=True, action="interrupt")
        state: Any = self.sdk.threads.get_state(self.id)
        return {
            "text": text,
            "run": self.sdk.runs.get(self.id, run_id)["status"],
            "thread": self.sdk.threads.get(self.id)["status"],
            "next": state["next"],
        }


def request(task: str) -> Json:
    """The input of a turn."""
    return {"messages": [{"role": "user", "content": task}]}


def without(map: Json, name: str) -> Json:  # noqa: A002 - it is one
    """The map but for one of its fields."""
    return {key: value for key, value in map.items() if key != name}


def question_rows(question: Any) -> Any:
    """What an interrupt asks, in short."""
    return [[call["tool"], call["path"], call["rule"]] for call in question["calls"]]


def main(url: str, scenario: str, workspace: str, model: str) -> None:
    """Play all steps, and print what they saw."""
    client = Client(url, workspace, model)
    with open(scenario, encoding="utf-8") as file:
        steps: list[Json] = json.load(file)["steps"]
    seen: Json = {}
    for step in steps:
        play: Callable[[Json], Any] = getattr(client, step["do"])
        seen[step["name"]] = play(step)
    print(json.dumps(seen, ensure_ascii=False))  # noqa: T201 - what the script is for


if __name__ == "__main__":
    main(*sys.argv[1:])
