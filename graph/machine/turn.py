"""The services of one turn: what its nodes use, made for the turn's context and used by all of its steps."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.machine_models import MachineModels
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.turn_model import TurnModel
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.nodes.call_model.exchange import CallSettings
from mendgraph.nodes.records import Profile, ToolSpec

MOST_TURNS: Final = 1_000
"""Turns whose services are reused by their next steps."""


class CallPlan(NamedTuple):
    """What all model calls of a turn with this profile have in common."""

    profile: Profile
    settings: CallSettings
    tools: tuple[ToolSpec, ...]


@dataclass
class TurnServices:
    """The tools and the model of one turn. `call_plan` is None until the first model call is prepared."""

    context: AgentContext
    tools: TurnTools
    model: TurnModel
    call_plan: CallPlan | None = None

    def planned(self, profile: Profile) -> CallPlan | None:
        """The plan of an earlier call of this turn with this profile. It asks no disk, so an event loop may call it."""
        plan = self.call_plan
        if plan is None or plan.profile is not profile:
            return None
        return plan

    def plan_calls(self, profile: Profile, run_id: str) -> CallPlan:
        """How the calls of the turn are made and paid, and the tools that the model is told of."""
        plan = self.planned(profile)
        if plan is None:
            plan = CallPlan(profile, self.model.settings(profile, run_id), self.tools.offered(profile))
            self.call_plan = plan

        return plan


class Turns:
    """The services of the turns of one machine, by their contexts: each turn has a context object of its own."""

    def __init__(self, tools: MachineTools, models: MachineModels) -> None:
        self._tools = tools
        self._models = models
        self._services: dict[int, TurnServices] = {}

    def services(self, context: AgentContext) -> TurnServices:
        """The services of the turn with this context."""
        services = self._services.get(id(context))
        if services is not None and services.context is context:
            return services

        if len(self._services) >= MOST_TURNS:
            self._services.clear()

        services = TurnServices(context, TurnTools(self._tools, context), TurnModel(self._models, context))
        self._services[id(context)] = services
        return services
