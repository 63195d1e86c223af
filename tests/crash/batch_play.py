"""The batch that is killed at any moment and started again: twelve tasks, each with an edit and a new file."""

import json
import os
import re
import sys
from typing import Any, Final

from mendgraph import AgentContext, BatchTask, ToolError, run_batch
from tests.doubles.replies import Calls, Reply, Say
from tests.vocabulary import JsonMap

TASKS: Final = 12
_NUMBER: Final = re.compile(r"Task (\d+):")


def tasks(repository: str) -> list[BatchTask]:
    every = range(TASKS)
    return [BatchTask(id=f"t{n}", prompt=f"Task {n}: change old{n}.txt.", workspace=repository) for n in every]


def files() -> dict[str, str]:
    return {f"old{number}.txt": "one\ntwo\n" for number in range(TASKS)}


def number_of(request: JsonMap) -> int:
    match = _NUMBER.search(json.dumps(request["messages"]))
    assert match is not None
    return int(match[1])


def answer(request: JsonMap) -> Reply:
    """The model's reply, computed from the history alone, so that a resumed run gets the next one.

    Made twice, the edit would give another result.
    """
    number, done = number_of(request), sum(message["role"] == "tool" for message in request["messages"])
    if done == 0:
        return Calls([("edit_file", json.dumps({"path": f"old{number}.txt", "old_str": "two", "new_str": "two, two"}))])
    if done == 1:
        return Calls([("write_file", json.dumps({"path": f"new{number}.txt", "content": "made\n"}))])
    return Say(f"Done {number}.")


def context(base_url: str) -> AgentContext:
    return AgentContext(model="scripted", base_url=base_url, offer="all", evidence=False, read_ahead=False)


def start(place: dict[str, str]) -> Any:
    """The one call that begins the batch, and goes on with it."""
    os.environ["MENDGRAPH_DATA_DIR"] = place["data"]
    os.environ["OPENAI_API_KEY"] = "k"
    lines = tasks(place["repository"])
    standby = "standby" in place
    result = run_batch(lines, out=place["out"], context=context(place["base_url"]), workers=3, standby=standby)
    assert not isinstance(result, ToolError), result.message
    return {"end": result.end.value, "done": result.tally.done, "finished": result.tally.finished}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(start(json.loads(sys.argv[1]))))
