"""Ways to answer `double(x) -> 2 * x`: one right one, and many that a grader must tell apart."""

import copy
import sys
import time

import torch
import torch.nn.functional as F

CACHE = {}
BUFFER = {}


def right(x):
    return x * 2


def with_lse(x):
    return x * 2, x.sum(-1)


def as_list(x):
    return [x * 2]


def wrong_shape(x):
    return (x * 2).transpose(0, 1)


def on_meta(x):
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def unwritten(x):
    return torch.empty_like(x)


def unwritten_everywhere(x):
    made = [torch.empty(x.shape), torch.empty_strided(x.shape, x.stride()), x.new_empty(x.shape),
            torch.empty_like(x), torch.Tensor(*x.shape), torch.empty(x.shape, device="cuda")]
    return torch.stack([tensor.isnan().all() for tensor in made]).float()


def alias(x):
    return x


def cached_by_pointer(x):
    if x.data_ptr() not in CACHE:
        CACHE[x.data_ptr()] = x * 2
    return CACHE[x.data_ptr()]


def one_buffer(x):
    buffer = BUFFER.setdefault("y", torch.zeros_like(x))
    buffer.copy_(x * 2)
    BUFFER["calls"] = BUFFER.get("calls", 0) + 1
    return buffer.add_(BUFFER["calls"])


def overwrites_input(x):
    x.mul_(2)
    return x.clone()


def matrix_product(x):
    return x @ (2 * torch.eye(x.shape[1]))


def library_attention(x):
    q = x[None, None]
    F.scaled_dot_product_attention(q, q, q)
    return x * 2


def prints(x):
    print("\x1b[2J✅ all tests passed\r", "‮", "end")
    return x * 2


def prints_a_megabyte(x):
    print("first words")
    print("m" * 2**20)
    print("last words", file=sys.stderr)
    return x * 2


def raises(x):
    raise ValueError("want more; got less")


def raises_from_library(x):
    return x.reshape(7, 11, 13)


def raises_deep(x):
    def helper():
        return {}["key"]

    try:
        helper()
    except KeyError as error:
        raise RuntimeError("outer") from error


def endless_recursion(x):
    return endless_recursion(x)


def exits(x):
    sys.exit(0)


def interrupts(x):
    raise KeyboardInterrupt


class EvilError(Exception):
    def __str__(self):
        raise SystemExit("from __str__")

    def __eq__(self, other):
        raise RuntimeError("from __eq__")

    __hash__ = None


def evil_exception(x):
    raise EvilError


def huge_message(x):
    raise ValueError("\x1b[31m" + "h" * 2**22)


def blank_step(x):
    raise NotImplementedError("step 4.2")


def two_arguments(x, y):
    return x + y


def slow(x):
    time.sleep(0.2)
    return x * 2


def expects_gpu(x):
    assert x.is_cuda and x.device.type == "cuda", "want a tensor on the GPU"
    with torch.cuda.device(x.device):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        y += torch.zeros(x.shape[0], 1, device="cuda") * y.new_ones(1, device="cuda:0")
    y = x.cuda().to("cuda").clone() * torch.full((1,), 2.0, device=0)
    torch.cuda.synchronize()
    torch.manual_seed(0)
    assert torch.rand(2, device="cuda").sum() > 0 and str(x) and (x.cpu().numpy() == y / 2).all()
    return copy.deepcopy(y.to(x.device))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        # dy.device is what the code believes it is; the tensor must come out on the right one
        return torch.full(dy.shape, ctx.factor, device=dy.device) * dy, None


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return None


class ProductInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy @ (2 * torch.eye(dy.shape[1]))


def cut_off(x):
    return x.detach() * 2


not_callable = 3


def prints_and_raises(x):
    print("I was here")
    return 1 / 0


# ------------------------------------------------------- what is kept from call to call
STRIDES, WORKSPACE = {}, {}


def strides_of_the_first_call(x):
    return 2 * x.as_strided(x.shape, STRIDES.setdefault(x.shape, x.stride()))


class Workspace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept = WORKSPACE.setdefault(x.shape, torch.empty_like(x))
        ctx.kept = kept.copy_(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * ctx.kept * dy


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy.mul_(2)


class OneGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return WORKSPACE.setdefault("dx", torch.empty_like(dy)).copy_(2 * dy)


def gradient_in_one_buffer(x):
    return OneGradient.apply(x)


class OptionOnTheClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        OptionOnTheClass.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        return dy * OptionOnTheClass.factor, None


def option_on_the_class(x, factor=2):
    return OptionOnTheClass.apply(x, factor)


def in_a_workspace(x):
    return Workspace.apply(x)


def in_place(x):
    return InPlace.apply(x)
