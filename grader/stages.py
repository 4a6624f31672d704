"""One table: stage -> title, file, entry point, points, steps.

What is asked of each is in case_table.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from grader.case_table import listed
from grader.cases import Case

NO_TRITON = (
    "triton is not installed, and this stage needs it. It has wheels for Linux only: use WSL on "
    "Windows, a Linux container on a Mac, GitHub Codespaces or Colab, then `pip install triton`."
)


@dataclass(frozen=True)
class Stage:
    """One stage of the course.  cases(device, has_bfloat16) -> its cases, standard ones first."""

    number: int
    title: str
    entry: str
    positional: tuple[str, ...]  # the arguments a submission must take, in this order
    points: int
    cases: Callable[[str, bool], list[Case]]
    steps: dict[str, str]  # symptom, as naming/words.py names it -> the step to look at
    # Where the walk over the keys is bounded, and that over the queries: what needless.py looks at.
    walks: tuple[str, ...] = ()
    attribute: str | None = None  # "apply" where the entry point is an autograd.Function
    origins: dict[str, str] = field(default_factory=dict)  # step -> where it is carried over from
    optional: bool = False
    needs_triton: bool = True

    @property
    def filename(self) -> str:
        return f"problem_{self.number}.py"

    @property
    def backward_is_given(self) -> bool:
        """As PyTorch, which recomputes everything from the saved lse."""
        return 3 <= self.number <= 7


QKV = ("q", "k", "v")
FORWARD = "flash_attention_forward"

STAGES: dict[int, Stage] = {stage.number: stage for stage in (
    Stage(
        number=1, title="FlashAttention in PyTorch", points=200, cases=partial(listed, 1),
        entry="FlashAttention2Function", attribute="apply", positional=(*QKV, "is_causal"),
        steps={"mask": "1.1", "numbers": "1.3", "overflow": "1.3", "nan": "1.3", "rescale": "1.4",
               "lse": "1.5", "tail": "1.2"}, walks=("1.2",), needs_triton=False),
    Stage(
        number=2, title="Weighted Row-Sum in Triton", points=100, cases=partial(listed, 2),
        entry="weighted_row_sum_forward", positional=("x", "w"),
        steps={"tail": "2.2", "stride": "2.2", "nan": "2.2", "numbers": "2.3"}),
    Stage(
        number=3, title="Non-Causal Flash Attention", points=200, cases=partial(listed, 3),
        entry=FORWARD, positional=(*QKV, "is_causal"),
        steps={"numbers": "3.5", "overflow": "3.5", "rescale": "3.5", "mask": "3.4", "tail": "3.2",
               "nan": "3.1", "batch": "3.1", "head": "3.1", "stride": "3.7", "width": "3.7"}),
    Stage(
        number=4, title="Causal Flash Attention", points=100, cases=partial(listed, 4),
        entry=FORWARD, positional=(*QKV, "is_causal"),
        steps={"numbers": "4.2", "tail": "4.2", "mask": "4.6", "nan": "4.1", "batch": "4.1",
               "head": "4.1", "overflow": "4.5", "rescale": "4.5", "stride": "4.7",
               "width": "4.7"}, walks=("4.2",)),
    Stage(
        number=5, title="Grouped-Query Attention", points=50, cases=partial(listed, 5),
        entry=FORWARD, positional=(*QKV, "is_causal"),
        steps={"numbers": "5.2", "head": "5.2", "batch": "5.2", "stride": "5.2", "nan": "5.1",
               "width": "5.8", "tail": "5.3", "overflow": "5.6", "rescale": "5.6",
               "mask": "5.7"}),
    Stage(
        number=6, title="Sliding-Window Attention", points=50, cases=partial(listed, 6),
        entry=FORWARD, positional=(*QKV, "is_causal", "window_size"),
        steps={"numbers": "6.7", "overflow": "6.7", "rescale": "6.7", "nan": "6.7",
               "window": "6.8", "mask": "6.8", "tail": "6.3", "batch": "6.1", "head": "6.2",
               "stride": "6.9", "width": "6.9"}, walks=("6.3",)),
    Stage(
        number=7, title="Attention Sinks", points=50, cases=partial(listed, 7),
        entry=FORWARD, positional=(*QKV, "is_causal", "window_size", "sink_size"),
        steps={"numbers": "7.4", "tail": "7.4", "sinks": "7.8", "window": "7.8", "mask": "7.8",
               "overflow": "7.7", "rescale": "7.7", "nan": "7.7", "batch": "7.1", "head": "7.2",
               "stride": "7.9", "width": "7.9"}, walks=("7.4",)),
    Stage(
        number=8, title="Backward Pass with GQA", points=200, cases=partial(listed, 8),
        entry="flash_attention_gqa", positional=(*QKV, "is_causal", "softmax_scale"),
        steps={"numbers": "8.3", "mask": "8.18", "nan": "8.11", "tail": "8.14", "d_q": "8.12",
               "d_k": "8.17", "d_v": "8.17", "overflow": "8.6", "rescale": "8.6", "batch": "8.1",
               "head": "8.2", "stride": "8.19", "width": "8.19"}, walks=("8.3", "8.14"),
        optional=True),
    Stage(
        number=9, title="Backward Pass with GQA, Window and Sinks", points=200,
        cases=partial(listed, 9), entry="flash_swda_with_sink",
        positional=(*QKV, "window_size", "sink_size", "is_causal", "scale"),
        steps={"numbers": "9.3", "mask": "9.21", "window": "9.21", "sinks": "9.21", "tail": "9.20",
               "d_q": "9.12", "d_k": "9.16", "d_v": "9.16", "d_sink_logits": "9.11",
               "overflow": "9.7", "rescale": "9.7", "nan": "9.7", "batch": "9.1", "head": "9.2",
               "stride": "9.22", "width": "9.22"}, walks=("9.20", "9.16"),
        optional=True),
)}
