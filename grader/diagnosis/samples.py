"""Holds a submission's answers to the wrong case and to the further cases run after it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grader.course.cases import Case
from grader.course.correctness import Answer, Verdict, answer
from grader.course.inputs import Built, build


@dataclass(eq=False)
class Sample:
    """One answer of the submission: the case, float64 tensors by name, and the right answer."""

    built: Built
    got: dict[str, torch.Tensor]
    exact: Answer
    verdicts: dict[str, Verdict]

    @classmethod
    def of(cls, built: Built, got: dict[str, torch.Tensor], device: str) -> "Sample":
        exact = answer(built, device)
        return cls(built, {n: x.cpu().double() for n, x in got.items()}, exact,
                   {n: exact.judge(n, x) for n, x in got.items()})

    @property
    def wrong(self) -> list[str]:
        """The names of the wrong tensors."""
        return [name for name, verdict in self.verdicts.items() if not verdict.accepted]

    @property
    def times(self) -> dict[str, float]:
        """The error of every tensor as a multiple of its limit."""
        return {name: verdict.times for name, verdict in self.verdicts.items()}

    def truth(self, name: str) -> torch.Tensor:
        return self.exact.truth[name].cpu()

    @property
    def first_wrong(self) -> list[str]:
        """The wrong tensors to look at: outputs before lse, lse before the gradients made from
        it."""
        outputs = [n for n in self.got if not n.startswith("d_") and n != "lse"]
        for names in (outputs, ["lse"]):
            if set(names) & set(self.wrong):
                return names
        return [n for n in self.got if n.startswith("d_")]


class Samples:
    """The wrong answer, and those to further cases.

    ask(built) -> the submission's tensors for another case, or None if that failed.
    """

    def __init__(self, wrong: Sample, ask: Callable[[Built], dict | None], device: str):
        self.wrong, self.ask, self.device = wrong, ask, device
        self.names = wrong.first_wrong
        self.answers: dict[Case, Sample | None] = {}  # to further cases

    def plain_is_right(self) -> bool:
        """Whether the answer to a plain, small case is right."""
        plain = self.answer(general(self.wrong.built.case))
        return plain is not None and not plain.wrong

    def answer(self, case: Case) -> Sample | None:
        """The answer to a further case; None if it fails."""
        if not self.names[0].startswith("d_"):
            case = replace(case, grads=())
        if case not in self.answers:
            built = without_nan(case, 1)
            got = self.ask(built)
            self.answers[case] = None if got is None else Sample.of(built, got, self.device)
        return self.answers[case]


def without_nan(case: Case, seed: int) -> Built:
    """The case with numbers instead of NaN in its gaps, so that a wrong read can be recognised."""
    built = build(case, seed)
    gen = torch.Generator().manual_seed(seed)
    for sent in (*built.call.inputs.values(), *built.call.douts.values()):
        gaps = torch.isnan(sent.storage)
        noise = torch.randn(len(gaps), generator=gen).to(sent.storage.dtype)
        sent.storage[gaps] = noise[gaps]
    return built


def general(case: Case) -> Case:
    """A plain case that tells most mistakes apart: several batch entries, groups of three heads."""
    stage = case.course_stage
    if stage.sums_rows:
        return Case(case.stage, "probe", 333, M=70, dtype=torch.float32, layout="guarded",
                    grads=case.grads, dout="last" if case.dout == "last" else "dense")
    HQ, HKV = stage.heads
    base = Case(case.stage, "probe", 90, D=16, B=2, HQ=HQ, HKV=HKV, dtype=torch.float32,
                is_causal=case.is_causal, grads=case.grads)
    if not stage.needs_triton:
        NK = None if case.NK is None else 100 if case.NK < case.N else 200
        return replace(base, N=160, NK=NK)
    if case.window is not None:  # a window that hides nothing still hides nothing
        base = replace(base, window=23 if case.window < case.N else 300)
    if case.sinks is not None:
        base = replace(base, sinks=5 if case.sinks else 0)
    if stage.differentiates:
        scale = None if case.scale is None else 0.4
        base = replace(base, N=70, scale=scale, sink_logits=case.sink_logits)
    return base
