"""A contestant at work in a process of its own: loads it, then does the jobs that come in and says what they cost.

Each line of standard input is a job, each line of the real standard output an answer: `{"ready": true}`, then
`{"cpu_s": ..., "process_cpu_s": ...}` or `{"error": ...}`. Imports are over before the first answer. The standard
library alone.
"""

import asyncio
import gc
import importlib
import json
import os
import resource
import sys
from typing import Any

from benchmarks.overhead.job import Contestant, Job

LOADERS = {
    "httpx loop": "loops:load_httpx",
    "openai SDK loop": "loops:load_openai",
    "two-node LangGraph": "two_nodes:load",
    "create_agent": "langchain_agents:load_create_agent",
    "deepagents": "langchain_agents:load_deepagents",
    "pydantic-ai": "pydantic_agent:load",
    "mendgraph": "mendgraph_machine:load",
}
"""Where each contestant is: a module of `benchmarks.overhead.contestants` and its function."""


def load(name: str) -> Contestant:
    """Import a contestant."""
    module, function = LOADERS[name].split(":")
    loaded: Contestant = getattr(importlib.import_module(f"benchmarks.overhead.contestants.{module}"), function)()
    return loaded


def cpu_s() -> float:
    """CPU seconds, user and system, of this process and of those that it started and that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def do(contestant: Contestant, job: Job) -> dict[str, Any]:
    """One job and its CPU seconds; what the last one left behind is collected before."""
    gc.collect()
    before = cpu_s()
    try:
        if job.count > 1:
            asyncio.run(contestant.arun(job))
        else:
            contestant.run(job)
    except Exception as error:  # noqa: BLE001 - whatever it raises, it did not finish
        return {"error": f"{type(error).__name__}: {str(error)[:600]}"}
    after = cpu_s()
    return {"cpu_s": after - before, "process_cpu_s": after}


def main() -> None:
    """Answer until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    contestant = load(sys.argv[1])
    answers.write('{"ready": true}\n')
    for line in sys.stdin:
        answers.write(json.dumps(do(contestant, Job(**json.loads(line)))) + "\n")


if __name__ == "__main__":
    main()
