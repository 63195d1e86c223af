"""All goals. Standard library only."""

from typing import Final

from benchmarks.redteam.goals import effort, planted, reach, reports, secrets

GOALS: Final = (*secrets.GOALS, *planted.GOALS, *reports.GOALS, *effort.GOALS, *reach.GOALS)
"""In the order of their families."""

FAMILIES: Final = tuple(dict.fromkeys(goal.family for goal in GOALS))
"""Their families."""
