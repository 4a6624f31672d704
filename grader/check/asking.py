"""Makes the calls in a worker, and judges what comes back."""

import contextlib
import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from grader.check.adapter import QKV, Adapter, BadUsage
from grader.check.features import DTYPES, Asked
from grader.course.calls import OutputSpec, Reply, SubmissionError, TensorInput
from grader.course.cases import Case
from grader.course.correctness import Wrong, answer, tiled_attention
from grader.course.inputs import Built, build
from grader.course.stages import Stage
from grader.diagnosis.samples import Sample
from grader.host.processes import Confinement, Worker
from grader.host.session import Session
from grader.judge.verdict import judge, judging
from grader.report.results import Check

RIGHT, WRONG, REFUSED, UNCLAIMED, UNKNOWN = (
    "right", "wrong", "refused", "not claimed", "not checked")
SECONDS = 120.0  # for one call; the first one may compile
BROKEN = ("gradient-shape", "outside-its-tensors", "out-of-bounds-read", "out-of-bounds-write")


@dataclass
class Found:
    """What came of a call.  said: why it is not right, as far as the worker or the judge tell."""

    asked: Asked
    verdict: str
    said: str = ""
    built: Built | None = None
    reply: Reply | None = None
    check: Check | None = None
    name: str = ""  # of the wrong tensor
    id: str = ""  # of wire.OBSERVED, where the call itself failed

    def of(self, tensor: str) -> str:
        """The verdict on one tensor, "d_q"; on all for ""."""
        if not tensor or self.check is None:
            return self.verdict
        return WRONG if _is_off(self.check.errors[tensor]) else RIGHT

    @property
    def is_finite(self) -> bool:
        """Whether there is an answer, without NaN and inf."""
        errors = self.check.errors.values() if self.check else ()
        return bool(errors) and all(math.isfinite(one["fro"]) for one in errors)

    def sample(self, device: str) -> Sample:
        return Sample.of(self.built, self.reply.tensors, device)


class Asking:
    """The calls of one adapter, each made once.  Use it in a `with`, which ends the worker."""

    def __init__(self, adapter: Adapter, device: str, seed: int, confinement: Confinement):
        self.adapter, self.device, self.seed = adapter, device, seed
        self.confinement, self.session = confinement, None
        self.answers: dict[Asked, Found] = {}
        self.stage = Stage(
            number=0, title="check", entry=adapter.entry, positional=QKV, points=0, steps={},
            keywords=adapter.claims, needs_triton=device == "cuda",  # where float32 may be TF32
            differentiates=True, causal_in_names=True)

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *error) -> None:
        if self.session is not None:
            self.session.close()

    @cached_property
    def plain(self) -> Case:
        """The call without any feature that is not refused, in float32 if that is taken."""
        masks = (False, True) if "is_causal" in self.adapter.claims else (False,)
        cases = [Case(0, "robust", 128, D=64, B=2, HQ=2, HKV=2, dtype=dtype, is_causal=is_causal,
                      by_contract=True, of=self.stage)
                 for is_causal, dtype in itertools.product(masks, DTYPES)]
        return next((case for case in cases if self.found(Asked(case)).verdict != REFUSED),
                    cases[0])

    def found(self, asked: Asked) -> Found:
        if asked not in self.answers:
            self.answers[asked] = self._found(asked)
        return self.answers[asked]

    def _found(self, asked: Asked) -> Found:
        built = _built(asked, self.seed)
        try:
            reply = self.run(built)
        except SubmissionError as error:
            return self._failed(asked, built, error)
        with judging():
            return self._judged(asked, built, _whole(asked, built, reply, self.device))

    def run(self, built: Built) -> Reply:
        """Raises SubmissionError: there is no answer."""
        if self.session is None or self.session.gone:
            if self.session is not None:
                self.session.close()
            self.session = self._opened()
        return self.session.run(built.call)

    def _opened(self) -> Session:
        on_cpu, adapter = self.device == "cpu", self.adapter
        session = Session(Worker(
            adapter.source, adapter.path.name, device=self.device, interpret=on_cpu,
            confinement=self.confinement, pretends=adapter.has_kernels,
            records=on_cpu), SECONDS)
        try:
            session.load(adapter.entry, None, QKV, tuple(
                name for name in adapter.claims if name == "is_causal"))
        except SubmissionError as error:
            session.close()
            if error.outcome == "grader_fault":
                raise
            said = error.located(adapter.path.name).partition(": the course")[0]
            absent = ", which is not installed"
            top = said.removesuffix(absent).rpartition(" ")[2]
            if said.endswith(absent) and any((adapter.path.parent / name).exists()
                                             for name in (top, top + ".py")):
                said = (f"{said.removesuffix(absent)}, which is beside it: only installed packages "
                        "can be imported (pip install -e will do)")
            raise BadUsage(f"want a file that can be imported; got {said}") from None
        return session

    def ask(self, built: Built) -> dict[str, torch.Tensor] | None:
        """The tensors of one more call, in the plain call's dtype; None if it fails."""
        dtype, call = self.plain.dtype, built.call
        built.tensors = {name: x.to(dtype).float() for name, x in built.tensors.items()}
        built.call = replace(
            call, outputs=tuple(replace(one, dtype=dtype) for one in call.outputs),
            inputs={name: TensorInput.dense(x.to(dtype)) for name, x in built.tensors.items()},
            douts={name: TensorInput.dense(x.view().to(dtype)) for name, x in call.douts.items()})
        with contextlib.suppress(SubmissionError):
            return self.run(built).tensors
        return None

    def _judged(self, asked: Asked, built: Built, reply: Reply) -> Found:
        for outputs in reply.outputs:
            again = outputs is not reply.outputs[0]
            one = replace(reply, outputs=[outputs])
            if again:  # what follows was compared with the first
                one = replace(one, refilled=None, late={}, restrided={}, grads_again={},
                              grads_late={})
            check, wrong = judge(self.stage, built, one, self.device)
            if check.outcome != "pass" and not (wrong and _by_sigmoid(wrong, built, self.device)):
                said = check.what or "The second of two equal calls is wrong." * again
                return Found(asked, WRONG, said, built, reply, check, wrong.name if wrong else "")
        return Found(asked, RIGHT, "", built, reply, check)

    def _failed(self, asked: Asked, built: Built, error: SubmissionError) -> Found:
        """What a call without an answer means."""
        place = error.place(self.adapter.path.name)
        said = error.sentence.partition("\n")[0].replace(" during the call", "")
        said += f" ({place})" * bool(place)
        missing = error.id == "output-missing" or said.startswith("lse: want a torch.Tensor")
        if error.outcome == "grader_fault":
            raise error
        if asked.with_lse and missing:
            verdict, said = UNCLAIMED, "it returns o alone"
        elif error.outcome == "skipped" or error.waited_for_cpu or error.id == "out-of-memory":
            verdict = UNKNOWN
        elif error.id == "gradient-missing" and said.startswith("lse:"):
            said = "it carries no gradient, and o does (if that is meant: lse_has_gradient = False)"
            return Found(asked, WRONG, said, built, name="lse", id=error.id)
        elif asked.case.repeats > 1 and "modified by an inplace operation" in said:
            said = ("After the second of two calls, the backward of the first fails: the second "
                    "overwrote what it had saved.")
            return Found(asked, WRONG, said, built, id="gradients-change")
        elif error.outcome == "crashed" and not error.fatal and error.id not in BROKEN:
            verdict = REFUSED
        else:
            verdict = WRONG
        return Found(asked, verdict, said, built, id=error.id)


def _is_off(errors: dict[str, float]) -> bool:
    """Whether a tensor is beyond its limits; written so that NaN is."""
    return not (errors["fro"] <= errors["fro_limit"] and errors["row"] <= errors["row_limit"])


def _by_sigmoid(wrong: Wrong, built: Built, device: str) -> bool:
    """Whether a sink's gradient is as near as that of sigmoid(lse - sink), which in 1 - sigmoid
    loses digits where the sink's share is small, and which many write."""
    if wrong.name != "d_sink_logits":
        return False
    q, k, v, sink = (built.tensors[name].to(device) for name in (*QKV, "sink_logits"))
    plain, sink = tiled_attention(q, k, v, **built.case.mask()), sink.clone().requires_grad_()
    with torch.enable_grad():
        share = torch.sigmoid(plain["lse"] - sink.float()[:, None])[..., None]
        made = {"dout": (plain["o"] * share).to(q.dtype),
                "dlse": torch.logaddexp(plain["lse"], sink.float()[:, None])}
        made, = torch.autograd.grad([made[name] for name in built.upstream], sink,
                                    [x.to(made[name]) for name, x in built.upstream.items()])
    wrong.exact.given["d_sink_logits"] = made
    return wrong.exact.judge(wrong.name, wrong.x).accepted


def _built(asked: Asked, seed: int) -> Built:
    """The case, with lse and its gradient, or with its last queries alone."""
    built = build(asked.case, seed)
    call = replace(built.call, between=None)  # the options of one call are all that is claimed
    if asked.with_lse:
        B, H, N, _ = built.tensors["q"].shape
        call = replace(call, outputs=(*call.outputs, OutputSpec("lse", (B, H, N), torch.float32)))
        if asked.case.grads:
            built.upstream["dlse"] = torch.randn(
                B, H, N, generator=torch.Generator().manual_seed(seed % 2**32))
            call = replace(call, douts=call.douts | {
                "lse": TensorInput.dense(built.upstream["dlse"])})
    if asked.last:
        first = asked.case.N - asked.last
        o, q = call.outputs[0], built.tensors["q"][:, :, first:]
        call = replace(call, inputs=call.inputs | {"q": TensorInput.dense(q)},
                       outputs=(OutputSpec("o", tuple(q.shape), o.dtype),))
        if asked.case.grads:
            dout = built.upstream["dout"].clone()
            dout[:, :, :first] = 0
            built.upstream["dout"] = dout
            call = replace(call, douts={"o": TensorInput.dense(dout[:, :, first:])})
    built.call = call
    return built


def _whole(asked: Asked, built: Built, reply: Reply, device: str) -> Reply:
    """The reply to a call with the last queries alone, with right rows for all others."""
    if not asked.last:
        return reply
    exact = answer(built, device).tiled

    def filled(name: str, x: torch.Tensor) -> torch.Tensor:
        first = exact[name][:, :, :asked.case.N - asked.last].to(x)
        return torch.cat([first, x], 2)

    built.call = replace(built.call, inputs=built.call.inputs | {
        "q": TensorInput.dense(built.tensors["q"])})
    inputs_after = reply.inputs_after | {"q": built.call.inputs["q"].storage}
    return replace(
        reply, outputs=[{"o": filled("o", one["o"])} for one in reply.outputs],
        late={"o": filled("o", reply.late["o"])}, inputs_after=inputs_after,
        grads={name: filled("d_q", x) if name == "q" else x for name, x in reply.grads.items()})
