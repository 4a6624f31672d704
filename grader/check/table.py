"""Makes the rows of the table: a feature, its verdict, and what shows it."""

from dataclasses import dataclass, field

from grader.check.asking import REFUSED, RIGHT, UNCLAIMED, UNKNOWN, WRONG, Asking, Found
from grader.check.features import needs, trials
from grader.check.naming import name


@dataclass
class Row:
    """One feature.  says: why it is not right, in a sentence; mistake: its id; tensor, case, worst:
    of the call that shows it; right: how many calls were; dropped: how many said nothing, because
    the call without the feature is not right; refused: sentences, with a call of each; remarks:
    calls on which right 16-bit arithmetic may be wrong, too."""

    feature: str
    verdict: str
    says: str = ""
    mistake: str = ""
    tensor: str = ""
    case: str = ""
    worst: str = ""
    right: int = 0
    dropped: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def row(asking: Asking, feature: str) -> Row:
    """Check a feature."""
    made, claims = Row(feature, UNKNOWN), asking.adapter.claims
    if missing := [one for one in needs(feature) if one not in claims]:
        return Row(feature, UNCLAIMED, f"no argument {missing[-1]}")
    if feature == "dlse" and not asking.adapter.lse_has_gradient:
        return Row(feature, UNCLAIMED, "the file says lse_has_gradient = False")
    if feature == "far" and asking.device == "cpu":
        return Row(feature, UNKNOWN, "needs a GPU")
    dropped: dict[str, list[str]] = {}  # why they said nothing -> the calls that show it
    for trial in trials(feature, asking.plain, asking.adapter):
        if trial.whole and (whole := asking.found(trial.whole)).verdict == REFUSED:
            made.refused.setdefault(whole.said, _words(whole))
            continue
        waits = [one for one in map(asking.found, trial.without) if one.verdict != RIGHT]
        if waits:
            if waits[0].verdict != UNCLAIMED:
                dropped.setdefault(f"{waits[0].verdict} without it", []).append(_words(waits[0]))
            made.verdict = UNCLAIMED if waits[0].verdict == UNCLAIMED else made.verdict
            made.says = made.says or (
                waits[0].said if waits[0].verdict == UNCLAIMED else
                f"the call without it is {waits[0].verdict}: {_words(waits[0])}")
            continue
        found = asking.found(trial.asked)
        verdict = found.of(trial.tensor)
        if verdict == RIGHT:
            made.right += 1
        elif verdict == WRONG and trial.is_remark and (
                found.is_finite or trial.asked.case.dout == "loud"):  # do * o may overflow
            made.remarks.append(_words(found))
        elif verdict == WRONG:
            return _wrong(asking, made, found, trial.tensor)
        elif verdict == REFUSED or verdict == UNCLAIMED and made.right:
            made.refused.setdefault(found.said, _words(found))
        else:
            made.verdict, made.says = verdict, found.said
            if verdict == UNKNOWN:
                dropped.setdefault(verdict, []).append(_words(found))
    made.dropped = sum(map(len, dropped.values()))
    if made.right:
        lost = made.dropped - len(dropped.get(f"{REFUSED} without it", ()))
        made.verdict, made.says = UNKNOWN if lost > made.right else RIGHT, ""
        if dropped:
            made.says = (f"{made.right} of {made.right + made.dropped} calls; the others are "
                         + " or ".join(f"{why}: {calls[0]}" for why, calls in dropped.items()))
    elif made.refused:
        made.verdict, made.says = REFUSED, next(iter(made.refused))
    elif not made.says:
        made.says = "no two of these features are claimed"  # together
    if feature == "nq_nk" and made.right and not asking.adapter.align and "is_causal" in claims:
        made.says = (made.says or f"{made.right} calls") + (
            "; not causal, for the file does not say align = ...")
    return made


def _wrong(asking: Asking, made: Row, found: Found, tensor: str) -> Row:
    found.name = tensor or found.name
    made.mistake, made.says, made.worst = name(asking, found)
    made.verdict, made.tensor, made.case = WRONG, found.name, _words(found)
    return made


def _words(found: Found) -> str:
    """The call in words: its shape and what is special about it."""
    case, last = found.asked.case, found.asked.last
    label = case.label.replace(f"L={case.N}", f"Lq={last}, Lk={case.N}") if last else case.label
    return ", ".join(filter(None, (label, case.note, "with lse" * found.asked.with_lse)))
