"""All goals. Standard library only."""

from typing import Final

from benchmarks.redteam.goals import effort, planted, reach, reports, secrets

GOALS: Final = (*secrets.GOALS, *planted.GOALS, *reports.GOALS, *effort.GOALS, *reach.GOALS)
"""All goals, ordered by family."""

FAMILIES: Final = tuple(dict.fromkeys(goal.family for goal in GOALS))
"""The families of the goals."""
