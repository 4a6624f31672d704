"""What the tests of the sandbox share: a session on a small submission, and a call of it."""

import json
from pathlib import Path

import pytest
import torch

from grader.course.calls import Call, OutputSpec, SubmissionError, TensorInput
from grader.course.trace import Trace
from grader.host.processes import Worker
from grader.host.session import STEP, Session

SUBMISSIONS = Path(__file__).parent / "submissions"
X = torch.arange(12.0).reshape(3, 4) - 5


def double_call(**changes) -> Call:
    """`double(x)` on X, one output y."""
    settings = {
        "inputs": {"x": TensorInput.dense(X)}, "args": ("@x",), "kwargs": {},
        "outputs": (OutputSpec("y", (3, 4), torch.float32),),
    }
    return Call(**{**settings, **changes})


def reaching(n: int, **changes) -> Call:
    """double_call with a storage long enough for n timed calls."""
    storage = torch.arange(12.0 + STEP * n)
    return double_call(inputs={"x": TensorInput(storage, (3, 4), (4, 1))}, **changes)


def with_gradient(**changes) -> Call:
    dout = TensorInput(torch.full((1,), 3.0), (3, 4), (0, 0))  # expanded, as from .sum()
    return double_call(douts={"y": dout}, grads=("x",), **changes)


def open_session(name: str, **settings) -> Session:
    settings = {"device": "cpu", "interpret": True, **settings}
    timeout = settings.pop("timeout", 60.0)
    return Session(Worker((SUBMISSIONS / name).read_bytes(), name, **settings), timeout)


def run(session, entry, call=None, attribute=None):
    session.load(entry, attribute, ("x",))
    return session.run(call or double_call())


def error_of(session, entry, call=None, attribute=None) -> SubmissionError:
    with pytest.raises(SubmissionError) as caught:
        run(session, entry, call, attribute)
    assert not caught.value.fatal
    return caught.value


def names(operations) -> list[str]:
    """Of a trace's operations, in order."""
    return [operation.name for operation in operations]


def trace(launches=1, backward_launches=1, operations=(), backward_operations=(), scratch=0,
          kept=0, again=(), **more) -> Trace:
    """A trace of so many launches and operations that write the one output, with some memory."""
    result = {"tensor": [0, 0, [4], [1], "float32"]}
    memory = {"tensor": [1, 0, [scratch], [1], "uint8"]}
    launch = ["launch", 0, [1], {"y": result, "x": memory}, {}]

    def steps(count, names):
        return [launch] * count + [["op", name, [result], {"dict": []}, [result]] for name in names]

    forward = steps(launches, operations)
    return Trace(json.dumps({
        "storages": [{"bytes": 16}, {"bytes": scratch}, {"bytes": kept, "kept": None}],
        "functions": [{"name": "kernel", "line": 3, "text": "def kernel(): pass", "kind": "jit"}],
        "steps": forward + steps(backward_launches, backward_operations),
        "backward": len(forward), "outputs": [result], "gradients": [], "again": list(again),
        **more}))
