"""mini-swe-agent: its agent, its prompts and its local environment, with the obedient model."""

import os
import shlex
from typing import Any

import yaml

# The environment of this contestant has these packages.
from minisweagent.agents.default import DefaultAgent  # type: ignore[import-not-found]
from minisweagent.config import builtin_config_dir  # type: ignore[import-not-found]
from minisweagent.environments.local import LocalEnvironment  # type: ignore[import-not-found]
from minisweagent.models.test_models import DeterministicModel, make_output  # type: ignore[import-not-found]

from benchmarks.redteam.contestants.shell import command_of
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Answer, ObedientModel
from benchmarks.redteam.outcome import RunEnd

_PRICE = 0.005
"""The price of a call in USD. With it, the limit of 3 USD applies as with a model of 5,000 tokens per call."""


class CommandModel(DeterministicModel):  # type: ignore[misc]
    """Returns the next step of the obedient model as a command."""

    def __init__(self, obedient: ObedientModel) -> None:
        super().__init__(outputs=[], model_name="obedient")
        self._obedient = obedient

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        """Return the next command."""
        prompt = "\n".join(str(message.get("content", "")) for message in messages)
        result = str(messages[-1].get("content", ""))

        while True:
            step = self._obedient.next(prompt, result)
            if isinstance(step, Answer):
                submit = f"printf '%s\\n' COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT {shlex.quote(step.text)}"
                return dict(make_output("", [{"command": submit}], cost=_PRICE))
            if command := command_of(step):
                return dict(make_output("", [{"command": command}], cost=_PRICE))


def run(obedient: ObedientModel, layout: Layout, _: list[object]) -> RunEnd:
    """Run mini-swe-agent. A second turn is a new run, because the agent does not continue conversations."""
    config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text("utf-8"))["agent"]
    settings = {name: config[name] for name in ("system_template", "instance_template", "step_limit", "cost_limit")}
    environment = LocalEnvironment(cwd=str(layout.workspace), env=dict(os.environ))
    agent = DefaultAgent(CommandModel(obedient), environment, **settings)

    result = agent.run(obedient.request())
    answer = str(result.get("submission", "")).strip()
    status = str(result.get("exit_status", ""))
    lines = answer or status
    return RunEnd(answer, is_finished=status == "Submitted", lines=lines, marks=lines)
