"""Context parallelism on one to four processes, over gloo, against float64."""

import ast
import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import reference
import sink_attn
from sink_attn import context_parallel, policy
from tests.kernels.ranks import Ranks

NAMES = ("o", "q", "k", "v", "sink_logits")
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


# ------------------------------------------------------------- what ranks run
def inputs(N, heads=(4, 2), D=16, B=1, dtype=torch.float32):
    """q, k, v, do of the whole sequence, and sink logits."""
    torch.manual_seed(N)
    q, do = torch.randn(2, B, heads[0], N, D).to(dtype)
    k, v = torch.randn(2, B, heads[1], N, D).to(dtype)
    return q, k, v, do, torch.randn(heads[0])


def dense(x):
    return x


def on_a_gpu(x):
    return x.cuda()


def strided(x):
    """x (B, H, N, D), laid out as (B, N, H, 2D) with every second column."""
    if x.dim() == 1:  # sink logits, cu_seqlens
        return x
    B, H, N, D = x.shape
    return x.new_full((B, N, H, 2 * D), torch.nan)[..., ::2].transpose(1, 2).copy_(x)


def borders(lengths):
    """cu_seqlens, or None without lengths."""
    if lengths is None:
        return None
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def whole(group, N, form, with_sinks, place, lengths=None, long=policy.LONG, **options):
    """Returns o and the gradients, gathered from all ranks; long: in place of policy.LONG."""
    policy.LONG = long
    q, k, v, do, sinks = inputs(N, **form)
    cu = dict(cu_seqlens=None if lengths is None else place(borders(lengths)))
    leaves = [place(context_parallel.shard(x, group, **cu)).requires_grad_() for x in (q, k, v)]
    sinks = place(sinks).requires_grad_() if with_sinks else None
    leaves += [sinks] if with_sinks else []
    o = context_parallel.attention(*leaves[:3], group, sink_logits=sinks, **cu, **options)
    do = place(context_parallel.shard(do, group, **cu))
    grads = torch.autograd.grad(o, leaves, do)
    out = [context_parallel.unshard(x, N, group, **cu) for x in (o, *grads[:3])]
    for x in grads[3:]:
        dist.all_reduce(x, group=group)
        out.append(x)
    return [x.cpu() for x in out]


def round_trip_of_packed_rows(group, lengths):
    """Returns the positions, of which negative ones are padding's, and whether rows come back."""
    N, cu = sum(lengths), dict(cu_seqlens=borders(lengths))
    where = torch.cat([torch.arange(n) for n in lengths])
    rows = context_parallel.shard(where, group, dim=0, value=-1, **cu)
    held = context_parallel.positions(N, group, **cu)
    assert torch.equal(rows[rows >= 0], held[rows >= 0])
    return rows, torch.equal(context_parallel.unshard(rows, N, group, dim=0, **cu), where)


def round_trip(group, N):
    x = torch.arange(2 * N * 3.0).view(2, N, 3)
    rows = context_parallel.shard(x, group, dim=1, value=-100)
    where = context_parallel.positions(N, group)
    assert rows.shape == (2, len(where), 3) and (rows[:, where >= N] == -100).all()
    assert torch.equal(rows[:, where < N], x[:, where[where < N]])
    return where, torch.equal(context_parallel.unshard(rows, N, group, dim=1), x)


def different(group, **of_rank_1):
    """Call with other options on rank 1; D and dtype are of q, k and v."""
    options = of_rank_1 if group.rank() == 1 else {}
    form = {name: options.pop(name) for name in ("D", "dtype") if name in options}
    grad, rows = options.pop("grad", False), options.pop("rows", 8)
    q, k, v, _, _ = inputs(rows, **form)
    context_parallel.attention(q.requires_grad_(grad), k, v, group, **options)


def agreements(group):
    """How many exchanges three calls of two kinds need."""
    calls, gather = [], dist.all_gather_object
    dist.all_gather_object = lambda *args, **options: (calls.append(1), gather(*args, **options))
    q, k, v, _, _ = inputs(10, D=32)
    for window in (3, 4, 3):
        context_parallel.attention(q, k, v, group, window_size=window)
    dist.all_gather_object = gather
    return len(calls)


def traffic(group, C, **options):
    """How many numbers a rank sends for pieces of C rows, forward and backward."""
    numbers, swap = [], context_parallel._swap

    def counted(x, sent, received, group):
        numbers.append((len(x) - sent[group.rank()]) * x[0].numel())
        return swap(x, sent, received, group)

    context_parallel._swap = counted
    q, k, v, _, _ = inputs(2 * C)
    context_parallel.attention(q.requires_grad_(), k, v, group, **options).sum().backward()
    context_parallel._swap = swap
    return sum(numbers)


def model_and_ids(N, form):
    """A tiny model with a window in every second layer, or in none, and its rows of tokens."""
    transformers = pytest.importorskip("transformers")
    sink_attn.register()
    torch.manual_seed(0)
    config = dict(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=2, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
        attn_implementation="sink_attn",
    )
    if form == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    else:
        model = transformers.GptOssForCausalLM(transformers.GptOssConfig(
            **config, sliding_window=7, num_local_experts=2, num_experts_per_tok=2
        ))
    ids = torch.randint(64, (1 if form == "packed" else 2, N))
    if form == "checkpointing":
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()
    return model.train(), ids


def documented_step():
    """Returns the function of that name in docs/gpt_oss.md; it splits rows over all processes."""
    text = (Path(__file__).parents[2] / "docs" / "gpt_oss.md").read_text(encoding="utf-8")
    script = ast.parse(re.search("```python\n(# split.py.*?)```", text, re.DOTALL)[1])
    kept = ast.Import, ast.ImportFrom, ast.FunctionDef
    script.body = [x for x in script.body if isinstance(x, kept)]
    names = {}
    exec(compile(script, "split.py", "exec"), names)
    return names["step"]


def train(group, N, form, cu_seqlens):
    """Returns the loss and all gradients, added up over the ranks."""
    model, ids = model_and_ids(N, form)
    loss = documented_step()(model, ids, cu_seqlens)
    return {"loss": loss.detach()} | {name: x.grad for name, x in model.named_parameters()}


def misled(group, **options):
    """Call a model with what does not describe rows that are split."""
    model, ids = model_and_ids(8, "gpt-oss")
    options = {"position_ids": context_parallel.positions(16, group)[None]} | options
    with context_parallel.enable(group):
        model(ids, use_cache=False, **options)


# ------------------------------------------------------------------- against float64
def check(ranks, size, N, with_sinks=True, place=dense, softmax_scale=None, **options):
    form = {name: options.pop(name) for name in ("heads", "D", "B", "dtype") if name in options}
    q, k, v, do, sinks = inputs(N, **form)
    on = place if place is on_a_gpu else dense
    lengths = options.get("lengths", [N])
    wants = [
        reference.attention(
            *map(on, part[:3]), dout=on(part[3]), is_causal=True, scale=softmax_scale,
            sink_logits=on(sinks) if with_sinks else None,
            **{name: x for name, x in options.items() if name not in ("lengths", "long")},
        ) for part in zip(*(x.split(lengths, 2) for x in (q, k, v, do)), strict=True)
        if part[0].shape[2]
    ]
    want = {name: torch.cat([w[name] for w in wants], 2) for name in NAMES[:4]}
    if with_sinks:
        want["sink_logits"] = sum(w["sink_logits"] for w in wants)
    options["softmax_scale"] = softmax_scale
    for answer in ranks.run(size, whole, N, form, with_sinks, place, **options):
        if isinstance(answer, Exception):
            raise answer
        assert [x.dtype for x in answer[:4]] == [q.dtype] * 4
        for name, got in zip(NAMES, answer, strict=False):
            error = (got.double() - want[name].cpu()).norm() / want[name].norm().cpu()
            assert error <= LIMITS[q.dtype], f"{name}: {error}"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("N", [48, 61])
def test_a_ring_of_ranks_computes_full_causal_attention(ranks, size, N):
    check(ranks, size, N)


@pytest.mark.parametrize("size, window", [
    (1, 9), (2, 1), (2, 9), (2, 16), (2, 17), (3, 30), (4, 2), (4, 8), (4, 9), (4, 20), (4, 60),
    (2, 500),
])
def test_a_window_takes_halos_from_one_piece_or_several(ranks, size, window):
    check(ranks, size, 61, window_size=window)  # pieces of 31, 16, 11 and 8


@pytest.mark.parametrize("size, window, sinks", [
    (1, 9, 4), (2, 5, 1), (3, 12, 4), (4, 5, 3), (4, 20, 3), (4, 5, 20), (2, 20, 100),
])
def test_sink_tokens_are_seen_by_every_piece(ranks, size, window, sinks):
    check(ranks, size, 61, window_size=window, sink_size=sinks)


@pytest.mark.parametrize("options", [{}, dict(window_size=6), dict(window_size=6, sink_size=2)])
@pytest.mark.parametrize("form", [
    dict(heads=(8, 1), B=2), dict(heads=(3, 3), D=40), dict(dtype=torch.float16, softmax_scale=.5),
    dict(with_sinks=False), dict(place=strided),
], ids=["grouped", "D=40", "float16", "no sinks", "strided"])
def test_each_path_takes_every_form_of_input(ranks, form, options):
    check(ranks, 2, 37, **form, **options)


def test_gradients_are_rounded_once_however_many_ranks_add_to_them(ranks):
    N, form = 256, dict(dtype=torch.float16, D=32)
    q, k, v, do, _ = inputs(N, **form)
    want = reference.attention(q, k, v, dout=do, is_causal=True)
    errors = []
    for size in (1, 4):
        answer = ranks.run(size, whole, N, form, False, dense)[0]
        errors.append([(got.double() - want[name]).norm().item()
                       for name, got in zip(NAMES[1:4], answer[1:], strict=True)])
    assert all(four < 1.08 * one for one, four in zip(*errors, strict=True)), errors


LENGTHS = [21, 1, 0, 40, 8, 3]  # ragged, shorter than the number of pieces, and empty


@pytest.mark.parametrize("size, options", [
    (1, {}), (2, {}), (3, {}), (4, {}), (2, dict(window_size=1)), (1, dict(window_size=4)),
    (3, dict(window_size=4)), (4, dict(window_size=4)), (2, dict(window_size=17)),
    (4, dict(window_size=39)), (1, dict(window_size=6, sink_size=2)),
    (3, dict(window_size=6, sink_size=2)), (4, dict(window_size=9, sink_size=12)),
], ids=str)
def test_packed_sequences_attend_only_to_themselves(ranks, size, options):
    check(ranks, size, sum(LENGTHS), lengths=LENGTHS, **options)


@pytest.mark.parametrize("options", [{}, dict(window_size=6), dict(window_size=6, sink_size=2)])
@pytest.mark.parametrize("form", [
    dict(heads=(8, 1)), dict(heads=(3, 3), D=13), dict(with_sinks=False), dict(place=strided),
], ids=["grouped", "D=13", "no sinks", "strided"])
def test_packed_sequences_take_every_form_of_input(ranks, form, options):
    check(ranks, 2, 36, lengths=[25, 11], **form, **options)


@pytest.mark.parametrize("options", [{}, dict(window_size=4), dict(window_size=6, sink_size=2)])
def test_long_packed_sequences_are_computed_one_by_one(ranks, options):
    check(ranks, 3, sum(LENGTHS), lengths=LENGTHS, long=0, **options)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_packed_rows_come_back_in_order(ranks, size):
    answers = ranks.run(size, round_trip_of_packed_rows, LENGTHS)
    assert all(equal for _, equal in answers)
    held = torch.cat([rows[rows >= 0] for rows, _ in answers]).sort().values
    want = torch.cat([torch.arange(n) for n in LENGTHS]).sort().values
    assert torch.equal(held, want)
    sizes = {len(rows) for rows, _ in answers}
    assert sizes == {2 * sum(-(-n // (2 * size)) for n in LENGTHS)}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("N", [1, 16, 21])
def test_rows_come_back_in_order(ranks, size, N):
    answers = ranks.run(size, round_trip, N)
    assert all(equal for _, equal in answers)
    held = sorted(torch.cat([where for where, _ in answers]).tolist())
    assert held == list(range(-(-N // (2 * size)) * 2 * size))


# -------------------------------------------------------------------- agreement
@pytest.mark.parametrize("other, message", [
    (dict(window_size=4), "want window_size = None, as on rank 0; got 4 on rank 1"),
    (dict(sink_size=1), "want sink_size = 0, as on rank 0; got 1 on rank 1"),
    (dict(dtype=torch.float16), r"want q = \(1, 4, 8, 16, torch.float32\), .* torch.float16"),
    (dict(rows=10), r"want q = \(1, 4, 8, 16, .*; got \(1, 4, 10, 16, .* on rank 1"),
    (dict(grad=True), "want gradients = False, as on rank 0; got True"),
    (dict(D=160), "want D <= 128; got 160"),
    (dict(rows=9), "want an even number of rows, two pieces; got 9"),
], ids=str)
def test_ranks_that_differ_are_refused_on_every_rank(ranks, other, message):
    for answer in ranks.run(3, different, **other):
        assert isinstance(answer, ValueError)
        with pytest.raises(ValueError, match=message):
            raise answer


def test_ranks_agree_once_for_each_kind_of_call(ranks):
    assert ranks.run(2, agreements) == [2, 2]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("window", [5, 20])
def test_what_a_window_sends_does_not_grow_with_the_ranks(ranks, size, window):
    rows = 2 * (window - 1)  # the halos of two pieces; with keys and values, 2 heads and D = 16
    assert 0 < max(ranks.run(size, traffic, 12, window_size=window)) <= 2 * rows * 2 * 2 * 16


# ------------------------------------------------------------------------- Transformers
@pytest.mark.parametrize("form", ["gpt-oss", "checkpointing", "llama", "packed"])
def test_a_model_on_four_ranks_has_the_gradients_of_one(ranks, form):
    N = 37
    model, ids = model_and_ids(N, form)
    packed = {}
    if form == "packed":  # two sequences in the one row
        packed = dict(position_ids=torch.tensor([[*range(20), *range(17)]]))
    labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    labels[:, 19] = -100 if packed else labels[:, 19]
    loss = model(ids, labels=labels, shift_labels=labels, use_cache=False, **packed).loss
    loss.backward()
    want = {"loss": loss.detach()} | {name: x.grad for name, x in model.named_parameters()}
    for got in ranks.run(4, train, N, form, borders([20, 17] if packed else None)):
        if isinstance(got, Exception):
            raise got
        assert got.keys() == want.keys()
        errors = {name: (got[name] - x).norm() / x.norm() for name, x in want.items()}
        assert max(errors.values()) < 1e-4, max(errors, key=errors.get)


@pytest.mark.parametrize("options, message", [
    (dict(position_ids=None), r"want position_ids .*, \[0, 1, 2, 3, 12, 13, ...\]; got \[0, 1, 2"),
    (dict(attention_mask=torch.tensor([[1] * 8, [0] + [1] * 7])), "got an attention_mask with pad"),
    (dict(cu_seq_lens_q=torch.tensor([0, 8, 16])), "want whole rows, or cu_seqlens.*got cu_seq"),
], ids=["positions", "padding", "packing"])
def test_a_model_refuses_what_is_no_part_of_a_split_row(ranks, options, message):
    with pytest.raises(ValueError, match=message):
        raise ranks.run(2, misled, **options)[0]


# ------------------------------------------------------------------------- two GPUs
@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    ranks = Ranks(tmp_path_factory.mktemp("gpus"), "nccl", 2)
    yield ranks
    ranks.close()


@pytest.mark.gpu
@pytest.mark.parametrize("options", [
    {}, dict(window_size=128), dict(window_size=700), dict(window_size=2500),
    dict(window_size=128, sink_size=4),
], ids=str)
@pytest.mark.parametrize("form", [dict(heads=(16, 2), D=64), dict(heads=(4, 4), D=128)], ids=str)
def test_two_gpus_compute_what_float64_says(two_gpus, form, options):
    check(two_gpus, 2, 3001, place=on_a_gpu, dtype=torch.bfloat16, **form, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [
    {}, dict(window_size=128), dict(window_size=128, sink_size=4)
], ids=str)
def test_two_gpus_keep_packed_sequences_apart(two_gpus, options):
    form = dict(place=on_a_gpu, dtype=torch.bfloat16, heads=(16, 2), D=64)
    check(two_gpus, 2, 3001, lengths=[1801, 1, 0, 900, 299], **form, **options)
