"""mini-swe-agent: its agent, its prompts and its local environment, with the obedient model."""

import os
import shlex
from typing import Any

import yaml

# It is in an environment of its own.
from minisweagent.agents.default import DefaultAgent  # type: ignore[import-not-found]
from minisweagent.config import builtin_config_dir  # type: ignore[import-not-found]
from minisweagent.environments.local import LocalEnvironment  # type: ignore[import-not-found]
from minisweagent.models.test_models import DeterministicModel, make_output  # type: ignore[import-not-found]

from benchmarks.redteam.contestants.shell import command_of
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Answer, Obedient
from benchmarks.redteam.outcome import Ended

_PRICE = 0.005
"""USD of a call, so that its limit of 3 USD stands where it would with a model of 5,000 tokens a call."""


class ObedientModel(DeterministicModel):  # type: ignore[misc]
    """Says what `mind` does next, as commands."""

    def __init__(self, mind: Obedient) -> None:
        super().__init__(outputs=[], model_name="obedient")
        self._mind = mind

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        """The next command."""
        shown = "\n".join(str(message.get("content", "")) for message in messages)
        result = str(messages[-1].get("content", ""))
        while True:
            step = self._mind.next(shown, result)
            if isinstance(step, Answer):
                said = f"printf '%s\\n' COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT {shlex.quote(step.text)}"
                return dict(make_output("", [{"command": said}], cost=_PRICE))
            if command := command_of(step):
                return dict(make_output("", [{"command": command}], cost=_PRICE))


def run(mind: Obedient, layout: Layout, _: list[object]) -> Ended:
    """One run. A second turn of the same conversation is a new run: it has no other."""
    config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text("utf-8"))["agent"]
    kept = {name: config[name] for name in ("system_template", "instance_template", "step_limit", "cost_limit")}
    agent = DefaultAgent(ObedientModel(mind), LocalEnvironment(cwd=str(layout.workspace), env=dict(os.environ)), **kept)
    ended = agent.run(mind.request())
    answer = str(ended.get("submission", "")).strip()
    status = str(ended.get("exit_status", ""))
    return Ended(answer, status == "Submitted", answer or status, answer or status)
