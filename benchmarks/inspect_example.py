"""mendgraph as an agent of Inspect: `agent_bridge` sends its requests to the model of the evaluation.

    pip install inspect-ai
    inspect eval benchmarks/inspect_example.py --model openai/gpt-5-mini

Without a key, with Inspect's mock model: `python -P benchmarks/inspect_example.py`.
"""

import runpy
import tempfile
from pathlib import Path

from inspect_ai import Task, eval as evaluate, task
from inspect_ai.agent import Agent, AgentState, agent, agent_bridge
from inspect_ai.dataset import Sample
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState
from inspect_ai.util import store
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph import arun_task

BUG = "def add(a, b):\n    return a - b\n"


@agent
def coder() -> Agent:
    """Work on the sample in a new folder."""

    async def execute(state: AgentState) -> AgentState:
        workspace = Path(tempfile.mkdtemp())
        (workspace / "calc.py").write_text(BUG)
        store().set("workspace", str(workspace))

        async with agent_bridge(state) as bridge:
            # The bridge answers to the model name "inspect"; it does not stream.
            model = ChatOpenAI(model="inspect", api_key=SecretStr("unused"), disable_streaming=True)
            result = await arun_task(state.messages[-1].text, workspace=str(workspace), model=model)

        bridge.state.output = ModelOutput.from_content("mendgraph", str(result))
        return bridge.state

    return execute


@scorer(metrics=[accuracy()])
def adds() -> Scorer:
    """Score the changed file, not the answer."""

    async def score(_state: TaskState, _target: Target) -> Score:
        return Score(value=CORRECT if _adds(store().get("workspace")) else INCORRECT)

    return score


def _adds(workspace: str) -> bool:
    names = runpy.run_path(str(Path(workspace, "calc.py")))
    return bool(names["add"](2, 3) == 5)


@task
def calc() -> Task:
    """One sample: a function that subtracts."""
    sample = Sample(input="The add function in calc.py subtracts. Fix it.")
    return Task(dataset=[sample], solver=coder(), scorer=adds())


def mock_model() -> Model:
    """Return Inspect's mock model with the replies of a model that repairs the bug."""
    arguments = {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}
    edit = ModelOutput.for_tool_call("mockllm", "edit_file", arguments)
    answer = ModelOutput.from_content("mockllm", "It adds now.")
    for output in (edit, answer):
        output.usage = ModelUsage(input_tokens=100, output_tokens=10, total_tokens=110)

    return get_model("mockllm/model", custom_outputs=[edit, answer])


if __name__ == "__main__":
    [log] = evaluate(calc(), model=mock_model(), display="plain", log_dir=tempfile.mkdtemp())
    assert log.results is not None, log.error
    print(log.status, log.results.scores[0].metrics["accuracy"].value)
