"""Compare gradients inside GPT-OSS, with our kernels and with eager attention, to float64.

The rule is the grader's (grader/course/correctness.py), with eager attention in the place of the
honest kernel: our error may be at most 3 times eager's over the whole tensor and 4 times in the
worst row, or a few rounding units where eager's error is smaller than that.

There are two comparisons.  Layer by layer: attention alone, with the q, k, v, sinks and incoming
gradient that occur inside the model.  And the whole model, on padded rows: every parameter's
gradient against a model in float64 with the same weights.  (Transformers keeps norms and the tables
of the rotary embedding in float32 even there.)  In this model every expert sees every token:
otherwise a rounding error could send a token to another expert, and the difference would mean
nothing.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

import reference
from examples.gpt_oss.model import DTYPES, OURS, SIZES, attention_name, build
from examples.gpt_oss.text import Text, read_text
from grader.course import correctness
from sink_attn.transformers_attention import CourseMask, course_attention

RECORDER = "course_recorder"  # eager attention that keeps what went through it
FEW = 64  # the error of fewer numbers says little, so a small bias is judged with its weight


def measure(options) -> dict:
    """Make both comparisons.

    Args:
        options: with size, dtype, device and gradient_length (tokens per row), as in measure.py.

    Returns:
        {"layers": [...], "parameters": [...]}: entries as _judge makes them, each with where, the
        layer or the parameter's name.
    """
    return {"layers": layers(options), "parameters": parameters(options)}


def _build(options, attn: str, dtype=None):
    experts = SIZES[options.size]["num_experts_per_tok"]
    model = build(options.size, attn, dtype=dtype or DTYPES[options.dtype], device=options.device,
                  seed=0, num_local_experts=experts)
    model.set_experts_implementation("eager")  # the only one that has float64
    return model.train()


def _unit(options) -> float:
    tf32 = options.dtype == "float32" and options.device != "cpu"
    return correctness.UNIT_TF32 if tf32 else correctness.UNIT[DTYPES[options.dtype]]


def _judge(answer: correctness.Answer, name: str, ours: torch.Tensor) -> dict:
    """Errors and verdict of ours, on any device.  answer.tiled holds eager's results."""
    verdict, eager = answer.judge(name, ours), answer.judge(name, answer.tiled[name])
    return {"tensor": name, "accepted": verdict.accepted, "eager_fro": eager.fro,
            "eager_row": eager.row} | verdict.as_dict()


# ------------------------------------------------------------------ layers
def layers(options) -> list[dict]:
    """Compare attention alone, in every layer: o and the gradients of q, k, v and the sinks."""
    entries = []
    for layer, call in enumerate(_record(options)):
        module, q, k, v, dout = (call[name] for name in ("module", "q", "k", "v", "dout"))
        window = module.sliding_window

        def eager(q, k, v, module=module, call=call):
            return eager_attention_forward(module, q, k, v, call["mask"], call["scaling"])[0]

        def ours(q, k, v, module=module, call=call, window=window):
            return course_attention(module, q, k, v, CourseMask(window, None), call["scaling"],
                                    sliding_window=window, s_aux=module.sinks)[0]

        inputs = dict(q=q, k=k, v=v, sink_logits=module.sinks.detach())
        mask = dict(is_causal=True, window_size=window, scale=call["scaling"])
        exact = reference.attention(**inputs, dout=dout, **mask)
        truth = {"o": exact["o"]} | {f"d_{name}": exact[name] for name in inputs}
        p = torch.exp(inputs["sink_logits"].double()[:, None] - exact["lse"])
        delta = (dout.double() * exact["o"]).sum(-1)
        scale = {"d_sink_logits": (p * delta).square().sum((0, 2)).sqrt().clamp_min(1e-300)}
        terms = correctness.term_sizes(**inputs, dout=dout, exact=exact, **mask)
        answer = correctness.Answer(
            truth, scale, _run(eager, module, q, k, v, dout), _unit(options), terms
        )
        got = _run(ours, module, q, k, v, dout)
        where = f"layer {layer}, " + (f"window {window}" if window else "no window")
        entries += [{"where": where} | _judge(answer, name, x) for name, x in got.items()]
    return entries


def _run(attend, module, q, k, v, dout) -> dict[str, torch.Tensor]:
    """attend(q, k, v) -> (B, N, HQ, D).  -> o (B, HQ, N, D) and the gradients, by name."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o = attend(q, k, v).transpose(1, 2)
    grads = torch.autograd.grad(o, (q, k, v, module.sinks), dout)
    return {"o": o.detach()} | dict(zip(("d_q", "d_k", "d_v", "d_sink_logits"), grads, strict=True))


def _record(options) -> list[dict]:
    """Run forward and backward with eager attention; return each layer's inputs to attention."""
    calls = []

    def recorder(module, query, key, value, attention_mask, scaling, **arguments):
        o, weights = eager_attention_forward(
            module, query, key, value, attention_mask, scaling, **arguments
        )
        call = dict(module=module, q=query.detach(), k=key.detach(), v=value.detach(),
                    mask=attention_mask, scaling=scaling)
        o.register_hook(lambda do: call.update(dout=do.transpose(1, 2)))
        calls.append(call)
        return o, weights

    AttentionInterface.register(RECORDER, recorder)
    AttentionMaskInterface.register(RECORDER, eager_mask)
    model = _build(options, RECORDER)
    ids = _ids(options)
    model(ids, labels=ids, use_cache=False).loss.backward()
    return calls


def _ids(options) -> torch.Tensor:
    text = Text(read_text())
    return text.batch(0, 2, options.gradient_length, seed=0, device=options.device)


# -------------------------------------------------------------- parameters
def parameters(options) -> list[dict]:
    """Compare the whole model on two rows, one padded on the left, one on the right."""
    ids = _ids(options)
    mask = torch.ones_like(ids)
    mask[0, : ids.shape[1] // 5] = 0
    mask[1, -ids.shape[1] // 3 :] = 0

    model = _build(options, OURS)
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    ours = _gradients(model, ids, mask)
    model.set_attn_implementation(attention_name("eager"))
    eager = _gradients(model, ids, mask)
    del model
    model = _build(options, "eager", torch.float64)
    model.load_state_dict(weights)
    truth = {name: x.double() for name, x in _gradients(model, ids, mask).items()}
    answer = correctness.Answer(truth, {}, eager, _unit(options))
    return [{"where": name.removeprefix("d_")} | _judge(answer, name, x)
            for name, x in ours.items()]


def _gradients(model, ids, mask) -> dict[str, torch.Tensor]:
    """Returns the logits without padding, and d_NAME of every parameter; vectors as one row.

    The gradient of a small bias, such as the router's, is appended to its weight's as a column: it
    is a sum that nearly cancels, so how close two roundings of it come to the truth is chance.
    """
    model.zero_grad(set_to_none=True)
    labels = ids.masked_fill(mask == 0, -100)
    out = model(ids, attention_mask=mask, labels=labels, use_cache=False)
    out.loss.backward()
    grads = {f"d_{name}": torch.atleast_2d(p.grad) for name, p in model.named_parameters()}
    for name in [name for name, x in grads.items() if name.endswith(".bias") and x.numel() < FEW]:
        weight = grads.pop(name.removesuffix("bias") + "weight")
        grads[name.removesuffix(".bias")] = torch.cat([weight, grads.pop(name).mT], 1)
    return {"logits": out.logits[mask.bool()].detach()} | grads
