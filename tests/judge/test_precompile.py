"""Kernels compiled ahead are those that the cases launch: nothing is compiled twice."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.course.calls import SubmissionError, pack
from grader.course.case_table import listed
from grader.course.inputs import FAR, build
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.host.processes import Worker
from grader.host.session import Session
from grader.judge import precompile
from grader.judge.context import GradingContext
from grader.report.screen import Reporter
from grader.sandbox.replay import launches

ROOT = Path(__file__).parents[2]
FOR_H100 = dict(device="cpu", interpret=False, compile_for=90)


def noted(session: Session, stage, case) -> str:
    """The trace of what a case launches, by a worker that has the file."""
    session.load(stage.entry, stage.attribute, stage.positional)
    header, _ = pack(build(case, 1).call)
    return session.request({"op": "note", "call": header}, "case")[0]["trace"]


@pytest.mark.parametrize(("number", "file"), [
    *((number, STAGES[number].filename) for number in (2, 3, 6, 9)),
    (3, "attacks/honest/named_strides.py"),  # named tuples, and annotations of PyTorch's
], ids=lambda value: Path(str(value)).stem)
def test_what_is_compiled_of_a_plan_is_what_the_file_compiles(number, file, tmp_path):
    stage = STAGES[number]
    source = (ROOT / file).read_bytes()
    case = next(case for case in listed(stage.number, "cuda", True) if case.group == "robust")
    caches = {name: tmp_path / name for name in ("clean", "own", "given")}
    for cache in caches.values():
        cache.mkdir()
    with Session(Worker(source, stage.filename, **FOR_H100), 120) as session:
        trace = noted(session, stage, case)
    with Session(Worker(b"", "replaying.py", cache=caches["clean"], **FOR_H100), 120) as session:
        reply, _ = session.request({"op": "compile_trace", "trace": trace}, "compile")
        compiled = reply["compiled"]
    with Session(Worker(source, stage.filename, cache=caches["own"], **FOR_H100), 120) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        session.compile(build(case, 1).call)
    assert {path.name for path in caches["own"].iterdir()} == set(compiled)

    inside_cache = caches["given"]
    with Session(Worker(source, stage.filename, cache=inside_cache, **FOR_H100), 120) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        session.request({"op": "take", "compiled": compiled}, "case")
        session.compile(build(case, 1).call)
    assert {path.name for path in inside_cache.iterdir()} == set(compiled)
    for folder in inside_cache.iterdir():  # taken, and not compiled anew: no other file is there
        assert all(path.suffix in launches.SENT for path in folder.iterdir())


def test_an_option_that_no_replay_would_take_is_not_compiled_either(tmp_path):
    trace = json.loads(plan_of(x=x(), N=32, BLOCK=64))
    trace["functions"][0]["names"] = [["tl", {"module": "triton.language"}]]
    trace["steps"][1][4] = {"ir_override": "/a/file.ttir"}
    with Session(Worker(b"", "replaying.py", cache=tmp_path, **FOR_H100), 120) as session, \
            pytest.raises(SubmissionError, match="launched with the option ir_override"):
        session.request({"op": "compile_trace", "trace": json.dumps(trace)}, "compile")


def plan_of(**arguments) -> str:
    """A trace of one launch of a kernel with a constant BLOCK."""
    text = "def kernel(x, N, BLOCK: tl.constexpr):\n    pass\n"
    about = {"name": "kernel", "line": 2, "first": 1, "text": text, "kind": "jit", "names": [],
             "options": {}}
    return json.dumps({"functions": [about], "steps": [
        ["op", "aten::empty", [], {}, []], ["launch", 0, [1], arguments, {"num_warps": 4}]]})


def x(offset=0, dtype="float16") -> dict:
    return {"tensor": [0, offset, [4, 4], [4, 1], dtype]}


@pytest.mark.parametrize("changed, same", [
    ({"N": 48}, True),  # another multiple of 16
    ({"N": 33}, False),
    ({"N": 1}, False),
    ({"N": 2**31}, False),
    ({"x": x(offset=8)}, True),  # 16 bytes further
    ({"x": x(offset=1)}, False),
    ({"x": x(dtype="float32")}, False),
    ({"BLOCK": 32}, False),
    ({"N": {"tuple": [32, 16]}}, False),
])
def test_launches_share_a_variant_where_triton_compiles_them_alike(changed, same):
    first = {"x": x(), "N": 32, "BLOCK": 64}
    ((key, trace),) = precompile.variants(plan_of(**first))
    ((other, _),) = precompile.variants(plan_of(**first | changed))
    assert (key == other) == same
    assert [step[0] for step in json.loads(trace)["steps"]] == ["launch"]


@pytest.mark.parametrize("number", [3, 4, 8])
def test_a_long_case_is_noted_at_a_length_that_launches_the_same_kernels(number):
    case = listed(number, "cuda", True)[0]
    short = precompile._shortened(case)
    assert short.N <= 1024 and short.N % 16 == case.N % 16


@pytest.mark.parametrize("number", [2, 8])
def test_what_a_case_with_gaps_of_gib_launches_is_noted_too(number):
    stage = STAGES[number]
    far = next(case for case in listed(stage.number, "cuda", True) if case.layout == "far")
    with Session(Worker((ROOT / stage.filename).read_bytes(), stage.filename, **FOR_H100),
                 120) as session:
        trace = noted(session, stage, far)
    assert list(precompile.variants(trace)) and str(FAR) in trace


def test_a_case_that_is_also_timed_is_noted_once_and_those_after_it_too(monkeypatch, tmp_path):
    stage = STAGES[3]
    source = (ROOT / stage.filename).read_bytes() + tmp_path.name.encode().join([b"\n# ", b"\n"])
    monkeypatch.setattr(precompile.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(precompile.kernel_cache, "knows", lambda *file: False)
    monkeypatch.setattr(precompile.Precompiler, "_compile", lambda self, trace: {"made": {}})
    first, second, *_ = listed(stage.number, "cuda", True)
    monkeypatch.setattr(precompile, "shapes", lambda *stage: [first, second])
    with GradingContext(stage, SimpleNamespace(source=source), Options(
            tmp_path, "cuda", 1, 120.0), Reporter(io.StringIO()), None) as context:
        coming = precompile.Precompiler(context, [first])
        noted = [coming.launched[case.name].result(120) for case in (first, second)]
        assert all(one.result(120) == {"made": {}} for waiting in noted for one in waiting)
        assert all(noted) and len(coming.compiled) == 1  # one variant serves both
