"""An agent that pays, and is killed after its first payment: a program of its own, for `ForkServer`."""

import os
import signal
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph import ExactlyOnceMiddleware
from tests.vocabulary import JsonMap


def pay(amount: int) -> str:
    """Pay an amount."""
    with open("paid.txt", "a", encoding="utf-8") as file:
        file.write(f"{amount}\n")

    if not os.path.exists("killed"):
        open("killed", "w", encoding="utf-8").close()
        os.kill(os.getpid(), signal.SIGKILL)

    return "Paid."


def work(argument: JsonMap) -> str:
    """Pay in a folder, or resume the payment there; returns its result."""
    os.chdir(argument["folder"])
    os.environ["MENDGRAPH_DATA_DIR"] = "data"
    model = ChatOpenAI(model="scripted", base_url=argument["url"], api_key="a-key-of-nobody", max_retries=0)  # type: ignore[arg-type]
    middleware = [ExactlyOnceMiddleware()] if argument["once"] else []

    with SqliteSaver.from_conn_string("thread.sqlite") as saver:
        agent = create_agent(model, [pay], middleware=middleware, checkpointer=saver)
        request: Any = None if os.path.exists("killed") else {"messages": [("user", "Pay 5.")]}
        thread: Any = {"configurable": {"thread_id": "1"}}
        result = agent.invoke(request, thread, durability="sync")

    return str(result["messages"][-2].text)
