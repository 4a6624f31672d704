"""What a submission answered to the case that is wrong, and to further ones asked after it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grader.course.cases import Case
from grader.course.correctness import Answer, Verdict, answer
from grader.course.inputs import Built
from grader.words import probes


@dataclass(eq=False)
class Sample:
    """One answer of the submission: the case, float64 tensors by name, and the right answer."""

    built: Built
    got: dict[str, torch.Tensor]
    exact: Answer
    verdicts: dict[str, Verdict]

    @classmethod
    def of(cls, built: Built, got: dict[str, torch.Tensor], device: str,
           exact: Answer | None = None) -> "Sample":
        exact = exact or answer(built, device)
        return cls(built, {n: x.cpu().double() for n, x in got.items()}, exact,
                   {n: exact.judge(n, x) for n, x in got.items()})

    @property
    def wrong(self) -> dict[str, bool]:
        return {name: not verdict.accepted for name, verdict in self.verdicts.items()}

    @property
    def times(self) -> dict[str, float]:
        """Every tensor's error as a multiple of its limit."""
        return {name: verdict.times for name, verdict in self.verdicts.items()}

    def truth(self, name: str) -> torch.Tensor:
        return self.exact.truth[name].cpu()

    @property
    def first_wrong(self) -> list[str]:
        """The tensors to look at: outputs before lse, lse before the gradients made of it."""
        outputs = [n for n in self.got if not n.startswith("d_") and n != "lse"]
        for names in (outputs, ["lse"]):
            if any(self.wrong.get(name) for name in names):
                return names
        return [n for n in self.got if n.startswith("d_")]


class Samples:
    """The wrong answer, and those to further cases.

    ask(built) -> the submission's tensors for another case, or None if it failed there.
    """

    def __init__(self, wrong: Sample, ask: Callable[[Built], dict | None], device: str):
        self.wrong, self.ask, self.device = wrong, ask, device
        self.names = wrong.first_wrong
        self.answers: dict[Case, Sample | None] = {}  # to the further cases asked

    def plain_is_right(self) -> bool:
        """Whether a plain, small case is answered rightly."""
        plain = self.answer(probes.general(self.wrong.built.case))
        return plain is not None and not any(plain.wrong.values())

    def answer(self, case: Case) -> Sample | None:
        """What the submission answers to a further case; None where it fails."""
        if not self.names[0].startswith("d_"):
            case = replace(case, grads=())
        if case not in self.answers:
            built = probes.build_probe(case, 1)
            got = self.ask(built)
            self.answers[case] = None if got is None else Sample.of(built, got, self.device)
        return self.answers[case]
