"""Models of Transformers beside GPT-OSS with "sink_attn": which work as with eager, which cannot.

Tiny ones with random weights, drawn wide enough that attention is far from uniform.
"""

import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install -e .[gpt-oss]")

from transformers.masking_utils import (  # noqa: E402
    and_masks,
    causal_mask_function,
    or_masks,
    packed_sequence_mask_function,
    sliding_window_causal_mask_function,
)

import sink_attn  # noqa: E402
from sink_attn.transformers_attention import NAME, course_mask  # noqa: E402

N, WINDOW, VOCABULARY = 40, 7, 64
LENGTHS = [13, 19, 7, 1]
LIMIT = 5e-2 if torch.cuda.is_available() else 1e-4  # a GPU multiplies float32 in TF32
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3, pad_token_id=0,
)
LAYERS = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW)
EXPERTS = dict(num_local_experts=2, num_experts_per_tok=2)
# The class's name without ForCausalLM -> what its config is given beside SMALL.
WORKING = {
    "Llama": dict(), "Mistral": dict(sliding_window=WINDOW), "GraniteSWA": LAYERS,
    "GraniteMoeSWA": LAYERS | EXPERTS, "Flint": LAYERS | dict(head_dim=16),
}
WITH_SINKS = {"GraniteSWA", "GraniteMoeSWA", "Flint"}
working = pytest.mark.parametrize("name", WORKING)

sink_attn.register()


def _model(name, device, head="ForCausalLM", **options):
    make = getattr(transformers, name + head, None)
    if make is None:
        pytest.skip(f"Transformers {transformers.__version__} has no {name}")
    torch.manual_seed(0)
    config = getattr(transformers, name + "Config")(**SMALL | WORKING.get(name, {}) | options)
    model = make(config).to(device).train()
    for key, x in model.named_parameters():
        if "sink" in key:
            torch.nn.init.normal_(x, std=1.5)
    return model


def _ids(device, B=1):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (B, N), generator=generator).to(device)


def _logits_and_gradients(model, implementation, parts, **inputs):
    """-> logits of the parts, one after the other, and {parameter: gradient}."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    logits = torch.cat([model(ids, use_cache=False, **inputs).logits for ids in parts], dim=1)
    kept = inputs.get("attention_mask", torch.ones_like(logits[..., 0]))[..., None]
    (logits * kept).square().mean().backward()
    return logits.detach() * kept, {
        key: x.grad.clone() for key, x in model.named_parameters() if x.grad is not None
    }


def _relative(x, want):
    return ((x - want).norm() / want.norm()).item()


def _agree(got, want) -> None:
    assert _relative(got[0], want[0]) < LIMIT and got[1].keys() == want[1].keys()
    errors = {key: _relative(got[1][key], x) for key, x in want[1].items() if x.norm() > 1e-6}
    assert max(errors.values()) < LIMIT, sorted(errors.items(), key=lambda x: -x[1])[:3]


def _positions(lengths, device):
    return torch.cat([torch.arange(n) for n in lengths])[None].to(device)


# ------------------------------------------------------------------ which work
@working
def test_logits_and_every_gradient_match_eager(name, device):
    model, ids = _model(name, device), _ids(device, B=2)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    want = _logits_and_gradients(model, "eager", [ids], attention_mask=mask)
    _agree(_logits_and_gradients(model, NAME, [ids], attention_mask=mask), want)
    sinks = [x.norm() for key, x in want[1].items() if "sink" in key]
    assert len(sinks) == (2 if name in WITH_SINKS else 0) and all(x > 1e-6 for x in sinks)


@working
def test_each_of_several_packed_sequences_is_as_if_alone(name, device):
    model, ids = _model(name, device), _ids(device)
    want = _logits_and_gradients(model, "eager", ids.split(LENGTHS, dim=1))
    positions = _positions(LENGTHS, device)
    _agree(_logits_and_gradients(model, NAME, [ids], position_ids=positions), want)


@working
def test_with_a_cache_too_and_rows_may_be_packed_differently(name, device):
    model, ids = _model(name, device), _ids(device, B=2)
    positions = torch.cat([_positions([N], device), _positions(LENGTHS, device)])
    model.set_attn_implementation("eager")
    alone = [model(part).logits[0] for part in (ids[:1], *ids[1:].split(LENGTHS, dim=1))]
    model.set_attn_implementation(NAME)
    got = model(ids, position_ids=positions, use_cache=True).logits
    assert _relative(got, torch.stack([alone[0], torch.cat(alone[1:])])) < LIMIT


def test_the_mask_alone_says_where_a_sequence_begins(device):
    packed = packed_sequence_mask_function(torch.tensor([[0] * 4 + [1] * 5, [0] * 8 + [1]]))
    mask = course_mask(2, 9, 9, mask_function=and_masks(causal_mask_function, packed))
    lengths, cu_seqlens, tokens = mask.cut(None, {}, 2, 9, device)
    assert lengths == [4, 5, 8, 1] and cu_seqlens.tolist() == [0, 4, 9, 17, 18] and tokens is None
    mask = course_mask(2, 9, 9, mask_function=and_masks(causal_mask_function, packed))
    with pytest.raises(ValueError, match="want the mask function to begin a sequence where .* 0"):
        mask.cut(torch.arange(9)[None], {}, 2, 9, device)


# ----------------------------------------------------------- which cannot
@pytest.mark.parametrize(("name", "options", "said"), [
    ("Llama", dict(head_dim=160), "want D <= 128; got 160"),
    ("DeepseekV4", {}, "want D <= 128; got 512"),
    ("MiMoV2Flash", dict(
        layer_types=["sliding_attention"] * 2, sliding_window=WINDOW, head_dim=48, v_head_dim=32,
        mlp_layer_types=["dense"] * 2), r"want q \(B, HQ, N, D\), .* 48\], .* 32\]"),
    ("HYV4", {}, "want a mask that goes to the layers as it is"),
    ("OpenAIPrivacyFilter", EXPERTS | dict(
        head="ForTokenClassification", head_dim=16, sliding_window=WINDOW),
     "want a causal mask, or a sliding window of config.sliding_window"),
], ids=lambda x: x if isinstance(x, str) and " " not in x else "")
def test_what_no_kernel_here_can_do_is_refused(name, options, said, device):
    model = _model(name, device, **options)
    model.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match=said):
        model(_ids(device))


@pytest.mark.parametrize("name", ["Llama", "Flint"])
@pytest.mark.parametrize("positions", [
    [*range(10), *range(30, 60)],  # the first of two GPUs, each with an early and a late piece
    [*range(20), *range(5, 25)], [*range(20), 19, *range(18, -1, -1)],
], ids=["zigzag", "back", "down"])
def test_positions_that_are_no_packing_are_refused(name, positions, device):
    model = _model(name, device)
    model.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match="grow by one, or start again at 0 .* zigzag order"):
        model(_ids(device), position_ids=torch.tensor([positions], device=device), use_cache=False)


def test_packing_hides_no_other_mask(device):
    packed = packed_sequence_mask_function(torch.zeros(1, N, device=device))
    sliding = sliding_window_causal_mask_function

    def made(*functions):
        config = type("Config", (), {"sliding_window": WINDOW})
        return course_mask(1, N, N, mask_function=and_masks(*functions), config=config)

    assert made(causal_mask_function, packed).window is None
    assert made(sliding(WINDOW), packed).window == WINDOW
    for others in (
        (sliding(WINDOW + 1), packed), (causal_mask_function, packed, lambda b, h, q, k: k != 3),
        (or_masks(causal_mask_function, lambda b, h, q, k: k < 5), packed), (packed, packed),
        (causal_mask_function, lambda b, h, q, k: packed(b, h, q, k)),
    ):
        with pytest.raises(ValueError, match="want a causal mask, or a sliding window"):
            made(*others)
