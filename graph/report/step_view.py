"""One step as the page shows it: its bars, the reply, its corrections, its calls, what loop control said. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from graph.report.amounts import cost_words, seconds_words, time_words
from graph.report.booked import BookedCall
from graph.report.call_view import CallView, call_view
from graph.report.steps import Step
from graph.report.texts import Shown, Texts
from nodes.call_model.window import Window
from nodes.heal.corrective_prompt import HealingAttempt
from nodes.language.display import count_of, output_words
from nodes.records import LoopVerdict, StopCause

_LOOP_WORDS: Final = {
    LoopVerdict.FRESH: "",
    LoopVerdict.OVERRIDE: "The same action came too often: it was refused from here on.",
    LoopVerdict.PERSISTED: "The refused action was asked for again: the run was ended.",
    LoopVerdict.ANSWERED: "",
    LoopVerdict.BROKEN: "The workspace failed: the run was ended.",
    LoopVerdict.GAVE_UP: "Too many tries in a row had failed: the run was ended.",
}


@dataclass(frozen=True)
class Scale:
    """The longest step, in seconds, and the one with most tokens: the ends of the bars."""

    seconds: float
    tokens: int


@dataclass(frozen=True)
class Healing:
    """A reply that could not be used: why, what it was, and what the model was told; or that it was read as it is."""

    errors: list[str]
    reply: Shown
    prompt: Shown
    rescued: bool


@dataclass(frozen=True)
class LoopView:
    """What loop control remembers after a step."""

    says: str
    overrides: list[str]
    failed_tries: int
    repeated: int

    @property
    def told(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.says or self.overrides or self.failed_tries or self.repeated > 1)


@dataclass(frozen=True)
class StepView:
    """A step. Widths are percentages of the bar; `state` is its look: ok, failed, denied, unusable, now."""

    anchor: str
    number: int
    title: str
    state: str
    when: str
    duration: str
    parts: list[tuple[str, float, str]]
    tokens: str
    token_parts: list[tuple[str, float, str]]
    cost: str
    notes: list[str]
    said: Shown
    reasoning: Shown
    healing: Healing | None
    calls: list[CallView]
    loop: LoopView
    booked: list[str]


def step_view(
    step: Step, at: int, scale: Scale, booked: Sequence[BookedCall], texts: Texts, *, working: bool = False
) -> StepView:
    """The step, the `at`-th of the page. `booked` are its calls in the spending book; `working`: the run goes on."""
    tries, inputs, outputs, cost, unpriced = step.used
    reply, calls = step.reply, [call_view(each, texts) for each in step.calls]
    return StepView(
        anchor=f"step-{at}",
        number=step.number,
        title=_title(step, texts, working=working),
        state=_state(step, calls),
        when=time_words(step.began),
        duration=seconds_words(step.seconds),
        parts=_time_parts(step, scale),
        tokens=f"{inputs:,} in, {output_words(outputs, step.reasoning_tokens)}",
        token_parts=[
            ("in", _percent(inputs, scale.tokens), f"{inputs:,} tokens in"),
            ("out", _percent(outputs, scale.tokens), f"{outputs:,} tokens out"),
        ],
        cost=cost_words(cost, unpriced) if tries and not unpriced and cost else "",
        notes=_notes(step, tries, texts),
        said=texts.shown(reply.text if reply and not reply.preloaded else ""),
        reasoning=texts.shown(reply.reasoning if reply else ""),
        healing=_healing(step, texts),
        calls=calls,
        loop=_loop(step, texts),
        booked=[texts.line(each.words()) for each in booked] if _is_telling(booked) else [],
    )


def _title(step: Step, texts: Texts, *, working: bool) -> str:
    reply = step.reply
    if step.calls:
        names = [texts.line(call.item.tool, 60) or "a malformed call" for call in step.calls]
        counted = [
            f"{name} \N{MULTIPLICATION SIGN}{names.count(name)}" if names.count(name) > 1 else name
            for name in dict.fromkeys(names)
        ]
        return ", ".join(counted)
    if reply is None:
        if step.visits[-1].target:
            return "no reply"
        return "the model is at work" if working else "cut off while the model was called"
    healed = step.of("heal")
    return "a reply that could not be used" if healed else "the answer" if step.of("FINISHED") else "a reply"


def _state(step: Step, calls: Sequence[CallView]) -> str:
    if step.visits[-1].target == "":
        return "now"
    if step.of("heal") and not calls:
        return "unusable"
    if step.reply is None or any(call.state == "failed" for call in calls):
        return "failed"
    return "denied" if any(call.state == "denied" for call in calls) else "ok"


def _time_parts(step: Step, scale: Scale) -> list[tuple[str, float, str]]:
    person = sum(visit.seconds for visit in step.visits if visit.asked)
    parts = {
        "model": step.seconds_in("call_model"),
        "tools": step.seconds_in("execute_tools"),
        "person": person,
    }
    parts["rest"] = max(0.0, step.seconds - sum(parts.values()))
    words = {"model": "model", "tools": "tools", "person": "waiting for a person", "rest": "everything else"}
    return [
        (name, _percent(spent, scale.seconds), f"{words[name]}: {seconds_words(spent)}")
        for name, spent in parts.items()
        if spent > 0
    ]


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole > 0 else 0.0


def _notes(step: Step, tries: int, texts: Texts) -> list[str]:
    notes = []
    if any(visit.taken_up for visit in step.visits):
        notes.append("The run was taken up again here.")
    if step.reply is not None and step.reply.preloaded:
        notes.append("The machine asked for this itself: files that the request names are read before the model is.")
    if tries > 1:
        notes.append(f"{count_of(tries, 'call')} of the model: retries, fallbacks and summaries count as well.")
    if granted := _granted(step):
        notes.append(f"A person allowed for the rest of the run: {texts.line(granted)}.")
    if step.compaction is not None:
        notes.append(_compaction_words(*step.compaction))
    stop = next((each for visit in step.visits if isinstance(each := visit.after.get("stop"), StopCause)), None)
    if stop is not None:
        notes.append(f"The run ended here: {texts.line(stop.message, 500)}")
    return notes


def _granted(step: Step) -> str:
    """What a person allowed here for the rest of the run."""
    visit = step.of("guard")
    if visit is None:
        return ""
    new = [each for each in visit.after.get("grants") or () if each not in (visit.before.get("grants") or ())]
    return ", ".join(f"{each.tool} {each.subject}".strip() for each in new)


def _compaction_words(was: Window, now: Window) -> str:
    """What is no longer shown to the model; tokens before and after are not kept."""
    done = []
    if cleared := len(set(now.cleared) - set(was.cleared)):
        done.append(f"{count_of(cleared, 'older result')} replaced by notes")
    if now.summary != was.summary and now.summary:
        done.append("the conversation's beginning replaced by a summary")
    elif now.first != was.first:
        done.append("the conversation's beginning left out")
    return f"Compacted before this call: {', and '.join(done) or 'the model is shown less of the conversation'}."


def _healing(step: Step, texts: Texts) -> Healing | None:
    visit = step.of("heal")
    if visit is None:
        return None
    errors = [
        texts.line(
            f"{each.error_type.name}{f' in line {each.line_number}' if each.line_number else ''}: {each.details}"
        )
        for each in visit.before.get("errors") or ()
    ]
    attempts: Sequence[HealingAttempt] = visit.after.get("healing_attempts") or ()
    was: Sequence[HealingAttempt] = visit.before.get("healing_attempts") or ()
    prompt = attempts[-1].corrective_prompt if len(attempts) > len(was) else ""
    reply = visit.before.get("reply")
    said = reply.text or "\n".join(f"{call.tool}({call.arguments})" for call in reply.calls) if reply else ""
    return Healing(errors, texts.shown(said), texts.shown(prompt), rescued=visit.target == "guard")


def _loop(step: Step, texts: Texts) -> LoopView:
    loop = step.loop
    if loop is None:
        return LoopView("", [], 0, 0)
    overrides = [
        texts.line(f"{each.tool} {each.target}".strip() + f": asked for {each.repeats} times, and refused")
        for each in loop.overrides
    ]
    last = loop.recent[-1] if loop.recent else ()
    repeated = max((sum(each in signatures for signatures in loop.recent) for each in last), default=0)
    return LoopView(_LOOP_WORDS[loop.verdict], overrides, loop.failed_tries, repeated)


def _is_telling(booked: Sequence[BookedCall]) -> bool:
    """One settled reply says nothing that the step does not; retries, fallbacks and summaries do."""
    return len(booked) > 1 or any(each.purpose != "reply" or each.settled is None for each in booked)
