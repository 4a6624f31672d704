"""The records of what the judge asks of a worker, and of what comes back."""

from dataclasses import dataclass, field

import torch

from grader.course.operations import size
from grader.course.trace import Trace
from grader.sandbox.wire import MULTIPROCESSORS, dtype_name
from grader.text import escape


@dataclass(frozen=True)
class TensorInput:
    """A tensor as it is sent: its whole storage, padding included, and the view into it.

    apart: 0, or the stride of the first axis, in elements, that the worker gives the tensor.  Only
    the entries themselves are sent then, because the gaps take gigabytes.
    """

    storage: torch.Tensor  # 1-D, contiguous, CPU
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    offset: int = 0
    apart: int = 0

    @classmethod
    def dense(cls, tensor: torch.Tensor) -> "TensorInput":
        """A contiguous copy of this tensor, without padding."""
        tensor = tensor.detach().cpu().contiguous()
        return cls(tensor.reshape(-1).clone(), tuple(tensor.shape), tuple(tensor.stride()))

    def view(self) -> torch.Tensor:
        stride = self.stride
        if self.apart:
            stride = (self.storage.numel() // self.shape[0], *stride[1:])
        return self.storage.as_strided(self.shape, stride, self.offset)

    def end(self) -> int:
        """One past the last element of the storage that the view covers."""
        steps = zip(self.shape, self.stride, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in steps)


@dataclass(frozen=True)
class OutputSpec:
    """Name, shape and dtype of a right output."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Call:
    """One call of the entry point.  A str that starts with "@" in args or kwargs names an input."""

    inputs: dict[str, TensorInput]
    args: tuple
    kwargs: dict[str, object]
    outputs: tuple[OutputSpec, ...]  # in the order a right call returns them
    douts: dict[str, TensorInput] = field(default_factory=dict)  # by output; empty: forward only
    grads: tuple[str, ...] = ()  # inputs whose gradient comes back; only they require grad
    refill: dict[str, TensorInput] | None = None  # new values for the same memory, called again
    repeats: int = 1  # calls with the same inputs
    between: tuple[tuple, dict] | None = None  # other args and kwargs for one more call
    entry: str = ""  # a function of the file, if not the one loaded
    late: bool = False  # read the first outputs once more, some time after the rest
    # An autotuned kernel, the number of its configuration, and whether it runs beforehand, too, as
    # when a GPU times it.
    configuration: tuple[str, int, bool] | None = None
    multiprocessors: int = MULTIPROCESSORS


@dataclass(frozen=True)
class Race:
    """Two programs of a launch that access the same element.  verb: whether the second "writes" or
    "reads" what the first writes; index: the element's place in the tensor, if known."""

    verb: str
    programs: tuple[tuple[int, ...], tuple[int, ...]]
    tensor: str
    index: tuple[int, ...]
    line: int

    @classmethod
    def read(cls, said) -> "Race | None":
        """Raises ValueError, TypeError, KeyError: said is no race."""
        if said is None:
            return None
        if said["verb"] not in ("writes", "reads"):
            raise ValueError("want writes or reads")
        first, second = (tuple(map(size, place)) for place in said["programs"])
        return cls(said["verb"], (first[:3], second[:3]), escape(str(said["tensor"])[:60]),
                   tuple(map(size, said["index"]))[:6], size(said["line"]))


@dataclass(frozen=True)
class Tuned:
    """What a worker without a GPU learnt of autotuned kernels.  configurations: in words, by the
    kernel's name; changed: arguments that change with every further run."""

    configurations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()

    @classmethod
    def read(cls, said) -> "Tuned":
        """Raises TypeError, KeyError, AttributeError: said is no such record."""
        def words(texts) -> tuple[str, ...]:
            return tuple(escape(str(text))[:200] for text in texts[:1000])

        return cls() if said is None else cls(
            {escape(str(name))[:200]: words(texts)
             for name, texts in said["configurations"].items()}, words(said["changed"]))


@dataclass
class Reply:
    """All that one call sent back.  Tensors have exactly the shapes and dtypes asked for."""

    outputs: list[dict[str, torch.Tensor]]  # one dict per repeat
    grads: dict[str, torch.Tensor]
    refilled: dict[str, torch.Tensor] | None
    # With repeats: the outputs for the same numbers at other strides; then, after a call with other
    # numbers and options, the gradients of the first call once more.
    restrided: dict[str, torch.Tensor]
    grads_again: dict[str, torch.Tensor]
    grads_late: dict[str, torch.Tensor]  # those returned first, read after another backward
    late: dict[str, torch.Tensor]  # the first outputs, read again; 50 ms later if Call.late
    inputs_after: dict[str, torch.Tensor]  # the storages after the calls, before a refill
    douts_after: dict[str, torch.Tensor]
    trace: Trace  # what the worker says the first call did
    stdout: str  # the first and last 32 KiB of all it printed so far, escaped
    seconds: float
    race: Race | None = None  # between two programs, if the worker saw one
    tuned: Tuned = field(default_factory=Tuned)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The first outputs, and the gradients as d_q, d_k, ..."""
        return self.outputs[0] | {"d_" + name: x for name, x in self.grads.items()}


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel variant compiled for the architecture asked for."""

    name: str
    shared_bytes: int
    seconds: float
    warnings: tuple[tuple[int, str], ...]  # (line of the file, sentence)
    line: int = 0  # where it is defined
    hash: str = ""  # Triton's, of its text, its arguments' types and Triton itself


Box = tuple[int, int, int, int]  # first and last row, first and last column


@dataclass(frozen=True)
class Access:
    """One load, store or atomic addition.  tile: of all its lanes; lanes: of those that no mask
    leaves out; each may lie outside of its tensor; masked: the flag MASKED of the code at work."""

    verb: str  # "load", "store" or "add"
    tensor: str
    line: int | None
    tile: Box
    lanes: Box | None
    masked: bool | None = None

    def is_outside(self, shape: tuple[int, int]) -> bool:
        """Whether a lane that is not masked off lies outside of a tensor of this shape."""
        top, bottom, left, right = self.lanes or (0, 0, 0, 0)
        return top < 0 or bottom >= shape[0] or left < 0 or right >= shape[1]


@dataclass(frozen=True)
class Launch:
    """What the programs of a launch do to memory, as worker/accesses.py notes it.  tensors: rows
    and columns, by the kernel's names for them."""

    kernel: str
    tensors: dict[str, tuple[int, int]]
    programs: tuple[tuple[Access, ...], ...]
    grid: tuple[int, ...] = ()

    @classmethod
    def read(cls, found: dict) -> "Launch":
        """Raises ValueError and others if it is none: a worker is not trusted."""
        def box(edges) -> Box:
            first, last, left, right = (min(max(int(edge), -1 << 40), 1 << 40) for edge in edges)
            return first, last, left, right

        tensors = {str(name)[:60]: (size(rows), size(columns))
                   for name, (rows, columns) in [*found["tensors"].items()][:40]}
        return cls(str(found["kernel"])[:60], tensors, tuple(tuple(
            Access(str(verb), str(name), line if type(line) is int else None, box(tile),
                   lanes and box(lanes), masked if type(masked) is bool else None)
            for verb, name, line, tile, lanes, masked in program if name in tensors)
            for program in found["programs"]), tuple(map(size, found["grid"]))[:3])


class SubmissionError(Exception):
    """A finding about the submission, or about the grader itself ("grader_fault").

    outcome: crashed, timeout, wrong, skipped or grader_fault.  id: one of wire.OBSERVED, or "".
    line: the innermost line of the file; column: in it, if that says more; lines: all lines of the
    file on the stack, innermost first.  fatal: the worker is gone.  waited_for_cpu: the timeout
    came before the worker had the CPU time it may take, because other processes had the CPUs.
    """

    def __init__(self, outcome: str, sentence: str, *, id: str = "", detail: str = "",
                 line: int | None = None, column: int | None = None, lines: tuple[int, ...] = (),
                 fatal: bool = False, waited_for_cpu: bool = False):
        super().__init__(sentence)
        self.outcome, self.sentence, self.id, self.detail = outcome, sentence, id, detail
        self.line, self.column, self.lines = line, column, lines
        self.fatal, self.waited_for_cpu = fatal, waited_for_cpu

    def place(self, filename: str) -> str:
        """ "problem_1.py:95", of which editors make a link; "" where the line is not known."""
        return "" if self.line is None else f"{filename}:{self.line}"

    def located(self, filename: str) -> str:
        """The sentence after its place, with the column."""
        column = f":{self.column}" if self.column else ""
        return f"{self.place(filename)}{column}: " * (self.line is not None) + self.sentence


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they are equal bit for bit; then NaN equals itself."""
    a, b = a.contiguous().flatten(), b.contiguous().flatten()
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def pack(call: Call, *, with_refill: bool = False) -> tuple[dict, list[torch.Tensor]]:
    """The request's header, and the storages in the order in which the worker reads them."""
    groups = {"inputs": call.inputs, "douts": call.douts}
    if with_refill and call.refill is not None:
        for name, new in call.refill.items():
            old = call.inputs[name]
            if _layout(new) != _layout(old):
                raise ValueError(f"want {name} refilled as {_layout(old)}; got {_layout(new)}")
        groups["refill"] = call.refill
    header: dict = {
        "args": list(call.args), "kwargs": call.kwargs, "grads": list(call.grads),
        "repeats": call.repeats, "entry": call.entry, "late": call.late,
        "configuration": call.configuration, "multiprocessors": call.multiprocessors,
        "between": dict(zip(("args", "kwargs"), call.between or (call.args, call.kwargs),
                            strict=True)),
        "outputs": [{"name": spec.name, "shape": list(spec.shape), "dtype": dtype_name(spec.dtype)}
                    for spec in call.outputs],
    }
    tensors = []
    for group, members in groups.items():
        header[group] = {name: _layout(t) for name, t in members.items()}
        tensors += [t.storage for t in members.values()]
    for tensor in tensors:
        if tensor.dim() != 1 or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError(f"want 1-D CPU storage; got {tuple(tensor.shape)} on {tensor.device}")
    return header, tensors


def _layout(tensor: TensorInput) -> dict:
    return {
        "dtype": dtype_name(tensor.storage.dtype), "numel": tensor.storage.numel(),
        "shape": list(tensor.shape), "stride": list(tensor.stride), "offset": tensor.offset,
        "apart": tensor.apart,
    }


def results(call: Call) -> dict[str, tuple]:
    """Name -> shape and dtype of every output and gradient."""
    shapes = {spec.name: (spec.shape, spec.dtype) for spec in call.outputs}
    return shapes | {"d_" + name: (call.inputs[name].shape, call.inputs[name].storage.dtype)
                     for name in call.grads}
