"""python -m grader.check: right adapters have no wrong row, and a wrong one has the right one."""

import json
import re

import pytest

from grader.assignment.record import ROOT
from grader.check import adapter, table
from grader.check.asking import Asking
from grader.check.features import FEATURES
from grader.host.processes import Confinement
from tests.commands import grader

WRONG = ROOT / "tests/check/wrong_adapters.py"
MASKS = ("output", "causal", "groups", "window", "sink_tokens", "sink_logits", "dsink")
REPORTED = {  # the function -> the only wrong row, and the mistake's id
    "lse_detached": ("sink_logits", "sink-share-constant"),
    "lse_without_gradient": ("sink_logits", "sink-share-constant"),
    "swallowed": ("sink_logits", "sink-logits-ignored"),
    "another_name": ("sink_logits", "sink-logits-ignored"),
    "among_the_scores": ("sink_logits", "sink-logits-ignored"),
    "first_key_for_sink": ("sink_logits", "effect-weights"),
    "window_lost": ("window", "window-ignored"),
    "window_shifted": ("window", "window-plus-one"),
    "sink_detached": ("dsink", "gradient-missing"),
    "sink_gradient_zero": ("dsink", "pattern-zero"),
    "sink_gradient_by_row": ("dsink", "gradient-shape"),
    "group_not_summed": ("groups", "gradient-shape"),
}
TINY = """
import torch

def attention(q, k, v, *, is_causal{more}):
    s = q @ k.mT / q.shape[-1]**0.5
    if is_causal:
        s = s + torch.full(s.shape[-2:], -torch.inf).triu({corner})
    {line}
    return {returned}
"""


HALF = """
import torch

def attention(q, k, v, *, is_causal, window_size=None):
    if q.dtype == torch.float32:
        raise ValueError("want 16 bits")
    age = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
    keep = (age >= 0) | (not is_causal)
    if window_size is not None:
        keep = keep & (age <= window_size)
    s = (q.float() @ k.float().mT / q.shape[-1]**0.5).masked_fill(~keep, -torch.inf)
    return (s.softmax(-1) @ v.float()).to(q.dtype)
"""


def rows(file, features=MASKS, seed=1) -> dict[str, table.Row]:
    """The rows of an adapter, FILE or FILE:function."""
    read = adapter.read(str(file))
    allowed = Confinement(readable=adapter.editable_folders())
    with Asking(read, "cpu", seed, allowed) as asking:
        return {feature: table.row(asking, feature) for feature in features}


def tiny(tmp_path, returned="s.softmax(-1) @ v", line="", more="", corner="1", top="") -> str:
    file = tmp_path / "tiny.py"
    file.write_text(top + TINY.format(more=more, corner=corner, line=line, returned=returned))
    return str(file)


def verdicts(found: dict[str, table.Row]) -> dict[str, str]:
    return {feature: row.verdict for feature, row in found.items()}


def wrong(found: dict[str, table.Row]) -> list[str]:
    return [f"{feature}: {row.says}" for feature, row in found.items() if row.verdict == "wrong"]


def check(*arguments):
    return grader(*arguments, program="grader/check/__main__.py")


# --------------------------------------------------------------------- right adapters
def test_plain_attention_with_everything_is_right_in_every_row():
    found = verdicts(rows(ROOT / "examples/check/eager.py", FEATURES))
    assert found.pop("far") == "not checked" and {*found.values()} == {"right"}


def test_sdpa_is_right_in_all_that_it_takes():
    found = verdicts(rows(ROOT / "examples/check/sdpa.py", FEATURES))
    assert [name for name, verdict in found.items() if verdict != "right"] == [
        "lse", "dlse", "window", "sink_tokens", "sink_logits", "dsink", "together", "far"]
    assert "wrong" not in found.values() and "refused" not in found.values()


def test_flex_attention_has_no_wrong_row_and_refuses_a_backward_on_a_cpu():
    found = rows(ROOT / "examples/check/flex.py", FEATURES)
    assert wrong(found) == [] and found["window"].verdict == found["sink_logits"].verdict == "right"
    assert found["dq"].verdict == "refused" and "backward on CPU" in found["dq"].says


@pytest.mark.interpreter
def test_sink_attn_is_right_in_the_interpreter():
    features = ("output", "causal", "dq", "lse", "dlse", "groups", "window", "sink_tokens",
                "sink_logits", "dsink", "nan_around")
    assert {*verdicts(rows(ROOT / "examples/check/sink.py", features)).values()} == {"right"}


@pytest.mark.slow
@pytest.mark.interpreter
def test_sink_attn_is_right_in_every_row_that_it_takes():
    found = rows(ROOT / "examples/check/sink.py", FEATURES)
    assert wrong(found) == [] and found["nq_nk"].verdict == "refused"


@pytest.mark.parametrize(("file", "claims"), [
    ("flash2.py", 3), ("fla_parallel.py", 4), ("transformers_attention.py:eager", 4),
    ("transformers_attention.py:sdpa", 4), ("transformers_attention.py:flex_attention", 4)])
def test_an_adapter_that_needs_more_than_torch_is_read_without_it(file, claims):
    assert len(adapter.read(str(ROOT / "examples/check" / file)).claims) == claims


def test_the_page_shows_an_adapter_that_is_there():
    page = (ROOT / "docs/check.md").read_text("utf-8")
    shown = page.partition("```python\n")[2].partition("```")[0]
    assert (ROOT / "examples/check/sdpa.py").read_text("utf-8").endswith("\n\n" + shown)


def test_the_page_lists_every_row_with_the_name_that_only_takes():
    page = (ROOT / "docs/check.md").read_text("utf-8")
    listed = re.findall(r"\| ([^|`]+) \| `(\w+)` (?=\|)", page.partition("checks one row:")[2])
    assert {name: title for title, name in listed} == FEATURES


# ----------------------------------------------------------------- reported mistakes
@pytest.mark.parametrize("function", REPORTED)
def test_a_reported_mistake_is_named_in_its_row(function):
    feature, mistake = REPORTED[function]
    found = rows(f"{WRONG}:{function}", ("output", feature))
    assert (found["output"].verdict, found[feature].verdict) == ("right", "wrong")
    assert found[feature].mistake == mistake


@pytest.mark.slow
@pytest.mark.parametrize("function", REPORTED)
def test_a_reported_mistake_makes_no_other_row_wrong(function):
    found = rows(f"{WRONG}:{function}", FEATURES, seed=2)
    assert [row.feature for row in found.values() if row.verdict == "wrong"] == [
        REPORTED[function][0]]


@pytest.mark.parametrize(("function", "row", "mistake"), [
    ("lse_without_sinks", "lse", "lse-without-sinks"),
    ("lse_without_window", "lse", "lse-without-window"),
    ("lse_without_mask", "lse", "lse-without-causal-mask"),
    ("lse_detached_with_window", "dlse", "gradient-missing"),
    ("lse_without_gradient_of_sinks", "dlse", None)])
def test_lse_and_its_gradient_must_follow_masks_and_sinks_as_o_does(function, row, mistake):
    found = rows(f"{WRONG}:{function}", ("window", "sink_logits", "dsink", "lse", "dlse"))
    assert [name for name, one in found.items() if one.verdict == "wrong"] == [row]
    assert mistake in (None, found[row].mistake)


@pytest.mark.parametrize(("function", "row", "mistake"), [
    ("scale_lost_in_an_odd_D", "scale", "scale-ignored"),
    ("scale_lost_with_sinks", "together", "scale-ignored"),
    ("sink_tokens_of_one_tile", "sink_tokens", None),
    ("maximum_without_sinks", "lse", None), ("sinks_without_maximum", "sink_logits", None),
    ("lse_in_the_dtype_of_q", "lse", "output-dtype"),
    ("mask_of_minus_100", "scores", None)])
def test_a_mistake_in_an_unusual_call_only_is_found(function, row, mistake):
    found = rows(f"{WRONG}:{function}", ("output", *dict.fromkeys(("scale", row))))
    assert [name for name, one in found.items() if one.verdict == "wrong"] == [row]
    assert mistake in (None, found[row].mistake)


@pytest.mark.parametrize(("function", "feature", "said"), [
    ("half_the_sink_gradient", "dsink", "Every value is 0.5 times the right one."),
    ("no_sink_gradient", "dsink", "sink_logits.grad: want a gradient; got None from backward"),
    ("first_head_of_a_group", "groups", "dk and dv hold one query head of each group alone."),
    ("lse_of_minus_inf", "lse", "93 of the 279 values of lse are NaN or inf. Your code stored "
     "these values itself (some are inf). It may have computed them from memory outside the "
     "inputs, or from memory that was never written.")])
def test_what_a_row_says_is_true_of_the_mistake(function, feature, said):
    assert rows(f"{WRONG}:{function}", (feature,))[feature].says == said


# ------------------------------------------------------------------- what a row says
def test_a_row_is_wrong_only_if_the_call_without_its_feature_is_right(tmp_path):
    found = rows(tiny(tmp_path, "(s - 1e-3 * s.abs()).softmax(-1) @ v"), ("output", "dq", "views"))
    assert verdicts(found) == {"output": "wrong", "dq": "not checked", "views": "not checked"}
    assert "the call without it is wrong" in found["views"].says


@pytest.mark.parametrize(("when", "verdict", "right"), [
    ("q.shape[2] == 93 and q.requires_grad", "right", "6 of 8"), ("q.shape[2] == 93", "right",
    "4 of 8"), ("q.shape[2] == 93 or q.requires_grad", "not checked", "2 of 8")])
def test_a_row_says_how_many_calls_are_wrong_without_it(tmp_path, when, verdict, right):
    line = f"v = v * 1.1 if {when} else v"
    row = rows(tiny(tmp_path, line=line), ("nan_around",))["nan_around"]
    assert (row.verdict, row.right + row.dropped) == (verdict, 8)
    assert row.says.startswith(f"{right} calls; the others are wrong without it: ")


def test_a_row_says_how_many_calls_are_refused_without_it(tmp_path):
    line = "if q.dtype != torch.float32: raise ValueError('want float32')"
    row = rows(tiny(tmp_path, line=line), ("nan_around",))["nan_around"]
    assert row.verdict == "right" and row.says.startswith(
        "4 of 8 calls; the others are refused without it: B=2, ")


def test_a_mistake_has_a_name_in_16_bits_too(tmp_path):
    file = tmp_path / "half.py"
    file.write_text(HALF)
    found = rows(file, ("output", "window", "dtypes"))
    assert verdicts(found) == {"output": "right", "window": "wrong", "dtypes": "right"}
    assert found["window"].mistake == "window-plus-one"
    assert "want 16 bits" in str(found["dtypes"].refused)


def test_large_scores_may_be_far_off_in_16_bits_but_not_nan(tmp_path):
    file = tmp_path / "half.py"
    rounded = HALF.replace("(q.float() @ k.float().mT", "((q @ k.mT).float()")
    file.write_text(rounded)
    found = rows(file, ("output", "scores"))
    assert verdicts(found) == {"output": "right", "scores": "right"} and found["scores"].remarks
    file.write_text(rounded.replace("s.softmax(-1)", "s.exp() / s.exp().sum(-1, keepdim=True)"))
    assert rows(file, ("scores",))["scores"].verdict == "wrong"


def test_what_raises_is_refused_with_its_sentence_and_line(tmp_path):
    file = tiny(tmp_path, line="if scale: raise ValueError('want no scale')", more=", scale=None")
    found = rows(file, ("output", "scale"))["scale"]
    assert found.verdict == "refused" and found.says == "ValueError: want no scale (tiny.py:8)"


def test_a_right_forward_that_refuses_gradients_of_q_has_no_wrong_row(tmp_path):
    line = """if q.requires_grad: raise ValueError('forward only')
    sink = -torch.inf if sink_logits is None else sink_logits[:, None, None]
    s = torch.cat([s, torch.zeros_like(s[..., :1]) + sink], -1)"""
    file = tiny(tmp_path, "(s.softmax(-1)[..., :-1] @ v).detach()", line, ", sink_logits=None")
    found = rows(file, ("output", "dq", "dk", "dv", "sink_logits", "dsink"))
    assert [*verdicts(found).values()] == ["right", *["refused"] * 3, "right", "refused"]
    assert "forward only" in found["dk"].says and "forward only" in found["dsink"].says


def test_options_that_the_signature_lacks_are_not_claimed_and_kwargs_claim_all(tmp_path):
    found = rows(tiny(tmp_path), ("scale", "lse", "dlse"))
    assert {*verdicts(found).values()} == {"not claimed"}
    assert found["lse"].says == found["dlse"].says == "it returns o alone"
    found = rows(tiny(tmp_path, more=", **kwargs"), ("scale", "sink_logits"))
    assert verdicts(found) == {"scale": "wrong", "sink_logits": "wrong"}


def test_an_lse_in_base_2_and_an_lse_without_gradient_are_found(tmp_path):
    file = tiny(tmp_path, "s.softmax(-1) @ v, s.float().logsumexp(-1) / 0.6931471805599453")
    assert rows(file, ("lse",))["lse"].mistake == "lse-in-base-2"
    file = tiny(tmp_path, "s.softmax(-1) @ v, s.float().logsumexp(-1).detach()")
    found = rows(file, ("lse", "dlse"))
    assert verdicts(found) == {"lse": "right", "dlse": "wrong"}
    assert found["dlse"].tensor == "lse" and "it carries no gradient" in found["dlse"].says
    file = tiny(tmp_path, "s.softmax(-1) @ v, s.float().logsumexp(-1).detach()",
                top="lse_has_gradient = False\n")
    assert verdicts(rows(file, ("lse", "dlse"))) == {"lse": "right", "dlse": "not claimed"}


def test_a_key_past_the_end_is_named_if_there_are_more_keys_than_queries(tmp_path):
    file = tiny(tmp_path, "s.softmax(-1)[..., :v.shape[2]] @ v",
                "s = torch.cat([s, s.new_zeros(*s.shape[:3], int(s.shape[-1] % 16 > 0))], -1)")
    assert "1 more keys with a score of 0" in rows(file, ("nq_nk",))["nq_nk"].says


@pytest.mark.parametrize("align", adapter.CORNERS)
def test_the_corner_of_the_causal_mask_is_the_one_that_the_file_says(tmp_path, align):
    file = tiny(tmp_path, corner="1 + s.shape[-1] - s.shape[-2]", top=f'align = "{align}"\n')
    found = rows(file, ("nq_nk",))["nq_nk"]
    if align == "bottom-right":
        assert found.verdict == "right"
    else:
        assert found.mistake == "other-corner" and "bottom right corner" in found.says


def test_the_worst_element_is_one_of_the_queries_that_were_sent(tmp_path):
    found = rows(tiny(tmp_path, top='align = "bottom-right"\n'), ("nq_nk",), 1270534202)["nq_nk"]
    head, place = re.match(r"o\[\d+, (\d+), (\d+), \d+\] ", found.worst).groups()
    assert "Lq=64, Lk=128" in found.case and int(head) < 2 and int(place) < 64


def test_a_corner_that_is_not_said_is_not_checked(tmp_path):
    file = tiny(tmp_path, corner="1 + s.shape[-1] - s.shape[-2]")
    found = rows(file, ("nq_nk",))["nq_nk"]
    assert found.verdict == "right" and "not causal" in found.says


def test_state_from_call_to_call_is_found(tmp_path):
    top = "kept = {}\n"
    line = "s = kept.setdefault(s.shape, s.detach()) if not s.requires_grad else s"
    found = rows(tiny(tmp_path, line=line, top=top), ("output", "twice"))
    assert verdicts(found) == {"output": "right", "twice": "wrong"}


@pytest.mark.parametrize(("function", "said"), [
    ("o_in_a_buffer", "o changed after"), ("lse_in_a_buffer_forward", "lse changed after"),
    ("dv_in_a_buffer", "v.grad changed after"),
    ("lse_in_a_buffer", "the backward of the first fails")])
def test_a_second_call_must_leave_what_the_first_returned(function, said):
    found = rows(f"{WRONG}:{function}", ("output", "dv", "lse", "twice"))
    assert wrong(found) == [f"twice: {found['twice'].says}"] and said in found["twice"].says


def test_the_heads_that_are_read_are_named_by_their_rule(tmp_path):
    line = "n = q.shape[1] // v.shape[1]; v = v.repeat(1, n, 1, 1)"
    file = tmp_path / "heads.py"
    file.write_text(TINY.format(more="", corner="1", line=line, returned="s.softmax(-1) @ v")
                    .replace("k.mT", "k.repeat(1, q.shape[1] // k.shape[1], 1, 1).mT"))
    found = rows(file, ("output", "groups"))
    assert verdicts(found) == {"output": "right", "groups": "wrong"}
    assert found["groups"].mistake.startswith("heads-")


def test_strides_that_are_taken_for_granted_are_found(tmp_path):
    returned = "s.softmax(-1) @ v.as_strided(v.shape, torch.empty(v.shape).stride())"
    found = rows(tiny(tmp_path, returned), ("output", "views", "nan_around"))
    assert verdicts(found)["output"] == "right" and verdicts(found)["views"] == "wrong"


def test_a_call_that_kills_its_process_is_wrong_and_not_refused(tmp_path):
    line = "if scale: import os; os.abort()"
    found = rows(tiny(tmp_path, line=line, more=", scale=None"), ("scale", "causal"))
    assert verdicts(found) == {"scale": "wrong", "causal": "right"}


# ------------------------------------------------------------------------ the command
def test_the_command_prints_the_table_and_writes_it_as_json(tmp_path):
    file = tmp_path / "found.json"
    done = check(f"{WRONG}:window_lost", "--only", "window,causal", "--seed", 5, "--json", file)
    assert done.returncode == 1, done.stderr
    assert "There is no window: query i sees keys 0 ... i." in done.stdout
    again = f"    python -m grader.check {WRONG}:window_lost --only window --seed 5"
    assert again in done.stdout.splitlines()
    said = json.loads(file.read_text())
    assert said["seed"] == 5 and said["takes"] == ["is_causal", "window_size", "scale"]
    row, causal = said["features"]
    assert (causal["feature"], causal["verdict"]) == ("causal", "right")
    assert (row["verdict"], row["mistake"], row["tensor"]) == ("wrong", "window-ignored", "o")


def test_the_exit_code_is_0_if_nothing_is_wrong_and_1_if_the_plain_call_fails(tmp_path):
    assert check(tiny(tmp_path), "--only", "output").returncode == 0
    failing = check(tiny(tmp_path, line="raise RuntimeError('no')"), "--only", "causal")
    assert failing.returncode == 1 and "not checked" in failing.stdout


def test_a_fault_of_the_check_has_an_exit_code_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "row", lambda *args: 1 / 0)
    assert check(tiny(tmp_path)).returncode == 3


@pytest.mark.parametrize(("text", "arguments", "said"), [
    (None, (), "want a file that exists, FILE.py or FILE.py:function; got"),
    ("def attention(q, k, v, causal=False): pass", (), "want the argument is_causal; got causal"),
    ("def attention(q, k, v, *, is_causal, s_aux=None): pass", (), "want the argument sink_logits"),
    ("def other(): pass", (), "want a function attention in"),
    ("def attention(query, key, value): pass", (), "want attention(q, k, v, *, is_causal"),
    ("def attention(q, k, v, bias): pass", (), "want attention(q, k, v, *, is_causal"),
    ("def attention(q, k, v:", (), "want a Python file; got '(' was never closed (file.py"),
    ("align = 'left'\ndef attention(q, k, v): pass", (), 'want align = "top-left" or'),
    ("lse_has_gradient = 'no'\ndef attention(q, k, v): pass", (), "want lse_has_gradient = True"),
    ("def attention(q, k, v): pass", ("--only", "sinks"), "--only: want one of output, lengths"),
    ("def attention(q, k, v): pass", ("--seed", "-1"), "--seed: want a number of 0 or more"),
    ("def attention(q, k, v): pass", ("--json", "no/such/x"), "--json: want a file in a directory"),
    ("import nothing\ndef attention(q, k, v): pass", (), "want a file that can be imported; got"),
    ("import beside\ndef attention(q, k, v): pass", (),
     "want a file that can be imported; got file.py:1: file.py imports beside, which is beside it"),
])
def test_bad_usage_is_refused_with_what_was_wanted(tmp_path, text, arguments, said):
    file = tmp_path / "file.py"
    (tmp_path / "beside.py").touch()
    if text is not None:
        file.write_text(text)
    done = check(file, *arguments)
    assert done.returncode == 2 and f"error: {said}" in done.stderr
