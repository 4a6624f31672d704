"""The record of a case: what it is called, what it needs, and that it is data."""

import ast
from pathlib import Path

import pytest
import torch

from grader.course import cases
from grader.course.cases import Case

COURSE = Path(__file__).parents[2] / "grader" / "course"
SWDA = Case(9, "robust", 70, D=80, HQ=6, HKV=2, B=2, dtype=torch.bfloat16, sinks=3, scale=0.5,
            family="needles", layout="mixed", dout="small", sink_logits=True, growth=True)


def test_a_name_says_all_that_differs():
    assert SWDA.name == ("robust/B2-HQ6-HKV2-N70-D80-S3-bfloat16-needles-mixed-dout-small-scale-"
                         "sink_logits-growth")
    causal = Case(1, "robust", 12, NK=34, is_causal=True, refill=True, repeats=3)
    assert causal.name == "robust/H1-NQ12-NK34-D16-causal-float16-refill-x3"
    assert Case(3, "standard", 64, refill=True).name == "standard/H1-N64-D16-float16"
    assert Case(2, "robust", 20, M=7, layout="far").name == "robust/M7-N20-float16-far"


def test_a_label_is_the_shape_and_a_note_is_the_rest():
    assert SWDA.label == "B=2, HQ=6, HKV=2, L=70, D=80, S=3, not causal"
    assert SWDA.note == ("bfloat16, one-hot weights, mixed strides, tiny do, explicit scale, "
                         "sink logits, memory measured at N and 2N")
    assert Case(2, "standard", 20, M=7).label == "M=7, N=20"
    own = Case(3, "robust", 20, layout="odd.dense.last", dout="transposed")
    assert own.note == "float16, q not 16-byte aligned, v strided in the last axis, do transposed"
    assert Case(2, "robust", 20, dout="faint").note == "float16, tiny dy"
    assert Case(2, "robust", 20, layout="shared").note == "float16, one row of x for all"
    assert Case(3, "robust", 20, layout="shared").note == "float16, one head of k shared by all"
    assert Case(8, "robust", 20, grads=("q", "k")).note == "float16, gradients of q and k alone"
    assert Case(9, "robust", 20, is_causal=True).label == "H=1, L=20, D=16, no window"
    twice = Case(1, "robust", 20, NK=9, refill=True, repeats=2)
    assert twice.note == "float16, refilled, called twice"


KINDS = [
    (Case(3, "robust", 20), set()), (Case(3, "robust", 20, grads=("q",)), {cases.GRADIENTS}),
    (Case(8, "robust", 20, is_causal=True, grads=("q",)), set()),
    (Case(8, "robust", 20), {cases.NO_MASK}),
    (Case(1, "robust", 20, grads=("q",)), {cases.GRADIENTS, cases.LSE_GRADIENT}),
    (Case(1, "robust", 20, grads=("q",), unused="lse"), {cases.GRADIENTS}),
    (Case(9, "robust", 20, is_causal=True), {cases.NO_WINDOW}),
    (Case(9, "robust", 20, is_causal=True, window=2**31 - 1), {cases.MANY}),
    (Case(9, "robust", 20, is_causal=True, window=3, sinks=2**31 - 1), {cases.MANY}),
    (Case(9, "robust", 20, is_causal=True, window=3, sink_logits=True), {cases.SINK_LOGITS}),
    (Case(3, "robust", 20, bare=True), {cases.DEFAULTS}),
    (Case(3, "robust", 20, D=17), {cases.ODD_D}), (Case(3, "robust", 20, D=32), set()),
    (Case(3, "robust", 20, D=80), {cases.ODD_D}), (Case(3, "robust", 20, D=8), {cases.SMALL_D}),
    (Case(3, "robust", 20, D=128), set()),
    (Case(3, "robust", 20, D=64, dtype=torch.float32), set()),
    (Case(3, "robust", 20, D=128, dtype=torch.float32), {cases.WIDE_F32}),
    (Case(3, "robust", 20, layout="dense.last.dense"), {cases.LAST}),
    (Case(3, "robust", 20, layout="transposed"), set()),
    (Case(2, "robust", 20, M=7, layout="transposed.dense"), {cases.MIXED}),
    (Case(3, "robust", 20, layout="odd.dense.dense"), {cases.MIXED}),
    (Case(3, "robust", 20, layout="shared"), {cases.SHARED}),
    (Case(3, "robust", 20, layout="gapped"), {cases.GAPPED})]


@pytest.mark.parametrize(("case", "kinds"), KINDS, ids=[case.name for case, _ in KINDS])
def test_what_only_this_course_promises_is_known_of_a_case(case, kinds):
    assert case.kinds == kinds


@pytest.mark.parametrize(("N", "ragged"), [(64, False), (16, False), (65, True), (8, True)])
def test_a_length_is_ragged_if_it_is_no_multiple_of_any_tile(N, ragged):
    assert Case(3, "robust", N).is_ragged == ragged


def test_only_the_contracts_names_say_that_there_is_no_causal_mask():
    assert Case(8, "robust", 20).name == "robust/H1-N20-D16-float16"
    assert Case(8, "robust", 20, by_contract=True).name == "robust/H1-N20-D16-full-float16"


def test_row_sums_have_two_gradients_and_attention_three():
    assert not Case(2, "robust", 20, M=7, grads=("x", "w")).some_gradients
    assert Case(2, "robust", 20, M=7, grads=("x",)).some_gradients
    assert Case(8, "robust", 20, grads=("q", "k")).some_gradients


def test_a_mask_is_what_the_reference_takes():
    assert SWDA.mask() == {"is_causal": False, "window_size": None, "sink_size": 3, "scale": 0.5}
    assert Case(6, "robust", 20, window=9).mask()["sink_size"] == 0


def test_keys_are_as_many_as_queries_unless_said():
    assert Case(1, "robust", 20).n_keys == 20 and Case(1, "robust", 20, NK=9).n_keys == 9


def test_a_growth_pair_doubles_the_length_and_nothing_else():
    twice = cases.longer(Case(3, "robust", 64, growth=True), 2)
    assert (twice.N, twice.D, twice.HQ) == (128, 16, 1)
    assert cases.longer(Case(1, "robust", 64, NK=10), 2).n_keys == 20


@pytest.mark.parametrize(("file", "may_import"), [
    ("stages.py", set()), ("cases.py", {"grader.sandbox.wire", "grader.course.stages"}),
    ("case_table.py", {"grader.course.cases"})])
def test_stages_and_cases_are_data_and_know_nothing_of_who_asks_them(file, may_import):
    tree = ast.walk(ast.parse((COURSE / file).read_text("utf-8")))
    found = {name for node in tree
             for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import)
                          else [node.module] if isinstance(node, ast.ImportFrom) else [])}
    assert {name for name in found if name.startswith("grader")} <= may_import
    assert found - may_import <= {"collections.abc", "contextlib", "dataclasses", "importlib",
                                  "importlib.util", "re", "torch"}
