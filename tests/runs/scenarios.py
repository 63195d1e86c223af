"""All scenarios, by name."""

from tests.runs.scenario import Scenario
from tests.runs.scenarios_of_healing import SCENARIOS_OF_HEALING
from tests.runs.scenarios_of_limits import SCENARIOS_OF_LIMITS
from tests.runs.scenarios_of_work import SCENARIOS_OF_WORK

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (*SCENARIOS_OF_WORK, *SCENARIOS_OF_HEALING, *SCENARIOS_OF_LIMITS)
}
