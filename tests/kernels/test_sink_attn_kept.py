"""What is kept between calls: the second of a form gets what Triton would have passed."""

from types import SimpleNamespace

import pytest
import torch

from sink_attn import kept, launcher
from tests.kernels.test_sink_attn_hopper import TRITONS, in_a_process

# A process that pretends to have a Hopper GPU, whose launches end at the driver.
TWICE = """
import torch
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

launch = JITFunction.run
from tools import sink_attn_resources

sink_attn_resources.pretend()
JITFunction.run = launch
CompiledKernel._init_handles = lambda kernel: setattr(kernel, "function", 0)
passed = []
CompiledKernel.run = property(lambda kernel: lambda *args: passed.append(args))

from sink_attn import kept, launcher

new_empty, new_zeros, made = torch.Tensor.new_empty, torch.Tensor.new_zeros, []


def call(old, dlse, q, k, sinks, cu_seqlens, *options):
    # Every kernel once, in the memory of the call before; returns what the driver was given.
    passed.clear()
    made.clear()
    old = iter(old)

    def take(new):
        def allocate(x, *args, **named):
            made.append(next(old, None))
            if made[-1] is None:
                made[-1] = new(x, *args, **named)
            return made[-1]
        return allocate

    torch.Tensor.new_empty, torch.Tensor.new_zeros = take(new_empty), take(new_zeros)
    given = q, k, k, sinks, cu_seqlens
    o, lse = launcher.forward(*given, *options, 0.1)
    dlse = lse if dlse else None
    launcher.backward(*given, o, lse, q, dlse, *options, 0.1, (True, True, True, sinks is not None))
    return [(*args[:5], *map(seen, args[9:])) for args in passed]  # between: Triton's own hooks


def seen(x):
    return (x.data_ptr(), x.shape, x.dtype) if isinstance(x, torch.Tensor) else x


def tensors(D, HQ=4, HKV=2, N=300):
    return [torch.empty(1, heads, N, D, dtype=torch.bfloat16) for heads in (HQ, HKV)]


borders = torch.tensor([0, 100, 300], dtype=torch.int32)
FORMS = [
    (*tensors(64), None, None, None, False, None, 0),
    (*tensors(128), torch.empty(4), None, None, True, None, 0),
    (*tensors(16, N=2000), torch.empty(4), None, None, True, 100, 4),  # dkdv twice
    (*tensors(64, 16), torch.empty(16), None, None, True, 128, 0),
    (*tensors(64), torch.empty(4), borders, 200, True, 50, 0),
    (*tensors(64, 1, 1), None, None, None, True, None, 0),
]
for form, dlse in [*((form, False) for form in FORMS), (FORMS[1], True)]:
    first = call([], dlse, *form)
    second = call(list(made), dlse, *form)
    assert len(first) == len(second) > 2
    for x, y in zip((x for args in first for x in args), (y for args in second for y in args),
                    strict=True):
        assert x is y or (type(x) is type(y) and x == y), (x, y)
print(len(kept._kernels), len(kept._plans))
"""


@pytest.mark.parametrize("triton", TRITONS)
def test_a_kept_kernel_gets_the_arguments_that_triton_would_pass(triton):
    said = in_a_process("-c", TWICE, triton=triton)  # by ptxas, too
    assert said.splitlines()[-1] == "21 13"  # three kernels a form, a fourth of one; dlse: two


def test_a_form_tells_apart_what_is_compiled_differently():
    x = torch.zeros(2, 3, 16, 64).half()
    odd = torch.zeros(x.numel() + 1).half()[1:].view(x.shape)
    others = [x[..., :32], x.transpose(1, 2), x.bfloat16(), odd, x[:1], None]
    assert len({kept.form(other) for other in (x, *others)}) == 7
    assert kept.form(x, None) == kept.form(x.clone(), None)


def test_calls_that_differ_in_one_option_share_no_plan(monkeypatch):
    class Asked(Exception):
        """What plan() was asked for."""

    def ask(key, *rest):
        raise Asked(key)

    monkeypatch.setattr(kept, "plan", ask)
    q, k, keys = torch.zeros(1, 4, 64, 64), torch.zeros(1, 2, 64, 64), set()
    for options in ((None, True, 8, 2), (None, True, 8, 20), (None, True, 16, 2),
                    (None, False, None, 0), (64, True, 8, 2)):
        with pytest.raises(Asked) as asked:
            launcher.forward(q, k, k, None, None, *options, 0.1)
        keys.add(asked.value.args[0])
    assert len(keys) == 5


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(kept, "_plans", {})
    monkeypatch.setattr(kept, "MOST", 3)
    assert [kept.plan(i % 3, str, i) for i in range(5)] == ["0", "1", "2", "0", "1"]
    kept.plan(7, str, 7)
    assert len(kept._plans) == 1


def test_a_descriptor_is_kept_for_one_address_and_form_alone(monkeypatch):
    monkeypatch.setattr(kept, "_descriptors", {})
    made = []

    def make(x, block):
        made.append(SimpleNamespace(base=x))
        return made[-1]

    x = torch.zeros(4, 4, 64).half()
    others = [x.transpose(0, 1), x[:2], x.view(torch.int16), x[1:]]
    first = kept.describe(x, (4, 64), make)
    assert kept.describe(x.view(x.shape), (4, 64), make) is first and len(made) == 1
    for number, other in enumerate(others, start=2):
        kept.describe(other, (4, 64), make)
        assert len(made) == number
    kept.describe(x, (2, 64), make)
    assert len(made) == 6


@pytest.mark.gpu
def test_a_second_call_of_a_form_gives_the_first_calls_numbers():
    import sink_attn

    for D, window, sinks in ((64, None, 0), (16, 100, 4), (128, None, 0), (64, 128, 0)):
        q, k, v = (torch.randn(1, heads, 700, D, device="cuda", dtype=torch.bfloat16)
                   .requires_grad_() for heads in (8, 1, 1))
        other = [x.detach().flip(2).requires_grad_() for x in (q, k, v)]

        def run(*leaves, window=window, sinks=sinks):
            o = sink_attn.attention(*leaves, window_size=window, sink_size=sinks, kernel="triton")
            return o, *torch.autograd.grad(o.square().sum(), leaves)

        kept.forget()
        first = run(q, k, v)
        run(*other)
        again = run(q, k, v)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
