"""The whole machine, with guard, gateway, ledger and loop control: without a checkpointer, or with the store."""

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
    """Our graph. Its replies are streamed in any case."""

    def run(self, job: Job) -> None:
        """Do the job; as a session of the store, each step of which is on the disk before the next one begins."""
        context = _context(job)
        if job.stored:
            run_task(TASK, context, durability="sync")
        elif job.stream:
            for _ in build_graph().stream(REQUEST, CONFIG, context=context, stream_mode=["custom", "updates"]):
                pass
        else:
            build_graph().invoke(REQUEST, CONFIG, context=context)

    async def arun(self, job: Job) -> None:
        """Do it several times at once."""
        graph, context = build_graph(), _context(job)
        modes = ["custom", "updates"]
        await asyncio.gather(*(drain(graph, job, REQUEST, CONFIG, modes, context=context) for _ in range(job.count)))


def load() -> Machine:
    """Our graph, with what it imports when a run starts."""
    build_graph()
    return Machine()


def _context(job: Job) -> AgentContext:
    """Limits that end no run, and a window in which nothing has to be compacted."""
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
