"""What an entry point returned is of the kind asked for, or there is a sentence and an id."""

import pytest
import torch

from grader.sandbox.wire import OBSERVED
from grader.sandbox.worker.returned import Failure, check_gradient, outputs_of, signature_of

OUT, LSE = torch.zeros(1, 2, 64, 16).half(), torch.zeros(1, 2, 64)
SPECS = [{"name": "o", "shape": [1, 2, 64, 16], "dtype": "float16"},
         {"name": "lse", "shape": [1, 2, 64], "dtype": "float32"}]


def test_what_was_asked_for_is_taken_and_more_is_left():
    assert outputs_of([OUT, LSE], SPECS, "cpu", "f")[1] is LSE
    assert outputs_of((OUT, LSE), SPECS[:1], "cpu", "f") == [OUT]


@pytest.mark.parametrize("result, specs, id, words", [
    (None, 1, "output-missing", "want o; got None: f returned nothing"),
    (OUT, 2, "output-missing", "want 2 outputs"),
    ((OUT,), 2, "output-missing", "want 2 outputs"),
    (OUT.float(), 1, "output-dtype", "float16; got"),
    (OUT.mT, 1, "output-shape", "want shape"),
    (OUT.transpose(1, 2), 1, "output-axes-swapped", "axes 1 and 2 are swapped"),
    ([1], 1, "", "want a torch.Tensor; got int"),
    (torch.nn.Parameter(OUT), 1, "", "want a torch.Tensor; got Parameter"),
    (OUT.to("meta"), 1, "", "want a dense tensor on cpu; got meta"),
    (OUT.to_sparse(), 1, "", "want a dense tensor on cpu; got torch.sparse_coo"),
])
def test_another_kind_is_a_failure_with_an_id(result, specs, id, words):
    with pytest.raises(Failure) as caught:
        outputs_of(result, SPECS[:specs], "cpu", "f")
    assert words in str(caught.value) and caught.value.outcome == "wrong"
    assert caught.value.id == id and id in ("", *OBSERVED)


def test_a_gradient_has_the_shape_and_dtype_of_its_input():
    check_gradient(OUT.clone(), "q", OUT, "cpu")
    with pytest.raises(Failure, match="dq: want shape"):
        check_gradient(OUT.float(), "q", OUT, "cpu")


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k=2):
        return q


class NewStyle(torch.autograd.Function):
    @staticmethod
    def forward(q, k=2):
        return q

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


@pytest.mark.parametrize("found, function, signature", [
    (OldStyle, OldStyle.apply, "(q, k=2)"), (NewStyle, NewStyle.apply, "(q, k=2)"),
    (OldStyle.forward, OldStyle.forward, "(ctx, q, k=2)"), (print, iter, "None")])
def test_the_arguments_of_apply_are_those_that_a_caller_gives(found, function, signature):
    assert str(signature_of(found, function)) == signature
