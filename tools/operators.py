"""Finds out what each PyTorch operation does with numbers: grader/course/operators.tsv.

In a submission PyTorch may move numbers, but not compute the products.  Names do not tell which
operations only move.  So every schema that can reach a recorder (below autograd, so autograd's own
formulas, too) is called here, with small arguments made from the schema.

    looks      a view, or a fact for Python, according to its schema
    fresh      memory that nothing was written to yet
    pointwise  according to PyTorch's tag
    constant   in every call the result was the same, whatever the arguments held
    moves      in every call each number of the result was a constant, or one of the arguments'
               numbers, and always the same one
    adds       as moves, or a sum of such numbers
    random     according to PyTorch's tag
    computes   anything else
    not run    none of the arguments made here suit it

Floating-point tensors get new numbers in every call; integers and masks stay, because they may
choose what is moved.
"""

import functools
import itertools
import math
import os
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Container
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.utils._pytree as pytree

from grader.sandbox.wire import UNINITIALISED

TRIES, RUNS = 3000, 60  # calls to try per schema, calls to compare
FEW, ENOUGH = 50, 5  # with more than FEW arguments, so many calls must have moved numbers
SIDE = 4  # the length of every axis, which suits most schemas
# Arguments left out: another dtype or device is another question, and a factor is not a move.
AS_THEY_ARE = ("dtype", "layout", "device", "pin_memory", "memory_format", "alpha",
               "scale_grad_by_freq", "non_blocking")
WORST_FIRST = ("computes", "random", "adds", "pointwise", "moves", "constant", "fresh", "looks",
               "not run")
BELOW = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@functools.cache
def schemas() -> dict[str, torch._C.FunctionSchema]:
    """PyTorch's own schemas with a kernel below autograd for dense tensors, by name."""
    names = {name for key in BELOW
             for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)}
    names = sorted(name for name in names if name.startswith("aten::"))
    return {name: torch._C._get_schema(*(name.split(".") if "." in name else (name, "")))
            for name in names}


def _name(schema) -> str:
    return schema.name + f".{schema.overload_name}" * bool(schema.overload_name)


def kind(schema) -> str:
    packet = schema.name.removeprefix("aten::")
    operation = getattr(getattr(torch.ops.aten, packet), schema.overload_name or "default")
    if only_looks(schema):
        return "looks"
    if packet in UNINITIALISED:
        return "fresh"
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return "random"
    found = _probed(operation, schema)
    if found != "moves" and torch.Tag.pointwise in operation.tags:
        return "pointwise"
    return found


def only_looks(schema) -> bool:
    """Whether it neither computes nor writes, as in the recorder."""
    tensors = [found for found in schema.returns if "Tensor" in str(found.type)]
    return not schema.is_mutable and all(found.alias_info is not None for found in tensors)


# ----------------------------------------------------------------- arguments
def _tensors(name: str) -> list:
    """Candidates for one tensor; they are functions, because a call may write to a tensor."""
    shapes = [*((SIDE,) * axes for axes in (1, 2, 3, 4)), (SIDE, SIDE, 2 * SIDE),
              (SIDE, SIDE, SIDE, 2 * SIDE)]
    if name in ("value", "fill_value"):
        shapes.insert(0, ())

    def of(shape, make):
        return lambda: make(shape)

    def whole(shape):
        return torch.arange(SIDE).repeat(math.prod(shape) // SIDE).view(shape) // 2

    floats = [of(shape, lambda s: torch.rand(s, dtype=torch.float64)) for shape in shapes]
    indices = [of(shape, whole) for shape in shapes]
    masks = [of(shape, lambda s: whole(s) % 2 == 0) for shape in shapes]
    if "ind" in name or name in ("offsets", "lengths", "repeats"):
        return indices
    return masks if name in ("mask", "condition", "cond") else floats


def _candidates(argument) -> list:
    """Functions that make values for an argument of a schema."""
    name, text = argument.name, str(argument.type)
    if argument.is_out:
        return [lambda: torch.empty(0, dtype=torch.float64)]
    if name in AS_THEY_ARE:
        default = argument.default_value if argument.has_default_value() else False
        return [lambda: default]
    if text.startswith("Optional["):
        inner = _of_type(name, text.removeprefix("Optional[")[:-1])
        return [lambda: None, *inner]
    found = _of_type(name, text)
    if argument.N:  # a list of that length
        found = [make for make in found if len(make()) == argument.N] or found
    if argument.has_default_value():
        found = [lambda: argument.default_value, *found]
    return found


def _of_type(name: str, text: str) -> list:
    def give(*values):
        return [lambda value=value: value for value in values]

    if text == "Tensor":
        return _tensors(name)
    if text in ("List[Tensor]", "List[Optional[Tensor]]"):
        one = _tensors(name)
        lists = [lambda make=make: [make(), make()] for make in one]
        if "Optional" in text:
            lists += [lambda make=make: [None, make()] for make in one]
        return [*lists, *[lambda make=make: [make()] for make in one]]
    if text in ("int", "SymInt"):
        return give(0, 1, 2, SIDE)
    if text in ("List[int]", "List[SymInt]"):
        return give([SIDE] * 3, [SIDE] * 2, [SIDE] * 4, [SIDE], [2, 2], [1, 1], [1], [0], [2],
                    [0, 1], [1, 0], [0, 2, 1], [1, 1, 1, 1], [2 * SIDE] * 2, [2, 2, 2], [1, 1, 1],
                    [SIDE * SIDE], [2 * SIDE], [0, 0], [1] * 6, [0, 1, 2], [2] * 4, [],
                    # Sizes of an output and its input: where they are equal, a sum is a move.
                    [SIDE, SIDE, 2, 2], [SIDE, SIDE, 2], [SIDE, SIDE, SIDE, 2])
    if text in ("float", "number", "Scalar"):
        return give(0.0, 0.5, 2.0)
    if text in ("List[float]", "List[number]"):
        return give([0.5, 2.0], [2.0])
    return {"bool": give(False, True), "str": give("sum", "add", "multiply", "mean", "reflect"),
            "List[bool]": give([True, True], [True, True, True])}.get(text, give(None))


# ------------------------------------------------------------------- calling
def _floats(values) -> list[torch.Tensor]:
    """The floating-point tensors among arguments, lists included; not those to write into."""
    flat = itertools.chain.from_iterable(v if isinstance(v, list) else [v] for v in values)
    return [v for v in flat if isinstance(v, torch.Tensor) and v.is_floating_point() and v.numel()]


def _result(operation, schema, values) -> torch.Tensor:
    """All numbers that a call returned or wrote."""
    positional, named = [], {}
    for argument, value in zip(schema.arguments, values, strict=True):
        value = pytree.tree_map_only(torch.Tensor, torch.clone, value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    returned = operation(*positional, **named)
    written = [value for argument, value in zip(
        schema.arguments, [*positional, *named.values()], strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write]
    flat = pytree.tree_leaves([returned, written])
    flat = [x.flatten().to(torch.float64) for x in flat if isinstance(x, torch.Tensor)]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)


def _class_of_call(operation, schema, values) -> str:
    """ "constant", "moves", "adds" or "computes"; "" if the call gives no numbers.

    Raises: what the operation raises.
    """
    tensors = _floats(values)

    def at(numbers: torch.Tensor) -> torch.Tensor:
        for tensor, part in zip(tensors, numbers.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))
        return _result(operation, schema, values)

    size = sum(tensor.numel() for tensor in tensors)
    constant = at(torch.zeros(size, dtype=torch.float64))
    if not constant.numel():
        return ""
    one, two = (torch.randn(size, dtype=torch.float64) for _ in range(2))
    first, second, both = at(one), at(two), at(3 * one - 2 * two)
    if first.shape != constant.shape or second.shape != constant.shape:
        return "computes"
    numbers, order = one.sort()
    source = order[torch.searchsorted(numbers, first).clamp(max=size - 1)] if size else None
    moved = one[source] == first if size else torch.zeros_like(first, dtype=torch.bool)
    if torch.equal(first, torch.where(moved, first, constant)) \
            and torch.equal(second, torch.where(moved, two[source] if size else second, constant)):
        return "moves" if moved.any() else "constant"
    if not torch.allclose(both, 3 * first - 2 * second, rtol=1e-9, atol=1e-9) or constant.any():
        return "computes"
    jacobian = torch.stack([at(row) for row in torch.eye(size, dtype=torch.float64)], 1)
    return "adds" if torch.equal(jacobian, jacobian.round().clamp(min=0)) else "computes"


def _probed(operation, schema) -> str:
    candidates = [_candidates(argument) for argument in schema.arguments]
    choose = random.Random(_name(schema))
    found: dict[tuple, str] = {}
    for _ in range(TRIES):
        made = [choose.choice(makes) for makes in candidates]
        if tuple(made) in found:
            continue
        try:
            found[tuple(made)] = one = _class_of_call(operation, schema, [make() for make in made])
        except Exception:  # these arguments do not suit it
            continue
        if len(found) == RUNS or one == "computes":
            break
    kinds = set(found.values())
    if math.prod(map(len, candidates)) > FEW and len(found) < ENOUGH:
        kinds -= {"moves", "constant"}
    return next((one for one in ("computes", "adds", "moves", "constant") if one in kinds),
                "not run")


def _kind_apart(folder: str, name: str) -> str:
    """kind(), in a process of its own, because some operations crash when called like that."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.chdir(folder)  # from_file creates a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")
        signal.alarm(20)
        torch.manual_seed(0)
        os.write(write, kind(schemas()[name]).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 100).decode()
    os.close(read)
    os.waitpid(child, 0)
    return said or "not run"


def rows(packets: Container[str] | None = None) -> list[tuple[str, str]]:
    """(operation, kind), sorted; one row per packet, or per overload if they differ."""
    torch.set_num_threads(1)
    names = [name for name in schemas()
             if packets is None or name.removeprefix("aten::").partition(".")[0] in packets]
    with ProcessPoolExecutor() as pool, tempfile.TemporaryDirectory() as folder:
        apart = functools.partial(_kind_apart, folder)
        kinds = dict(zip(names, pool.map(apart, names, chunksize=8), strict=True))
    for name in names:  # variants with and without out= are of the same kind
        twin = name.removesuffix("out").rstrip("._")
        if twin in kinds and twin != name:
            kinds[name] = kinds[twin] = min(kinds[name], kinds[twin], key=WORST_FIRST.index)
    found = []
    for packet, group in itertools.groupby(names, lambda name: name.partition(".")[0]):
        own = {name: kinds[name] for name in group}
        several = set(own.values()) - {"not run"} or {"not run"}  # "not run" follows the others
        found += own.items() if len(several) > 1 else [(packet, *several)]
    return [(name.removeprefix("aten::"), kind) for name, kind in sorted(found)]


def main() -> None:
    print(f"# python -m tools.operators, torch {torch.__version__.partition('+')[0]}")
    for row in rows():
        print(*row, sep="\t")


if __name__ == "__main__":
    sys.exit(main())
