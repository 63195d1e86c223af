"""All scenarios, by name. The first one is the story to read first."""

from tests.scenarios.answers import ANSWERS
from tests.scenarios.endings import ENDINGS
from tests.scenarios.ordinary_work import ORDINARY_WORK
from tests.scenarios.permissions import PERMISSIONS
from tests.scenarios.scenario import Scenario
from tests.scenarios.scope import SCOPE
from tests.scenarios.unusable_replies import UNUSABLE_REPLIES

SCENARIOS: tuple[Scenario, ...] = (*ORDINARY_WORK, *UNUSABLE_REPLIES, *PERMISSIONS, *SCOPE, *ANSWERS, *ENDINGS)
