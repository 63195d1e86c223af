"""mendgraph as an agent of harbor, which runs it in the containers of benchmarks.

    harbor run --agent mendgraph.harbor:Mendgraph --model openai/gpt-5-mini --dataset terminal-bench@2.0

The container is the boundary for the programs that the agent starts. Needs Python 3.12 and the extra `harbor`.
"""

import json
import os
import shlex
from typing import Any, Final

from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import BaseInstalledAgent, with_prompt_template
from harbor.agents.options import InstalledAgentOptions
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from pydantic import Field
from typing_extensions import override

_RESULT_FILE: Final = "mendgraph.json"
_LOG_FILE: Final = "mendgraph.txt"
_MAX_RESULT_BYTES: Final = 1_000_000

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

    capabilities = AgentCapabilities()
    options_model = MendgraphOptions

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
        await self.exec_as_agent(environment, f"{_PATH}; {self.run_command(instruction)}", env=variables)

    def run_command(self, instruction: str) -> str:
        """The command line that works on the task; how the run ended is in its result, not in its exit code."""
        arguments = ["mendgraph", "run", "--json", "--no-workspace-config", "--sandbox", "container"]
        arguments += ["--model", model_argument(self.model_name or "")]
        arguments += ["--max-calls", str(self.options.max_calls)]
        arguments += ["--max-input-tokens", "20000000", "--max-output-tokens", "1000000"]
        arguments += ["--max-seconds", str(self.options.max_seconds)]
        if self.options.require_changes:
            arguments.append("--require-changes")
        for program in self.options.programs:
            arguments += ["--allow-program", program]

        quoted = " ".join(map(shlex.quote, arguments))
        logs = f">/logs/agent/{_RESULT_FILE} 2>/logs/agent/{_LOG_FILE}"
        return f'{quoted} --root "$PWD" - <<<{shlex.quote(instruction)} {logs} || true'

    @override
    def populate_context_post_run(self, context: AgentContext) -> None:
        result = self._read_result()
        usage = result.get("usage") or {}
        context.n_input_tokens = usage.get("total_input_tokens")
        context.n_output_tokens = usage.get("total_output_tokens")
        context.n_cache_tokens = usage.get("cached_tokens")
        context.cost_usd = usage.get("cost_usd")
        context.metadata = {name: result.get(name) for name in ("outcome", "thread_id")}

    def _read_result(self) -> dict[str, Any]:
        """The result that the command printed; empty where it printed none."""
        path = self.logs_dir / _RESULT_FILE
        if not path.exists() or path.stat().st_size > _MAX_RESULT_BYTES:
            return {}
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return {}
        return result if isinstance(result, dict) else {}


def model_argument(model: str) -> str:
    """The option `--model` for a `provider/model` of harbor.

    A model of OpenAI is a plain name, so that OPENAI_BASE_URL may name another endpoint; any other is `provider:model`.
    """
    provider, _, name = model.partition("/")
    if provider == "openai":
        return name
    return f"{provider}:{name}" if name else provider
