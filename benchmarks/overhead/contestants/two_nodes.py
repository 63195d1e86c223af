"""A graph of two nodes on `ChatOpenAI`, as in LangGraph's documentation."""

import asyncio
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.overhead import job as jobs
from benchmarks.overhead.job import KEY, MODEL, MOST_STEPS, TASK, Job

CONFIG: Any = {"recursion_limit": MOST_STEPS}
REQUEST: Any = {"messages": [{"role": "user", "content": TASK}]}


class TwoNodes:
    """A graph of a model node and a tool node."""

    def run(self, job: Job) -> None:
        """Run the job."""
        if not job.stream:
            _graph(job).invoke(REQUEST, CONFIG)
            return

        for _ in _graph(job).stream(REQUEST, CONFIG, stream_mode="messages"):
            pass

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""
        graph = _graph(job, asynchronous=True)
        runs = [jobs.drain(graph, job, REQUEST, CONFIG) for _ in range(job.count)]
        await asyncio.gather(*runs)


def load() -> TwoNodes:
    """Return the graph."""
    return TwoNodes()


def _graph(job: Job, *, asynchronous: bool = False) -> Any:
    @tool
    def read_file(path: str) -> str:
        """Read a text file."""
        return jobs.read_file(job.folder, path)

    model = ChatOpenAI(model=MODEL, base_url=job.url, api_key=lambda: KEY).bind_tools([read_file])

    def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def acall_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("call_model", acall_model if asynchronous else call_model)
    graph.add_node("tools", ToolNode([read_file]))
    graph.add_edge(START, "call_model")
    graph.add_conditional_edges("call_model", tools_condition)
    graph.add_edge("tools", "call_model")
    return graph.compile()
