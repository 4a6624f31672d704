"""The text of a kernel: Triton's language may be carried out again, more of Python may not."""

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


def _by_handle(x):
    tl.store(x, tl.load(x).handle.data)


def _by_module(x):
    tl.store(x, tl.core.np.sum(x))


def _by_a_class(x):
    tl.store(x, x.__class__.__base__)


def _scope(function) -> dict:
    return {name: function.__globals__[name] for name in function.__code__.co_names
            if name in function.__globals__} | {"tl": tl}


def _vetted(function):
    text, *_ = recorder._definition(function)
    scope = _scope(function) | {"Sizes": type("constants", (), {"BLOCK": 64})}
    vetting.vet(text, scope, function.__name__)


def _by_another_name(x):
    tl.nothing_such(x)


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


def test_a_named_tuple_may_name_what_it_holds():
    vetting.vet("def kernel(x):\n    return x.n", {}, "kernel", fields=frozenset({"n"}))


def test_a_long_chain_of_calls_is_no_trouble():
    vetting.vet("def kernel(x):\n    return x" + ".abs()" * 300, {}, "kernel")


def test_a_kernel_of_tritons_language_may_run():
    _vetted(_plain_kernel)


@pytest.mark.parametrize("function", [_by_handle, _by_module, _by_a_class])
def test_an_attribute_that_leads_out_of_tritons_language_is_refused(function):
    with pytest.raises(vetting.Unrepeatable):
        _vetted(function)


def test_getattr_reads_what_an_attribute_may():
    look = vetting.builtin_names()["getattr"]
    assert look(tl, "float32") is tl.float32
    for value, name in ((tl.float32, "__class__"), (tl.tensor(None, tl.int32), "handle"),
                        (tl.core, "inspect")):
        with pytest.raises(vetting.NotTriton, match=name):
            look(value, name)
