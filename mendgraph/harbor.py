"""mendgraph as an agent of harbor, which runs it in the containers of benchmarks.

    harbor run --agent mendgraph.harbor:Mendgraph --model openai/gpt-5-mini --dataset terminal-bench@2.0

The container is the boundary for the programs that the agent starts. Needs Python 3.12 and the extra `harbor`.
"""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import BaseInstalledAgent, with_prompt_template
from harbor.agents.options import InstalledAgentOptions
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.trajectories import (
    Agent,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)
from harbor.utils.trajectory_utils import format_trajectory_json
from pydantic import Field
from typing_extensions import override

JsonObject: TypeAlias = dict[str, Any]

_EVENTS_FILE: Final = "mendgraph.jsonl"
_LOG_FILE: Final = "mendgraph.txt"
_TRAJECTORY_FILE: Final = "trajectory.json"

_FORWARDED_VARIABLES: Final = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "GOOGLE_API_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENROUTER_API_KEY",
)
"""The variables of this process that the agent gets in the container."""

_PATH: Final = "export PATH=$HOME/.local/bin:$PATH"


class MendgraphOptions(InstalledAgentOptions):
    """Options of the agent: `harbor run --agent-kwarg NAME=VALUE`."""

    source: str = Field(
        default="mendgraph", description="What uv installs: a name, a wheel, or git+https://...@COMMIT."
    )
    packages: list[str] = Field(
        default=["langchain-anthropic", "langchain-google-genai"], description="LangChain's packages for the model."
    )
    programs: list[str] = Field(default=["bash"], description="Programs that run_command may start.")
    require_changes: bool = Field(default=False, description="Whether a task that changes no file is a failure.")
    max_calls: int = Field(default=200, description="The most model calls of a task.")
    max_seconds: int = Field(default=86_400, description="The most seconds of a task; harbor has a limit of its own.")


class Mendgraph(BaseInstalledAgent):
    """Installs mendgraph in the container of a task, and gives it the instruction of the task as its request."""

    capabilities = AgentCapabilities(atif=True)
    options_model = MendgraphOptions

    _instruction = ""

    @staticmethod
    @override
    def name() -> str:
        return "mendgraph"

    @override
    def get_version_command(self) -> str:
        return f"{_PATH}; mendgraph --version"

    @override
    async def install(self, environment: BaseEnvironment) -> None:
        await self.ensure_system_dependencies(environment, ("curl", "git"))

        packages = " ".join(f"--with {shlex.quote(package)}" for package in self.options.packages)
        await self.exec_as_agent(
            environment,
            f"curl -LsSf https://astral.sh/uv/install.sh | sh; {_PATH}; "
            f"uv tool install --python 3.12 {shlex.quote(self.options.source)} {packages}",
        )

    @override
    @with_prompt_template
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        variables = {name: os.environ[name] for name in _FORWARDED_VARIABLES if name in os.environ}
        self._instruction = instruction
        await self.exec_as_agent(environment, f"{_PATH}; {self.run_command(instruction)}", env=variables)

    def run_command(self, instruction: str) -> str:
        """The command line that works on the task; how the run ended is in its events, not in its exit code."""
        arguments = ["mendgraph", "run", "--json-lines", "--no-workspace-config", "--sandbox", "container"]
        arguments += ["--model", model_argument(self.model_name or "")]
        arguments += ["--max-calls", str(self.options.max_calls)]
        arguments += ["--max-input-tokens", "20000000", "--max-output-tokens", "1000000"]
        arguments += ["--max-seconds", str(self.options.max_seconds)]
        if self.options.require_changes:
            arguments.append("--require-changes")
        for program in self.options.programs:
            arguments += ["--allow-program", program]

        quoted = " ".join(map(shlex.quote, arguments))
        logs = f">/logs/agent/{_EVENTS_FILE} 2>/logs/agent/{_LOG_FILE}"
        return f'{quoted} --root "$PWD" - <<<{shlex.quote(instruction)} {logs} || true'

    @override
    def populate_context_post_run(self, context: AgentContext) -> None:
        """Write the run's trajectory, and report its usage and outcome."""
        events = [*_read_events(self.logs_dir / _EVENTS_FILE)]
        if not events:
            return

        agent = Agent(name=self.name(), version=self.version() or "unknown", model_name=self.model_name)
        trajectory = trajectory_of(events, self._instruction, agent)
        text = format_trajectory_json(trajectory.to_json_dict())
        (self.logs_dir / _TRAJECTORY_FILE).write_text(text, encoding="utf-8")

        metrics = trajectory.final_metrics or FinalMetrics()
        context.n_input_tokens = metrics.total_prompt_tokens
        context.n_output_tokens = metrics.total_completion_tokens
        context.n_cache_tokens = metrics.total_cached_tokens
        context.cost_usd = metrics.total_cost_usd
        context.metadata = trajectory.extra


def _read_events(path: Path) -> Iterator[JsonObject]:
    """Yield the events that the command printed; the last line of a killed run is incomplete."""
    if not path.exists():
        return

    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue

            if isinstance(event, dict):
                yield event


def trajectory_of(events: list[JsonObject], instruction: str, agent: Agent) -> Trajectory:
    """Return the run in ATIF: a step for the instruction, then one for each attempt of a model call."""
    steps = [Step(step_id=1, source="user", message=instruction)]
    result: JsonObject = {}
    text = ""

    for event in events:
        match event.get("event"):
            case "text":
                text += event["text"]
            case "paid":
                steps.append(_model_call(len(steps) + 1, event, text))
                text = ""
            case "calls_read":
                if steps[-1].source == "user":  # the files that the instruction names are read before the first call
                    steps.append(Step(step_id=2, source="agent", message="", llm_call_count=0))

                steps[-1].tool_calls = [_tool_call(call) for call in event["calls"]]
            case "step_done":
                results = [_observation_result(each["call_id"], each["result"]) for each in event["results"]]
                steps[-1].observation = Observation(results=results)
            case "healing_began":
                results = [_observation_result(None, error) for error in event["errors"]]
                steps[-1].observation = Observation(results=results)
            case "ended":
                result = event["result"]

    usage = result.get("usage") or {}
    return Trajectory(
        session_id=result.get("thread_id"),
        agent=agent,
        steps=steps,
        final_metrics=FinalMetrics(
            total_prompt_tokens=usage.get("total_input_tokens"),
            total_completion_tokens=usage.get("total_output_tokens"),
            total_cached_tokens=usage.get("cached_tokens"),
            total_cost_usd=usage.get("cost_usd"),
            total_steps=len(steps),
        ),
        extra={"outcome": result.get("outcome"), "thread_id": result.get("thread_id")},
    )


def _model_call(step_id: int, paid: JsonObject, text: str) -> Step:
    return Step(
        step_id=step_id,
        source="agent",
        model_name=paid["model"],
        message=text,
        metrics=Metrics(
            prompt_tokens=paid["input_tokens"],
            completion_tokens=paid["output_tokens"],
            cached_tokens=paid["cached_tokens"],
            cost_usd=paid["cost_usd"],
        ),
        llm_call_count=1,
        extra={"purpose": paid["purpose"], "seconds": paid["seconds"]},
    )


def _tool_call(call: JsonObject) -> ToolCall:
    """Return a call of a reply; the arguments of a malformed one are its text."""
    arguments = call.get("arguments", {"raw_arguments": call["raw_arguments"]})
    return ToolCall(tool_call_id=call["call_id"], function_name=call["tool"], arguments=arguments)


def _observation_result(call_id: str | None, result: JsonObject) -> ObservationResult:
    return ObservationResult(source_call_id=call_id, content=json.dumps(result, ensure_ascii=False))


def model_argument(model: str) -> str:
    """The option `--model` for a `provider/model` of harbor.

    A model of OpenAI is a plain name, so that OPENAI_BASE_URL may name another endpoint; any other is `provider:model`.
    """
    provider, _, name = model.partition("/")
    if provider == "openai":
        return name
    return f"{provider}:{name}" if name else provider
