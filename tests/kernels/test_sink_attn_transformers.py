"""GPT-OSS of Transformers with the course's kernel, against its own eager attention.

A tiny model with random weights: a layer with a window and one without, grouped heads, learned
sinks.  Weights are drawn wide enough that attention is far from uniform.
"""

import inspect
import itertools
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e .[gpt-oss]")

from packaging.requirements import Requirement  # noqa: E402
from transformers import (  # noqa: E402
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.masking_utils import (  # noqa: E402
    and_masks,
    causal_mask_function,
    eager_mask,
    sliding_window_causal_mask_function,
)

import sink_attn  # noqa: E402
from sink_attn import transformers_attention as attention  # noqa: E402
from sink_attn.transformers_attention import NAME, course_mask, same_function  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
N, WINDOW, VOCABULARY = 70, 17, 64
LIMIT = 5e-2 if torch.cuda.is_available() else 1e-4  # a GPU multiplies float32 in TF32

# What Transformers will take away breaks here first: 5.40 calls past_key_values cache.
pytestmark = pytest.mark.filterwarnings("error:.*will be removed in version:FutureWarning")
sink_attn.register()


def _model(device, heads=(4, 2), **options):
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_local_experts=2, num_experts_per_tok=2, head_dim=16, num_attention_heads=heads[0],
        num_key_value_heads=heads[1], sliding_window=WINDOW, initializer_range=0.3, **options,
    )
    assert config.layer_types == ["sliding_attention", "full_attention"]
    return GptOssForCausalLM(config).to(device)


def _ids(device, B=2, n=N):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (B, n), generator=generator).to(device)


def _padding(kind, device):
    """attention_mask (2, N): row 0 whole or nearly so, row 1 padded as kind says; None for none."""
    if kind == "none":
        return None
    mask = torch.ones(2, N, dtype=torch.long, device=device)
    if kind == "ones":
        return mask
    if kind in ("left", "both"):
        mask[1, :23] = 0
    if kind in ("right", "both"):
        mask[1, -11:] = 0
        mask[0, -1:] = 0
    return mask


def _logits_and_gradients(model, name, ids, mask):
    """-> logits (B, N, V) and {parameter: gradient} of the loss over what is no padding."""
    model.set_attn_implementation(name)
    model.zero_grad()
    labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    out = model(ids, attention_mask=mask, labels=labels)
    out.loss.backward()
    return out.logits.detach(), {key: p.grad.clone() for key, p in model.named_parameters()}


def _relative(x, want):
    return ((x - want).norm() / want.norm()).item()


# ------------------------------------------------------------------ right
@pytest.mark.parametrize(("heads", "padding"), [
    ((4, 2), "none"), ((4, 2), "ones"), ((4, 2), "left"), ((4, 2), "right"), ((4, 2), "both"),
    ((8, 1), "none"), ((8, 1), "both"),  # eight heads a group, as GPT-OSS: a kernel of its own
], ids=str)
def test_logits_and_every_gradient_match_eager(heads, padding, device):
    model, ids, mask = _model(device, heads).train(), _ids(device), _padding(padding, device)
    want, want_grads = _logits_and_gradients(model, "eager", ids, mask)
    got, got_grads = _logits_and_gradients(model, NAME, ids, mask)
    kept = torch.ones_like(ids).bool() if mask is None else mask.bool()
    assert _relative(got[kept], want[kept]) < LIMIT
    errors = {key: _relative(got_grads[key], x) for key, x in want_grads.items()}
    assert sum("sinks" in key for key in errors) == 2
    assert max(errors.values()) < LIMIT, sorted(errors.items(), key=lambda x: -x[1])[:3]


def test_eager_lets_packed_sequences_see_each_other_as_the_docs_say(device):
    model, ids = _model(device).eval(), _ids(device, B=1)
    lengths = [23, 39, 7, 1]
    model.set_attn_implementation("eager")
    alone = torch.cat([model(part).logits for part in ids.split(lengths, dim=1)], dim=1)
    packed = model(ids, **_packed(lengths, device)).logits
    assert _relative(packed[:, :23], alone[:, :23]) < LIMIT < 0.5 < _relative(packed, alone)


def test_borders_alone_say_where_a_sequence_begins(device):
    mask = course_mask(2, 9, 9, config=None)
    borders = torch.tensor([0, 4, 4, 9, 18], device=device)
    lengths, cu_seqlens, tokens = mask.cut(None, dict(cu_seq_lens_q=borders), 2, 9, device)
    assert lengths == [4, 5, 9] and cu_seqlens.tolist() == [0, 4, 9, 18] and tokens is None


@pytest.mark.parametrize("family", ["gpt_oss", "llama"])
def test_no_layer_copies_o_or_the_gradients_of_its_projections(family, device, monkeypatch):
    # GPT-OSS concatenates q and k, which makes them contiguous; its v, and Llama's q, k and v are
    # views of (B, N, H, D), as is what the output projection wants.  A cache would copy k and v.
    if family == "gpt_oss":
        model, views = _model(device), "v"
    else:
        model, views = LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
        )).to(device), "qkv"
    model.config.use_cache = False
    kernel, projected, kept, gradients = attention.entry.attention, [], [], []

    def watched(q, k, v, **options):
        given = dict(q=q, k=k, v=v)
        for name in views:
            assert given[name].transpose(1, 2).is_contiguous()
            given[name].register_hook(lambda x: gradients.append(x.transpose(1, 2)))
        o = kernel(q, k, v, **options)
        kept.append(o.grad_fn.saved_tensors[5].data_ptr())
        return o

    monkeypatch.setattr(attention.entry, "attention", watched)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, args: projected.append(args[0].data_ptr()))
    _logits_and_gradients(model.train(), NAME, _ids(device), None)
    assert len(kept) == 2 and kept == projected
    assert len(gradients) == 2 * len(views) and all(x.is_contiguous() for x in gradients)


@pytest.mark.parametrize("fault", ["window", "sinks", "causal"])
def test_the_comparison_would_see_a_fault(fault, device, monkeypatch):
    model, ids = _model(device).train(), _ids(device)
    want, want_grads = _logits_and_gradients(model, "eager", ids, None)
    kernel = attention.entry.attention

    def faulty(q, k, v, **options):
        window = options["window_size"]
        if fault == "window" and window is not None:
            options["window_size"] += 1
        if fault == "sinks":
            options["sink_logits"] = options["sink_logits"] + 0.1
        if fault == "causal":
            options |= {"window_size": None, "is_causal": window is not None}
        return kernel(q, k, v, **options)

    monkeypatch.setattr(attention.entry, "attention", faulty)
    got, got_grads = _logits_and_gradients(model, NAME, ids, None)
    errors = [_relative(got_grads[key], x) for key, x in want_grads.items()]
    assert _relative(got, want) > 1e-4 and max(errors) > 1e-2


def _packed(lengths, device):
    """What TRL's collator hands to a model beside ids of a row of so many sequences."""
    borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    sequence = torch.arange(len(lengths), dtype=torch.int32, device=device)
    return dict(
        position_ids=torch.cat([torch.arange(n) for n in lengths])[None].to(device),
        cu_seq_lens_q=borders, cu_seq_lens_k=borders, max_length_q=max(lengths),
        max_length_k=max(lengths), seq_idx=sequence.repeat_interleave(borders.diff())[None],
    )


@pytest.mark.parametrize("told", ["positions", "everything"])
def test_each_of_several_packed_sequences_is_alone(told, device):
    model, ids = _model(device).train(), _ids(device, B=1)
    lengths = [23, 39, 7, 1]
    packed = _packed(lengths, device)
    if told == "positions":
        packed = dict(position_ids=packed["position_ids"])

    model.set_attn_implementation("eager")
    want = torch.cat([model(part).logits for part in ids.split(lengths, dim=1)], dim=1)
    want_grads = torch.autograd.grad(want.square().mean(), list(model.parameters()))
    model.set_attn_implementation(NAME)
    got = model(ids, **packed).logits
    got_grads = torch.autograd.grad(got.square().mean(), list(model.parameters()))

    assert _relative(got, want) < LIMIT
    errors = [_relative(x, y) for x, y in zip(got_grads, want_grads, strict=True)]
    assert max(errors) < LIMIT


def test_rows_may_be_packed_differently(device):
    model, ids = _model(device).eval(), _ids(device)
    positions = torch.arange(N).repeat(2, 1)
    positions[1, 30:] = torch.arange(N - 30)
    model.set_attn_implementation("eager")
    want = [model(ids[:1]).logits, model(ids[1:, :30]).logits, model(ids[1:, 30:]).logits]
    model.set_attn_implementation(NAME)
    got = model(ids, position_ids=positions.to(device)).logits
    assert _relative(got[0], want[0][0]) < LIMIT
    assert _relative(got[1], torch.cat(want[1:], dim=1)[0]) < LIMIT


def test_packed_sequences_are_one_launch_in_every_layer(device, monkeypatch):
    calls = []
    kernel = attention.entry.attention_varlen
    monkeypatch.setattr(
        attention.entry, "attention_varlen",
        lambda q, *rest, **options: calls.append(len(q)) or kernel(q, *rest, **options),
    )
    model = _model(device).eval()
    model.set_attn_implementation(NAME)
    model(_ids(device, B=1), **_packed([23, 39, 7, 1], device))
    model(_ids(device), attention_mask=_padding("both", device))
    assert calls == [N, N, 2 * N - 35, 2 * N - 35]


def test_a_row_of_padding_alone_is_zero_and_disturbs_no_other(device):
    model, ids = _model(device).eval(), _ids(device)
    model.set_attn_implementation(NAME)
    mask = torch.ones_like(ids)
    mask[1] = 0
    got = model(ids, attention_mask=mask).logits
    assert torch.isfinite(got).all()
    assert _relative(got[0], model(ids[:1]).logits[0]) < LIMIT


def test_activation_checkpointing_changes_no_gradient(device):
    model, ids, mask = _model(device).train(), _ids(device), _padding("left", device)
    _, want = _logits_and_gradients(model, NAME, ids, mask)
    # The second name is that of Transformers before it was deprecated.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    _, got = _logits_and_gradients(model, NAME, ids, mask)
    assert max(_relative(got[key], x) for key, x in want.items()) < 1e-5


@pytest.mark.parametrize("use_cache", [True, False])
def test_generating_gives_the_tokens_of_eager(use_cache, device):
    model, ids = _model(device).eval(), _ids(device, n=24)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    tokens = {}
    for name in ("eager", NAME):
        model.set_attn_implementation(name)
        tokens[name] = model.generate(
            ids, attention_mask=mask, max_new_tokens=4, do_sample=False, use_cache=use_cache,
            pad_token_id=0,
        )
    assert torch.equal(tokens[NAME], tokens["eager"])


def test_one_new_token_has_the_logits_of_the_whole(device):
    model, ids, mask = _model(device).eval(), _ids(device), _padding("left", device)
    model.set_attn_implementation(NAME)
    with torch.no_grad():
        want = model(ids, attention_mask=mask).logits[:, -1]
        cache = DynamicCache(config=model.config)
        model(ids[:, :-1], mask[:, :-1], None, cache)
        got = model(ids[:, -1:], mask, None, cache).logits[:, 0]
    assert _relative(got, want) < LIMIT


def test_a_cache_may_have_its_old_or_its_new_name(device):
    """Transformers before 5.24 knows past_key_values, from 5.40 on cache, between them both."""
    model, ids = _model(device).eval(), _ids(device)
    model.set_attn_implementation(NAME)
    taken = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        want = model(ids).logits[:, -1]
        for name in ("past_key_values", "cache"):
            cache = DynamicCache(config=model.config)
            try:
                model(ids[:, :-1], **{name: cache})
            except ValueError as refusal:
                assert f"got {name}: leave them out" in str(refusal)
            else:
                taken.append(name)
                got = model(ids[:, -1:], **{name: cache}).logits[:, 0]
                assert _relative(got, want) < LIMIT
    assert taken


def test_models_without_sinks_and_windows_are_served_too(device):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
    )).to(device)
    ids, mask = _ids(device), _padding("right", device)
    want, want_grads = _logits_and_gradients(model, "eager", ids, mask)
    got, got_grads = _logits_and_gradients(model, NAME, ids, mask)
    assert _relative(got[mask.bool()], want[mask.bool()]) < LIMIT
    assert max(_relative(got_grads[key], x) for key, x in want_grads.items()) < LIMIT


# ---------------------------------------------------------------- refused
def _refusal(device, *, dtype=torch.float32, dropout=0.0, train=True, **inputs):
    """What the model says to these inputs: the text of the exception."""
    model = _model(device, attention_dropout=dropout).to(dtype).train(train)
    model.set_attn_implementation(NAME)
    with pytest.raises((ValueError, TypeError)) as refused:
        model(_ids(device), **inputs)
    return str(refused.value)


def test_padding_between_tokens_is_refused(device):
    mask = torch.ones(2, N, dtype=torch.long, device=device)
    mask[0, 5] = 0
    said = _refusal(device, attention_mask=mask)
    assert said.startswith("want padding before or after a row's tokens; got") and "eager" in said


def test_padding_and_packing_in_one_row_are_refused(device):
    positions = torch.cat([torch.arange(30), torch.arange(N - 30)])[None].to(device)
    said = _refusal(device, attention_mask=_padding("left", device), position_ids=positions)
    assert "want padding or packed sequences in a row" in said


@pytest.mark.parametrize(("name", "value", "said"), [
    ("cu_seq_lens_q", torch.tensor([0, 40, N]), r"want cu_seq_lens_q .* extra borders at \[40\]"),
    ("cu_seq_lens_k", torch.tensor([0, 30]), rf"want cu_seq_lens_k .* missing ones at \[{N}\]"),
    ("max_length_q", 39, "want max_length_q >= 40, the longest sequence; got 39"),
    ("max_length_k", torch.tensor(39), "want max_length_k >= 40, the longest sequence; got 39"),
    ("seq_idx", torch.zeros(1, N), r"want seq_idx .* missing ones at \[30\]"),
    ("seq_idx", torch.zeros(N), rf"want seq_idx \(1 or B, N\) = \(1 or 1, {N}\); got \[{N}\]"),
])
def test_packing_that_is_told_in_two_ways_is_refused(name, value, said, device):
    model = _model(device)
    model.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match=said):
        model(_ids(device, B=1), **_packed([30, N - 30], device) | {name: value})


def test_positions_that_jump_are_refused(device):
    positions = torch.arange(N, device=device)[None].clone()
    positions[0, 9:] += 3
    said = _refusal(device, position_ids=positions)
    assert "want position_ids that grow by one, or start again at 0" in said and "8, 12" in said


def test_a_mask_of_ones_own_making_is_refused(device):
    mask = torch.zeros(2, 1, N, N, device=device)
    said = _refusal(device, attention_mask=mask)
    assert f"got a Tensor [2, 1, {N}, {N}]" in said and "eager" in said
    layers = {"full_attention": mask, "sliding_attention": mask}
    assert "want no attention_mask" in _refusal(device, attention_mask=layers)
    layers = {"full_attention": None, "sliding_attention": None}
    assert "got None in the layer" in _refusal(device, attention_mask=layers)


def test_the_mask_of_another_kind_of_layer_is_refused(device):
    options = dict(batch_size=2, q_length=N, kv_length=N, config=_model(device).config)
    full = course_mask(mask_function=causal_mask_function, **options)
    swapped = {"full_attention": full, "sliding_attention": full}
    said = _refusal(device, attention_mask=swapped)
    assert said.startswith(f"want the mask of a layer with window {WINDOW}; got")


def test_dropout_is_refused_in_training_alone(device):
    assert "attention_dropout=0.1 in training" in _refusal(device, dropout=0.1)
    model = _model(device, attention_dropout=0.1).eval()
    model.set_attn_implementation(NAME)
    assert torch.isfinite(model(_ids(device)).logits).all()


def test_weights_are_refused_for_nobody_computes_them(device):
    assert "want no output_attentions" in _refusal(device, output_attentions=True)


def test_arguments_nobody_here_knows_are_refused(device):
    assert "got softcap" in _refusal(device, softcap=30.0)


def test_dtypes_are_refused(device):
    assert "got torch.float64" in _refusal(device, dtype=torch.float64)
    if device == "cpu":
        assert "interpreter has no bfloat16" in _refusal(device, dtype=torch.bfloat16)


def test_a_prompt_in_parts_and_a_static_cache_are_refused(device):
    model, ids = _model(device).eval(), _ids(device)
    model.set_attn_implementation(NAME)
    cache = DynamicCache(config=model.config)
    model(ids[:, :30], None, None, cache)
    with pytest.raises(ValueError, match="got 10 queries and (40|26) keys"):
        model(ids[:, 30:40], None, None, cache)
    with pytest.raises(ValueError, match="static cache"):
        model.generate(
            ids, attention_mask=torch.ones_like(ids), cache_implementation="static",
            max_new_tokens=3,
        )


def test_queries_that_begin_elsewhere_than_the_keys_are_refused(device):
    options = dict(batch_size=2, q_length=N, kv_length=N, mask_function=causal_mask_function)
    assert course_mask(q_offset=5, kv_offset=5, **options) is not None
    with pytest.raises(ValueError, match="want as many keys as queries, or a single query"):
        course_mask(q_offset=5, **options)


def test_a_mask_function_nobody_here_knows_is_refused(device):
    options = dict(batch_size=2, q_length=N, kv_length=N, config=_model(device).config)
    sliding = sliding_window_causal_mask_function
    assert course_mask(mask_function=sliding(WINDOW), **options).window == WINDOW
    other = and_masks(causal_mask_function, lambda b, h, q, k: k != 3)
    for unknown in (sliding(WINDOW + 1), other):
        with pytest.raises(ValueError, match="want a causal mask, or a sliding window"):
            course_mask(mask_function=unknown, **options)
    with pytest.raises(ValueError, match=r"want attention_mask \(B, N\) = \[2, 70\]; got"):
        course_mask(attention_mask=torch.ones(1, N).bool(), **options)


# -------------------------------------------------- the interface of Transformers
def test_functions_are_the_same_if_their_code_and_values_are():
    make = sliding_window_causal_mask_function
    assert same_function(make(5), make(5)) and not same_function(make(5), make(6))
    assert not same_function(make(5), causal_mask_function)
    assert not same_function(and_masks(make(5)), and_masks(make(5), causal_mask_function))


def test_the_installed_version_is_one_that_was_tried():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("gpt-oss", "test"):
        wanted = [Requirement(text) for text in extras["optional-dependencies"][extra]]
        (ours,) = [x for x in wanted if x.name == "transformers"]
        assert {"<", ">="} == {clause.operator for clause in ours.specifier}
        assert metadata.version("transformers") in ours.specifier


def test_the_name_survives_and_both_functions_are_asked(device, monkeypatch):
    """A name with "flash" in it is replaced by another kernel; ours must never be."""
    asked = []

    def mask_function(**arguments):
        asked.append(("mask", arguments))
        return course_mask(**arguments)

    def attention_function(module, *tensors, **arguments):
        asked.append(("attention", arguments))
        return attention.course_attention(module, *tensors, **arguments)

    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, attention_function)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, NAME, mask_function)
    model, ids = _model(device).train(), _ids(device)
    model.set_attn_implementation(NAME)
    assert model.config._attn_implementation == NAME
    model(ids, attention_mask=_padding("left", device), labels=ids, num_items_in_batch=9)
    kinds = [kind for kind, _ in asked]
    assert kinds.count("mask") == 2 and kinds.count("attention") == 2

    masks = [arguments for kind, arguments in asked if kind == "mask"]
    needed = {"batch_size", "q_length", "kv_length", "q_offset", "kv_offset", "mask_function",
              "attention_mask", "config"}
    assert all(needed <= set(arguments) for arguments in masks)
    assert all(x["attention_mask"].dtype == torch.bool for x in masks)
    layers = [arguments for kind, arguments in asked if kind == "attention"]
    needed = {"dropout", "scaling", "sliding_window", "s_aux", "position_ids"}
    known = needed | attention.HARMLESS
    assert all(needed <= set(arguments) <= known for arguments in layers)
    assert [x["sliding_window"] for x in layers] == [WINDOW, None]
    assert all(x["s_aux"] is layer.self_attn.sinks
               for x, layer in zip(layers, model.model.layers, strict=True))


def test_the_masks_of_transformers_are_still_made_as_before():
    """OneNewToken holds what eager_mask returns: (B, 1, 1, N_K), 0 where a key is seen."""
    needed = {"batch_size", "q_length", "kv_length", "q_offset", "kv_offset", "mask_function",
              "attention_mask"}
    assert needed <= set(inspect.signature(eager_mask).parameters)
    mask = eager_mask(
        batch_size=1, q_length=1, kv_length=6, q_offset=5, kv_offset=0,
        mask_function=sliding_window_causal_mask_function(3),
        attention_mask=torch.tensor([[True, True, True, True, False, True]]),
    )
    assert mask.shape == (1, 1, 1, 6)
    assert (mask[0, 0, 0] == 0).tolist() == [False, False, False, True, False, True]
    assert (mask[mask != 0] < -1e30).all()
