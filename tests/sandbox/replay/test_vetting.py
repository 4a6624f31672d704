"""The text of a kernel: Triton's language may be carried out again, more of Python may not."""

import numpy
import numpy as np
import pytest

from grader.sandbox.replay import vetting
from grader.sandbox.worker import recorder

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
libdevice = pytest.importorskip("triton.language.extra.libdevice")
FACTOR = tl.constexpr(3)


class Sizes:
    BLOCK = 64


def _plain_kernel(x, BLOCK: tl.constexpr = Sizes.BLOCK):
    offs = tl.arange(0, BLOCK).to(tl.int64)
    y = tl.math.exp2(tl.load(x + offs, mask=offs < 9, other=float("-inf")))
    for i in tl.static_range(2):
        y += i
    if y.dtype == tl.float32 and BLOCK >= min(3, len(y.shape)):
        y = libdevice.exp(y) * FACTOR.value
    tl.store(x + offs, y.to(x.dtype.element_ty), mask=offs < 9)


def _by_numpy(x):
    tl.store(x, np.dot(x, x))


def _by_handle(x):
    tl.store(x, tl.load(x).handle.data)


def _by_module(x):
    tl.store(x, tl.core.np.sum(x))


def _by_format(x):
    tl.store(x, f"{tl.load(x).handle.data}")


def _by_import(x):

    tl.store(x, numpy.sum(x))


def _by_open(x):
    open("/tmp/x").read()


def _by_a_name_for_the_language(x):
    language = tl
    language.core.inspect.sys.exit()


def _by_getattr(x):
    tl.store(x, getattr(x, "han" + "dle"))


def _by_getattr_of_python(x):
    tl.store(x, getattr(tl.load(x), "handle"))  # noqa: B009


def _by_another_getattr(x):
    look = getattr
    tl.store(x, look(x, "handle"))


def _by_a_pattern(x):
    match tl.load(x):
        case tl.tensor(handle=numbers):
            tl.store(x, numbers)


def _by_an_annotation(x: tl.core.inspect):
    tl.store(x, 1)


def _by_a_shadowed_getattr(x):
    free = [0 for getattr in ()]
    look = getattr
    tl.store(x, look(free, "__class__"))


def _by_a_lambda_in_the_annotation(
        x) -> [lambda getattr: 0, [getattr][0]((), "__class__")][1]:
    tl.store(x, 1)


def _by_a_shadowed_module(x):
    free = [0 for tl in ()]
    tl.store(x, [tl, free][0])


def _by_a_raise(x):
    raise (lambda look: look((), "__class__"))(getattr)


def _scope(function) -> dict:
    return {name: function.__globals__[name] for name in function.__code__.co_names
            if name in function.__globals__} | {"tl": tl}


def _vetted(function):
    text, *_ = recorder._definition(function)
    scope = _scope(function) | {"Sizes": type("constants", (), {"BLOCK": 64})}
    vetting.vet(text, scope, function.__name__)


def _by_another_name(x):
    tl.nothing_such(x)


def test_what_is_refused_is_named_whole():
    with pytest.raises(vetting.Unrepeatable, match=r"uses tl\.nothing_such, which"):
        _vetted(_by_another_name)


def _of_a_pytorch_user(x):
    return x.masked_fill(x > 0, 0.0)


@pytest.mark.parametrize("function, says", [
    (_by_another_name, r"uses tl\.nothing_such, which Triton does not have"),
    (_of_a_pytorch_user, r"reads \.masked_fill, which a tile does not have")])
def test_what_compiles_nowhere_is_told_from_what_a_kernel_may_not(function, says):
    with pytest.raises(vetting.NotTriton, match=says):
        _vetted(function)


def test_a_line_is_told_by_its_number_in_the_file():
    with pytest.raises(vetting.NotTriton, match="^line 42, in kernel, "):
        vetting.vet("def kernel(x):\n    return x.masked_fill(x, 1)", {}, "kernel", 41)


def test_a_named_tuple_may_name_what_it_holds_but_not_as_the_way_out_is_called():
    vetting.vet("def kernel(x):\n    return x.n", {}, "kernel", fields=frozenset({"n"}))
    with pytest.raises(vetting.Unrepeatable, match=r"reads \.handle"):
        vetting.vet("def kernel(x):\n    return x.handle", {}, "kernel",
                    fields=frozenset({"handle"}))


def test_fields_of_a_forged_trace_do_not_lead_out_of_a_function():
    with pytest.raises(vetting.NotTriton, match="__globals__"):
        vetting.vet("def kernel(x):\n    return x.__globals__", {}, "kernel",
                    fields=frozenset({"__globals__"}))


def test_a_variable_may_be_called_as_a_harmless_function_of_python():
    vetting.vet("def kernel(input):\n    id = 3\n    return id + input", {}, "kernel")


def test_a_long_chain_of_calls_is_no_trouble():
    vetting.vet("def kernel(x):\n    return x" + ".abs()" * 300, {}, "kernel")


def test_a_kernel_of_tritons_language_may_run():
    _vetted(_plain_kernel)


@pytest.mark.parametrize("function", [_by_numpy, _by_handle, _by_module, _by_format, _by_import,
                                      _by_open, _by_a_name_for_the_language, _by_getattr,
                                      _by_getattr_of_python, _by_another_getattr,
                                      _by_a_pattern, _by_an_annotation,
                                      _by_a_shadowed_getattr, _by_a_lambda_in_the_annotation,
                                      _by_a_shadowed_module, _by_a_raise])
def test_a_kernel_that_is_more_than_tritons_language_may_not(function):
    with pytest.raises(vetting.Unrepeatable):
        _vetted(function)
