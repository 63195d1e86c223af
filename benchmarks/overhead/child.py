"""The worker process of a contestant: it imports the contestant, runs jobs and reports their CPU time.

Each line of standard input is a job, and each line of the original standard output a response: `{"ready": true}` after
the imports, then `{"cpu_s": ..., "process_cpu_s": ...}` or `{"error": ...}`. Standard library only.
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
"""The loader of each contestant: a module of `benchmarks.overhead.contestants`, and its function."""


def load(name: str) -> Contestant:
    """Import and return a contestant."""
    module_name, function = LOADERS[name].split(":")
    module = importlib.import_module(f"benchmarks.overhead.contestants.{module_name}")
    contestant: Contestant = getattr(module, function)()
    return contestant


def cpu_s() -> float:
    """Return the user and system CPU seconds of this process and of its completed child processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(contestant: Contestant, job: Job) -> dict[str, Any]:
    """Run one job and return its CPU seconds. Garbage of the previous job is collected first."""
    gc.collect()
    before = cpu_s()

    try:
        if job.count > 1:
            asyncio.run(contestant.arun(job))
        else:
            contestant.run(job)
    except Exception as error:  # noqa: BLE001 - any exception of a contestant is a failed run
        return {"error": f"{type(error).__name__}: {str(error)[:600]}"}

    after = cpu_s()
    return {"cpu_s": after - before, "process_cpu_s": after}


def main() -> None:
    """Run jobs until standard input closes. The output of libraries goes to standard error."""
    responses = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    contestant = load(sys.argv[1])
    responses.write('{"ready": true}\n')

    for line in sys.stdin:
        job = Job(**json.loads(line))
        responses.write(json.dumps(measure(contestant, job)) + "\n")


if __name__ == "__main__":
    main()
