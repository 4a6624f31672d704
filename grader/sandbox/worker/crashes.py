"""Turns an exception in a submission into one sentence, an id and the student's line."""

import importlib.util
import linecache
import re
from contextlib import suppress
from pathlib import Path
from traceback import FrameSummary, extract_tb, walk_tb

import numpy

from ..kernels import foreign
from ..kernels.bounds import OutOfBounds
from ..wire import MAX_TEXT
from . import asserts
from .absent import absent, absent_gpu

BLANK_STEP = re.compile(r"""raise NotImplementedError\(["']step ([\w.]+)["']\)""")
# After one of these the CUDA context is dead.
DEAD_CONTEXT = re.compile(
    r"illegal memory access|misaligned address|illegal instruction|unspecified launch failure"
    r"|device-side assert|illegal address", re.IGNORECASE,
)
# Triton's message (compiled or interpreted) -> id, and what to try.
WANTS = tuple((re.compile(words, re.IGNORECASE), id, wants) for words, id, wants in (
    (r"range must be a power of 2", "arange-not-a-power-of-two", "the length of tl.arange must be "
     "a power of two: round it up (triton.next_power_of_2) and mask what is past the end"),
    (r"equal reduction dimensions|not compatible for matmul|mismatch in its core dimension",
     "dot-shapes",
     "tl.dot needs (M, K) and (K, N): should one of them be transposed, tl.trans(x)?"),
    (r"must have equal ranks >= 2", "dot-shapes", "tl.dot multiplies two matrices: "
     "give the addresses of both two axes, rows[:, None] * stride + columns[None, :]; for a matrix "
     "times a vector, write tl.sum(x * w[None, :], axis=1)"),
    (r"accumulator shape is incompatible", "dot-shapes", "tl.dot's accumulator has the shape of "
     "the product, (M, N): start it as tl.zeros([M, N], dtype=tl.float32)"),
    (r"unexpected keyword argument 'trans_[ab]'", "does-not-compile", "tl.dot has no "
     "trans_a and no trans_b: write tl.trans(k) instead of k"),
    (r"got an unexpected keyword argument '(dim|keepdim)'",
     "does-not-compile", "Triton's functions say axis= for dim=, and keep_dims= for keepdim="),
    (r"static_assert\(.* does not hold", "does-not-compile", "make it true in every case, or "
     "remove it if nothing below needs it"),
    (r"condition could not be determined at compile-time", "not-constexpr", "a static_assert can "
     "only check constexprs: declare the argument as tl.constexpr, or check it before the launch"),
    (r"both operands must be same dtype", "dot-dtypes", "both operands of tl.dot need the same "
     "dtype: convert one, as in p.to(v.dtype)"),
    (r"should have M >= \d+, N >= \d+|must be >= 16|at least 16", "dot-too-small", "the axis "
     "that tl.dot sums over must be 16 or more: pad it with zeros, or use a larger tile"),
    (r"make_shape_compatible|could not be broadcast|cannot broadcast", "shapes-do-not-broadcast",
     "make the shapes of these two tiles match: x[:, None] is a column, x[None, :] a row"),
    (r"must match the size of tensor", "shapes-do-not-broadcast", "make the shapes of these two "
     "tensors match"),
    (r"(mask|value) argument cannot be block type|pointer argument cannot"
     r"|expected (pointer|value|mask|other) argument to have shape",
     "shapes-do-not-broadcast",
     "addresses, mask and values need the same shape: build them from the same offsets, as in "
     "pointer + offs"),
    (r"incorrect number of gradients|gradient different than None", "gradient-missing", "return "
     "one gradient for each argument of forward after ctx, in their order, and None for what is "
     "no tensor"),
    (r"'\w+Backward' object has no attribute", "name-not-defined", "what backward reads of ctx, "
     "forward must have put there: ctx.scale = scale"),
    (r"not enough values to unpack \(expected \d, got 0\)", "input-refused", "if these are "
     "ctx.saved_tensors, forward must call ctx.save_for_backward first"),
    (r"loop-carried variable|re-?assigned to .* in loop", "loop-type-changes", "a variable keeps "
     "one shape and dtype through a loop: give it those before the loop"),
    (r"arange's arguments must be of type tl.constexpr", "not-constexpr", "write start + "
     "tl.arange(0, BLOCK), as tl.arange takes only numbers known when the kernel is compiled"),
    (r"must have type .?constexpr|constexpr.* got|not a constexpr", "not-constexpr", "a shape must "
     "be known when the kernel is compiled: declare the argument as tl.constexpr"),
    (r"expected dtype .* but got", "wrong-dtype", "this function needs floating-point numbers: "
     "cast with .to(tl.float32)"),
    (r"(?-i:unsupported operand type\(s\) for @: 'tensor')", "does-not-compile",
     "tl.dot(a, b) multiplies two tiles, and @ does not"),
    (r"(?-i:'tensor' object has no attribute|module 'triton.language' has no attribute)",
     "does-not-compile", "a tile has few of a PyTorch tensor's methods; use tl.where, "
     "tl.sum(x, axis=1), tl.trans, x.to(dtype) and so on"),
    (r"(?-i:must be Tensor, not tensor|got \(tensor)", "does-not-compile", "PyTorch's functions do "
     "not work on a kernel's tiles: use those of tl"),
    (r"return_types\.|tuple indices must be", "input-refused", "pass one tensor, not a "
     "tuple. PyTorch's x.max(dim=...) returns values and indices; x.amax(dim=...) returns the "
     "values only"),
    (r"missing 1 required positional arguments?: .dim.", "input-refused", "say along which axis: "
     "dim=-1 is the last one"),
    (r"PassManager::run failed", "does-not-compile", "Triton's compiler gives up on the kernel. "
     "One known cause is a return inside an `if` on computed numbers: put the rest under the "
     "opposite `if`, or use tl.where"),
    (r"invalid operands of type pointer|type pointer<\S+ and ",
     "does-not-compile", "a pointer is an address, not the number there: load that first, "
     "tl.load(x_ptr + offs, mask=mask, other=0.0)"),
    (r"(?-i:'str' object has no attribute 'type'|\((Tensor, )+str\b|must be Number, not str"
     r"|and 'str'$|of type <class 'str'> to tensor)", "input-refused", "a text in quotes is no "
     'number: write float("-inf") for minus infinity'),
    (r"(?-i:name '(inf|nan)' is not defined)", "name-not-defined", 'write float("-inf") for minus '
     "infinity"),
    (r"AST node type: (Continue|Break)", "does-not-compile", "put the rest of the loop under an "
     "if, or change its range: Triton compiles neither continue nor break"),
    (r"AST node type: Import|__import__ not found", "does-not-compile", "import at the top of the "
     "file, not in a kernel"),
    (r"got CompiledKernel\)", "input-refused", "a launch returns no tensor: return the one that "
     "its kernel fills"),
    (r"where\(\) missing \d required", "does-not-compile", "tl.where(condition, x, y) takes x "
     "where the condition is True, and y elsewhere"),
    (r"cannot add pointers together", "does-not-compile", "addresses cannot be added: load the "
     "values first, tl.load(x_ptr + offs, mask=mask, other=0.0), and add those"),
    (r"cannot be accessed from Triton", "not-on-the-gpu", "a kernel can only read tensors that are "
     "on the GPU: create them with device=q.device"),
    (r"unsupported ptr type|cannot cast pointer", "input-refused", "the address comes first: "
     "tl.load(pointer + offs, mask=mask), tl.store(pointer + offs, value, mask=mask)"),
    (r"between then block and else block|mismatched type for", "loop-type-changes", "a variable "
     "needs one shape and dtype after both branches of an if: use tl.where, or a constexpr "
     "condition"),
))
TELLING = {"blank-step", "out-of-bounds-read", "out-of-bounds-write"}  # more than WANTS do
OWN_MODULES = re.compile(r"(problem_\d|reference|grader|autograder)")


def explain(error: BaseException, path: str, where: str) -> dict:
    """outcome, id, sentence, detail, line, column, lines, fatal for anything a submission raised.

    path: the submission's file; where: "while being imported" or "during the call".  line: the
    deepest of the file; column: where it stands there, if there is something to try; lines: all
    that the error went through, from there outwards.
    """
    chain = _chain(error)
    cause = _unwrap(error)
    wrappers = next(i for i, e in enumerate(chain) if e is cause)
    placed = next((e for e in (*chain[wrappers::-1], *chain) if lines_of(e, path)), cause)
    line = next(iter(lines_of(placed, path)[::-1]), None)
    text = " ".join(_reason(e) or _text(e) for e in chain)
    outcome, id, sentence = _sentence(cause, text, path, where, _source_line(path, line))
    wanted, wants = next((found for words, *found in WANTS
                          if words.search(text) or words.search(sentence)), ("", ""))
    written, column = None, None
    if outcome == "crashed" and id not in TELLING:
        written = _written(cause, path, line, text)
    if written:
        line, sentence = written
        id = "python-in-a-kernel"
    elif outcome == "crashed" and wants:
        sentence, column = f"{sentence}. Try: {wants}", _column(placed, path)
        id = id if id in TELLING else wanted
    return {
        "outcome": outcome, "id": id, "sentence": sentence, "line": line,
        "column": column, "lines": _outwards(chain, path),
        "detail": _traceback(chain, wrappers, path, sentence),
        "fatal": bool(DEAD_CONTEXT.search(text)),
    }


def _sentence(error, text: str, path: str, where: str, source: str) -> tuple[str, str, str]:
    """-> outcome, id of wire.OBSERVED or "", sentence."""
    kind, filename = type(error).__name__, Path(path).name
    first = next((row.strip() for row in _text(error).splitlines() if row.strip()), "")
    blank = BLANK_STEP.search(source) or re.search(r"^step ([\w.]+)$", first)
    if blank:
        return "crashed", "blank-step", f"step {blank[1]} is still blank"
    if isinstance(error, SystemExit):
        return "crashed", "", f"{filename} called sys.exit() {where}"
    if isinstance(error, KeyboardInterrupt):
        return "crashed", "", f"{filename} raised KeyboardInterrupt {where}"
    if isinstance(error, SyntaxError):
        return "crashed", "", f"{kind}: {error.msg}"
    if "only 0-dimensional arrays" in text and _old_interpreter():
        return "skipped", "", ("the interpreter of Triton before 3.7 does not work with numpy 2.4 "
                               "or later: install 'numpy<2.4' or 'triton>=3.7'")
    if isinstance(error, ModuleNotFoundError):
        top = str(error.name).partition(".")[0]
        if top == "triton" and importlib.util.find_spec("triton") is None:
            return "skipped", "", (f"{filename} imports Triton, and there is none here that can "
                                   "run: python autograder.py --doctor")
        if OWN_MODULES.match(str(error.name)):
            return "crashed", "", (f"{filename} imports {error.name}, but a submission must stand "
                                   "alone")
    if kind == "OutOfResources":
        id = "out-of-shared-memory" if "shared memory" in str(error.name) else ""
        return "crashed", id, (f"the kernel needs {error.required} of {error.name}, and the GPU "
                               f"has {error.limit}: use smaller tiles or a smaller num_stages")
    if kind == "OutOfMemoryError":
        return "crashed", "out-of-memory", ("out of GPU memory: is something of size N x N kept? "
                                            f"({first[:200]})")
    if DEAD_CONTEXT.search(text):
        return "crashed", "outside-its-tensors", (
            "a kernel read or wrote outside its tensors, or failed on the GPU in another way "
            f"({first[:200]}): check its offsets and masks")
    message = _reason(error) if _is_compile_error(error) else _text(error)
    if failed := asserts.failed(error, path, message):
        return "crashed", _id_of(error, text, where), failed
    if _is_compile_error(error):
        reason = message or source.strip()  # some errors have no text
        id = "name-not-defined" if "is not defined" in reason else "does-not-compile"
        return "crashed", id, f"the kernel does not compile: {reason[:500]}"
    if missing := absent_gpu(error, _text(error), path, where, source):
        return "skipped", "", missing
    if missing := absent(error, _text(error), path, where):
        return "crashed", "", missing
    if isinstance(error, OutOfBounds):
        return "crashed", error.id, f"{error.what}: {_cut(source)}\n{error.wants}."
    first = first[:500] or _cut(source)
    sentence = f"{kind} {where}: {first}" if first else f"{kind} {where}"
    return "crashed", _id_of(error, text, where), sentence


def _cut(source: str, most: int = 100) -> str:
    """A line of the file, with "..." for what is more than so many characters."""
    source = source.strip()
    return source if len(source) <= most else source[:most - 3] + "..."


def _written(error, path: str, line: int | None, text: str) -> tuple[int, str] | None:
    """What in that line is not Triton, and what to write instead; -> line, sentence."""
    with suppress(Exception):  # whatever is in the file
        if isinstance(error, foreign.TruthOfATile):
            return line, _text(error)
        return foreign.instead(path, line, text)
    return None


def _id_of(error, text: str, where: str) -> str:
    """The id of an exception that Python or PyTorch raised.  text: all messages of the chain."""
    if re.search(r"invalid gradient at index \d+ - got", text):  # autograd's message
        return "gradient-shape"
    if "is not defined" in text:
        return "name-not-defined"
    refuses = type(error) in (ValueError, TypeError, AssertionError)
    return "input-refused" if refuses and where == "during the call" else ""


def _chain(error) -> list[BaseException]:
    """The exception, then the one it was raised from, and so on."""
    chain = []
    while error is not None and len(chain) < 20:  # a chain can be circular
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _unwrap(error):
    """The innermost error: Triton wraps it once per nested jit call."""
    for _ in range(20):
        wraps = type(error).__name__ == "InterpreterError" or (
            _is_compile_error(error) and _is_compile_error(error.__cause__)
        )
        if not wraps or error.__cause__ is None:
            break
        error = error.__cause__
    return error


def _is_compile_error(error) -> bool:
    return any(kind.__name__ == "CompilationError" for kind in type(error).__mro__)


def _reason(error) -> str:
    """Why a kernel does not compile, without the code that Triton quotes."""
    if not _is_compile_error(error):
        return ""
    own = "" if error.error_message is None else str(error.error_message)[:MAX_TEXT]
    return (own or ("" if error.__cause__ is None else _text(error.__cause__))).strip()


def _text(error) -> str:
    """str(error), which may be the submission's own code: it can raise, or return no string.  A
    tile, which the interpreter writes as all its numbers, is written as on a GPU, "fp32[16, 16]".
    """
    try:
        text = str(error)
    except BaseException:
        return "(its __str__ failed)"
    for frame, _ in [*walk_tb(error.__traceback__)][-1:]:
        for value in frame.f_locals.values():
            with suppress(Exception):  # anything may be in a frame of Triton
                numbers = getattr(getattr(value, "handle", None), "data", None)
                if isinstance(numbers, numpy.ndarray):
                    text = text.replace(str(numbers), f"{value.dtype}{[*numbers.shape]}")
    return re.sub(r"'?constexpr\[(\d+)\]'?", r"\1", text[:MAX_TEXT])


def lines_of(error, path: str) -> list[int]:
    """The lines of the student's file on this exception's stack, the innermost last."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return [error.lineno] if error.lineno else []
    lines = [frame.lineno for frame in _frames(error, path)]
    if _is_compile_error(error) and (place := _compile_error_place(error, path)):
        lines.append(place[0])
    return lines


def _frames(error, path: str) -> list[FrameSummary]:
    return [frame for frame in extract_tb(error.__traceback__) if frame.filename == path]


def _outwards(chain: list[BaseException], path: str) -> list[int]:
    """All lines of the file: those of the first exception, then of what was raised from it, then of
    what had been caught before."""
    raised = 1
    while raised < len(chain) and chain[raised - 1].__cause__ is chain[raised]:
        raised += 1
    inwards = [*reversed(chain[raised:]), *chain[:raised]]
    lines = [line for error in reversed(inwards) for line in reversed(lines_of(error, path))]
    return list(dict.fromkeys(lines))[:100]


def _column(error, path: str) -> int | None:
    """The column, from 1, of the error in the innermost line of the file."""
    if _is_compile_error(error):
        place = _compile_error_place(error, path)
        return place and place[1]
    column = next((frame.colno for frame in reversed(_frames(error, path))), None)
    return None if column is None else column + 1


def _compile_error_place(error, path: str) -> tuple[int, int] | None:
    """The line and the column of a CompilationError, which Triton counts from its function's
    `def`."""
    if getattr(error.node, "lineno", None) is None:
        return None
    function = [row.strip() for row in (error.src or "").strip().split("\n")]
    rows = _source(path)
    bare = [row.strip() for row in rows]
    for start in range(len(rows) - len(function) + 1):
        if bare[start:start + len(function)] == function:
            indent = len(rows[start]) - len(rows[start].lstrip())
            return start + error.node.lineno, indent + error.node.col_offset + 1
    return None


def _source(path: str) -> list[str]:
    return [row.rstrip("\n") for row in linecache.getlines(path)]


def _source_line(path: str, line: int | None) -> str:
    rows = _source(path)
    return rows[line - 1] if line is not None and 0 < line <= len(rows) else ""


def _traceback(chain: list[BaseException], wrappers: int, path: str, sentence: str) -> str:
    """The student's own frames, one line each, from the call to the error, without those of Triton
    and PyTorch.  The first errors of the chain, which only wrap another, add nothing but their
    frames; neither does one that the sentence says in full."""
    cause = chain[wrappers]
    rows = [row for error in chain[:wrappers + 1] for row in _told(error, path)]
    said = _text(cause).strip()
    if said not in sentence and not isinstance(cause, OutOfBounds):
        rows.append(f"{type(cause).__name__}: {said}")
    for error in chain[wrappers + 1:]:
        rows = [*_told(error, path), f"{type(error).__name__}: {_text(error)}", *rows]
    return "\n".join(rows)[:MAX_TEXT]


def _told(error, path: str) -> list[str]:
    rows = []
    for frame in _frames(error, path):
        text = frame.line if len(frame.line) <= 60 else frame.line[:57] + "..."
        rows.append(f"{Path(path).name}:{frame.lineno} in {frame.name}: {text}")
    return rows if len(rows) <= 10 else [*rows[:5], "...", *rows[-5:]]  # endless recursion


def _old_interpreter() -> bool:
    import triton

    def version(module) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", module.__version__)[:2])

    return version(triton) < (3, 7) and version(numpy) >= (2, 4)
