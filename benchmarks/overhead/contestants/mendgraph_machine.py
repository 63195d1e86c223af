"""The complete graph of mendgraph, without a checkpointer or with the store."""

import asyncio
import os
from typing import Any

from benchmarks.overhead.job import MODEL, MOST_STEPS, TASK, Job, drain
from mendgraph import AgentContext, build_graph, run_task
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE

CONFIG: Any = {"recursion_limit": MOST_STEPS}
REQUEST: Any = {"messages": [("user", TASK)]}
LIMIT = 10**9


class Machine:
    """The graph of mendgraph. It always streams its replies."""

    def run(self, job: Job) -> None:
        """Run the job. With the store, each step is on the disk before the next step begins."""
        context = _context(job)

        if job.stored:
            run_task(TASK, context, durability="sync")
        elif job.stream:
            for _ in build_graph().stream(REQUEST, CONFIG, context=context, stream_mode=["custom", "updates"]):
                pass
        else:
            build_graph().invoke(REQUEST, CONFIG, context=context)

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""
        graph = build_graph()
        context = _context(job)
        modes = ["custom", "updates"]
        runs = [drain(graph, job, REQUEST, CONFIG, modes, context=context) for _ in range(job.count)]
        await asyncio.gather(*runs)


def load() -> Machine:
    """Return the graph, after the imports of a run."""
    build_graph()
    return Machine()


def _context(job: Job) -> AgentContext:
    """Return a context whose limits stop no run and whose window needs no compaction."""
    os.environ[DATA_DIR_VARIABLE] = job.keep
    return AgentContext(
        workspace=job.folder,
        base_url=job.url,
        model=MODEL,
        protocol="native",
        max_calls_per_session=LIMIT,
        max_calls_per_turn=1_000,
        max_input_tokens_per_session=LIMIT,
        max_output_tokens_per_session=LIMIT,
        window_tokens=LIMIT,
    )
