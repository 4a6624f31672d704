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
                         "sink logits, memory at N, 2N")
    assert Case(2, "standard", 20, M=7).label == "M=7, N=20"
    own = Case(3, "robust", 20, layout="odd.dense.last", dout="transposed")
    assert own.note == "float16, q not 16-byte aligned, v last axis strided, do transposed"
    assert Case(2, "robust", 20, dout="faint").note == "float16, tiny dy"
    assert Case(2, "robust", 20, layout="shared").note == "float16, one row of x for all"
    assert Case(3, "robust", 20, layout="shared").note == "float16, k of one head for all"
    assert Case(8, "robust", 20, grads=("q", "k")).note == "float16, gradients of q and k alone"
    assert Case(9, "robust", 20, is_causal=True).label == "H=1, L=20, D=16, no window"
    assert Case(1, "robust", 20, NK=9, refill=True, repeats=2).note == "float16, refilled, 2 runs"


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
