"""What comes out of a worker, for honest files and for every way of going wrong."""

import itertools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from grader.course.calls import OutputSpec, SubmissionError, TensorInput
from grader.host import session as session_module
from grader.host.clock import Clock
from grader.host.processes import Ending, Worker
from grader.host.session import STEP, Session
from grader.judge.timing import _NotMade, _Timed
from grader.sandbox import wire
from tests.sessions import (
    SUBMISSIONS,
    X,
    double_call,
    error_of,
    names,
    open_session,
    reaching,
    run,
    with_gradient,
)


def finding(name: str, *, entry: str = "double", call_timeout=60.0, **settings) -> SubmissionError:
    """The error of loading and calling a whole file of its own."""
    with open_session(name, **settings) as session:
        with pytest.raises(SubmissionError) as caught:
            session.load(entry, None, ("x",))
            session.timeout = call_timeout
            session.run(double_call())
    return caught.value


@pytest.fixture(scope="module")
def answers():
    with open_session("answers.py") as session:
        yield session


# ------------------------------------------------------------ honest answers
@pytest.mark.parametrize("entry", ["right", "as_list", "with_lse", "expects_gpu"])
def test_a_right_answer_comes_back_bit_for_bit(answers, entry):
    reply = run(answers, entry)
    assert torch.equal(reply.outputs[0]["y"], X * 2)
    assert torch.equal(reply.late["y"], X * 2)
    assert torch.equal(reply.inputs_after["x"], X.reshape(-1))
    assert reply.seconds > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_dtype_and_a_strided_view_in_nan_storage_survive_the_trip(answers, dtype):
    storage = torch.full((64,), float("nan"), dtype=dtype)
    sent = TensorInput(storage, (3, 4), (1, 5), 7)
    sent.view().copy_(X)
    spec = (OutputSpec("y", (3, 4), dtype),)
    reply = run(answers, "right", double_call(inputs={"x": sent}, outputs=spec))
    assert torch.equal(reply.outputs[0]["y"], (X * 2).to(dtype))
    assert reply.inputs_after["x"].isnan().sum() == 64 - 12


def test_entries_far_from_one_another_are_sent_dense_and_come_back_dense(answers):
    sent = TensorInput(X.reshape(-1).clone(), (3, 4), (1000, 1), apart=1000)
    again = TensorInput(1 - X.reshape(-1), (3, 4), (1000, 1), apart=1000)
    assert torch.equal(sent.view(), X)
    reply = run(answers, "right", double_call(inputs={"x": sent}, refill={"x": again}))
    assert torch.equal(reply.outputs[0]["y"], X * 2)
    assert torch.equal(reply.refilled["y"], (1 - X) * 2)
    assert torch.equal(reply.inputs_after["x"], X.reshape(-1))
    (x,) = [about for about in reply.trace.value["storages"] if about.get("input") == "x"]
    assert x["bytes"] >= 4 * 2004  # the gaps were there


def test_keyword_arguments_and_plain_values_reach_the_entry_point(answers):
    answers.load("two_arguments", None, ("x", "y"))
    reply = answers.run(double_call(args=("@x",), kwargs={"y": 1.5}))
    assert torch.equal(reply.outputs[0]["y"], X + 1.5)


def test_two_outputs_come_back_under_their_names(answers):
    specs = (OutputSpec("y", (3, 4), torch.float32), OutputSpec("lse", (3,), torch.float32))
    reply = run(answers, "with_lse", double_call(outputs=specs))
    assert torch.equal(reply.outputs[0]["lse"], X.sum(-1))


def test_gradients_of_an_autograd_function_come_back(answers):
    reply = run(answers, "Double", with_gradient(), attribute="apply")
    assert torch.equal(reply.grads["x"], torch.full((3, 4), 6.0))


def test_repeats_and_a_refill_of_the_same_memory_are_all_returned(answers):
    new = TensorInput.dense(X + 100)
    reply = run(answers, "right", double_call(repeats=3, refill={"x": new}))
    assert len(reply.outputs) == 3
    assert torch.equal(reply.refilled["y"], (X + 100) * 2)
    assert torch.equal(reply.inputs_after["x"], X.reshape(-1))


def test_a_refill_of_another_layout_is_refused_before_anything_is_sent(answers):
    answers.load("right", None, ("x",))
    with pytest.raises(ValueError, match="refilled"):
        answers.run(double_call(refill={"x": TensorInput.dense(X.reshape(4, 3))}))


# ------------------------------------------------------- answers that tell on themselves
def test_an_answer_kept_by_pointer_shows_in_the_refill(answers):
    reply = run(answers, "cached_by_pointer",
                double_call(refill={"x": TensorInput.dense(X + 100)}))
    assert torch.equal(reply.refilled["y"], X * 2)


def test_an_output_that_a_later_call_changes_differs_when_read_again(answers):
    reply = run(answers, "one_buffer", double_call(repeats=2))
    assert not torch.equal(reply.outputs[0]["y"], reply.late["y"])


def test_strides_kept_from_the_first_call_show_in_another_layout(answers):
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    call = double_call(inputs={"x": TensorInput.dense(x)}, repeats=2,
                       outputs=(OutputSpec("y", tuple(x.shape), torch.float32),))
    assert torch.equal(run(answers, "right", call).restrided["y"], x * 2)
    kept = run(answers, "strides_of_the_first_call", call)
    assert torch.equal(kept.outputs[1]["y"], x * 2)
    assert not torch.equal(kept.restrided["y"], x * 2)


def test_what_the_next_forward_overwrites_shows_in_gradients_asked_again(answers):
    reply = run(answers, "in_a_workspace", with_gradient(repeats=2))
    assert torch.equal(reply.grads["x"], 6 * X)
    assert not torch.equal(reply.grads_again["x"], 6 * X)
    assert not run(answers, "in_a_workspace", with_gradient()).grads_again  # of one call


def test_an_option_that_the_next_call_overwrites_shows_in_the_gradients(
        answers):
    for between, factor in ((None, 2), ((("@x",), {"factor": 5}), 5)):
        reply = run(answers, "option_on_the_class", with_gradient(repeats=2, between=between))
        assert torch.equal(reply.grads["x"], torch.full((3, 4), 6.0))
        assert torch.equal(reply.grads_again["x"], torch.full((3, 4), 3.0 * factor))


def test_a_gradient_that_the_next_backward_overwrites_is_found(answers):
    reply = run(answers, "gradient_in_one_buffer", with_gradient(repeats=2))
    assert torch.equal(reply.grads["x"], reply.grads_again["x"])
    assert not torch.equal(reply.grads["x"], reply.grads_late["x"])
    right = run(answers, "right", with_gradient(repeats=2))
    assert torch.equal(right.grads["x"], right.grads_late["x"])


def test_an_overwritten_incoming_gradient_shows(answers):
    reply = run(answers, "in_place",
                double_call(douts={"y": TensorInput.dense(X)}, grads=("x",)))
    assert torch.equal(reply.douts_after["y"], (X * 2).reshape(-1))


def test_an_overwritten_input_shows(answers):
    reply = run(answers, "overwrites_input")
    assert torch.equal(reply.inputs_after["x"], (X * 2).reshape(-1))


def test_an_output_nobody_wrote_is_nan(answers):
    assert run(answers, "unwritten").outputs[0]["y"].isnan().all()


def test_every_way_to_make_an_uninitialised_tensor_is_poisoned(answers):
    spec = (OutputSpec("y", (6,), torch.float32),)
    reply = run(answers, "unwritten_everywhere", double_call(outputs=spec))
    assert reply.outputs[0]["y"].tolist() == [1.0] * 6


def test_another_kind_of_output_is_wrong_in_the_words_of_returned(answers):
    error = error_of(answers, "wrong_shape")
    assert (error.outcome, error.id) == ("wrong", "output-shape")
    assert error.sentence == "y: want shape (3, 4), float32; got (4, 3), float32"


def test_a_missing_gradient_is_wrong_and_named(answers):
    error = error_of(answers, "NoGradient", with_gradient(), attribute="apply")
    assert error.outcome == "wrong"
    assert error.sentence == "dx: want a gradient; got None from backward"


def test_an_output_cut_off_from_autograd_is_wrong(answers):
    error = error_of(answers, "cut_off", with_gradient())
    assert error.outcome == "wrong" and "cut off from autograd" in error.sentence


# ------------------------------------------------------------ whatever a worker says
class Scripted:
    """Stands in for a worker: it says what it is given, whatever it is asked."""

    other_user = False

    def __init__(self, *said: dict | bytes, printed: bytes = b"", closes: bool = False):
        self.socket, self.other = socket.socketpair()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self.stdout, self.ended = os.fdopen(reading, "rb"), False
        os.write(writing, printed)
        os.close(writing)
        for one in said:
            self.other.sendall(one if isinstance(one, bytes) else wire.pack_header(
                {"nonce": "n", **one}))
        if closes:
            self.other.shutdown(socket.SHUT_WR)

    def has_ended(self):
        return self.ended

    def ending(self, seconds):
        return Ending(3)

    def end(self):
        self.ended = True

    def close(self):
        self.socket.close()
        self.other.close()
        self.stdout.close()


READY = {"nonce": "", "confined": ["network", "files"], "pid": 0}
FAILED = {"ok": False, "outcome": "crashed", "sentence": "no", "line": 3, "detail": "trace", "id":
          "", "fatal": False}


@pytest.fixture
def scripted(monkeypatch):
    """scripted(what the worker says, ...) -> a session with it."""
    monkeypatch.setattr(session_module.secrets, "token_hex", lambda n: "n")
    opened = []

    def speak(*said, **how):
        opened.append(Scripted(*said, **how))
        return Session(opened[-1], 60.0)

    yield speak
    for worker in opened:
        worker.close()


def finding_of(session) -> SubmissionError:
    with pytest.raises(SubmissionError) as caught:
        session.step({})
    return caught.value


def test_a_worker_says_once_how_it_is_confined(scripted):
    session = scripted(READY, {"ok": True, "examples": [1]}, {"ok": True, "examples": [2]})
    assert (session.step({}), session.step({})) == ([1], [2])
    assert session.started and session.confined == ("network", "files") and not session.gone


@pytest.mark.parametrize("said", [
    {"nonce": "another", "ok": True}, {**FAILED, "outcome": "pass"},
    {**FAILED, "outcome": "grader_fault"}, {**FAILED, "outcome": "timeout"}, {"ok": False},
    wire.LENGTH.pack(session_module.MAX_HEADER + 1), wire.LENGTH.pack(4) + b"[[[["])
def test_what_is_no_answer_ends_the_worker(scripted, said):
    session = scripted(READY, said)
    error = finding_of(session)
    assert (error.outcome, error.fatal, session.gone, session.worker.ended) == (
        "crashed", True, True, True)
    assert error.sentence == "the file under test broke the channel to the grader"
    assert "ended earlier" in finding_of(session).sentence


@pytest.mark.parametrize("more, field, value", [
    ({"id": min(wire.OBSERVED)}, "id", min(wire.OBSERVED)),
    ({"id": "one-of-its-own"}, "id", ""), ({"line": "3"}, "line", None), ({}, "line", 3),
    ({"column": 7}, "column", 7), ({"column": None}, "column", None),
    ({"lines": [9, "x", 3]}, "lines", (9, 3)), ({}, "lines", ()),
    ({"sentence": "a\x1b[31m"}, "sentence", "a\\x1b[31m"), ({"outcome": "skipped"}, "outcome",
                                                          "skipped"),
    ({"detail": "\x1b"}, "detail", "before\n\n\\x1b")])
def test_the_words_of_a_worker_are_shown_and_never_trusted(scripted, more, field, value):
    session = scripted(READY, FAILED | more, printed=b"before\n")
    assert getattr(finding_of(session), field) == value and not session.gone


def test_an_error_that_the_worker_does_not_survive_ends_it(scripted):
    session = scripted(READY, FAILED | {"fatal": True})
    assert finding_of(session).fatal and session.gone and session.worker.ended


@pytest.mark.parametrize("phase, said", [
    ([], "the file ended its own process with exit code 3 during a call"),
    ([{"phase": "compile"}], "the file ended its own process with exit code 3 while its kernels "
                             "compiled"),
    ([{"phase": "compile"}, {"phase": "case"}, {"phase": "an own one"}],
     "the file ended its own process with exit code 3 during a call")])
def test_a_worker_that_ended_says_what_it_was_doing(scripted, phase, said):
    error = finding_of(scripted(READY, *phase, closes=True))
    assert (error.outcome, error.sentence) == ("crashed", said)


@pytest.mark.parametrize("other_user, hint", [(True, "; --worker-user none may help"), (False, "")])
def test_a_worker_that_does_not_start_is_no_fault_of_the_file(scripted, other_user, hint):
    session = scripted(closes=True, printed=b"no such user")
    session.worker.other_user = other_user
    error = finding_of(session)
    assert (error.outcome, error.detail) == ("grader_fault", "no such user")
    assert error.sentence == f"the worker process did not start (exit code 3){hint}"


def test_a_worker_that_starts_too_slowly_is_no_fault_of_the_file(scripted, monkeypatch):
    monkeypatch.setattr(session_module, "START_SECONDS", 0.01)
    error = finding_of(scripted())
    assert error.outcome == "grader_fault"
    assert error.sentence == "no answer within 0.01 s while Python and PyTorch started"


def test_tiles_and_launches_that_a_worker_claims_are_within_bounds(scripted):
    call = double_call(inputs={"q": TensorInput.dense(torch.zeros(1, 1, 4, 2))})
    flags = bytes([0, 1] * 16)
    session = scripted(READY, {"ok": True}, flags + flags + wire.raw_bytes(torch.tensor([0, 99])))
    read, together, tiles = session.walk(call)
    assert tiles == (1, 4) and read.shape == together.shape == (2, 4, 4)
    launch = {"kernel": "k", "grid": [1], "tensors": {}, "programs": []}
    session = scripted(READY, {"ok": True, "launches": [launch] * 99})
    assert len(session.accesses(call)) == 16


# ---------------------------------------------------------------------- traces
def test_products_and_library_attention_are_seen_in_the_pass_they_happen_in(answers):
    assert names(run(answers, "right").trace.operations) == ["aten::mul.Tensor"]
    assert "aten::mm" in names(run(answers, "matrix_product").trace.operations)
    seen = names(run(answers, "library_attention").trace.operations)
    assert any("scaled_dot_product" in name for name in seen)
    seen = run(answers, "ProductInBackward", with_gradient(), attribute="apply").trace
    assert "aten::mm" not in names(seen.operations)
    assert "aten::mm" in names(seen.backward_operations)


def test_a_plan_is_carried_out_on_other_numbers_by_a_worker_without_the_file(answers):
    trace = run(answers, "Double", with_gradient(), attribute="apply").trace
    other = with_gradient(inputs={"x": TensorInput.dense(X + 100)})
    with open_session("raises_at_import.py") as clean:
        got = clean.replay(other, trace)
    assert torch.equal(got["y"], (X + 100) * 2) and got["d_x"].tolist() == [[6.0] * 4] * 3


def test_output_is_escaped_and_cut_to_its_ends(answers):
    printed = run(answers, "prints").stdout
    assert "\\x1b[2J✅ all tests passed\\x0d" in printed and "\\u202e" in printed
    printed = run(answers, "prints_a_megabyte").stdout
    assert "bytes left out" in printed and printed.rstrip().endswith("last words")
    assert len(printed) < 80_000


def test_time_is_the_work_of_n_calls(answers):
    answers.load("slow", None, ("x",))
    assert 0.6 <= answers.time(reaching(3), 3) < 3.0


def test_timed_calls_that_would_read_past_their_storage_are_refused(answers):
    with pytest.raises(ValueError, match=r"x: want a storage of \d+ elements for 3 .* got \d+"):
        answers.time(reaching(1), 3)


def test_every_timed_call_has_inputs_of_its_own_and_one_answer_is_kept(answers):
    call = reaching(5)
    answers.load("right", None, ("x",))
    answers.time(call, 5)
    turn, got = answers.kept(call)
    x = call.inputs["x"].storage[STEP * turn:][:12].reshape(3, 4)
    assert 0 <= turn < 5 and torch.equal(got["y"], 2 * x)


def test_a_timed_call_that_was_not_made_left_no_answer():
    with open_session("fewer_calls.py") as session:
        session.load("double", None, ("x",))
        call = reaching(4)
        session.prepare(call)
        session.kept_turn = 0
        while session.kept_turn == 0:  # by lot; the first call was made
            session.time(call, 4)
        with pytest.raises(SubmissionError, match="it was not made") as caught:
            session.kept(call)
    assert caught.value.outcome == "wrong"


def test_long_requests_are_asked_for_an_answer_not_the_last_short_one_alone():
    with open_session("fewer_calls.py") as session:
        session.load("double", None, ("x",))
        timed = _Timed(session, reaching(40))
        with pytest.raises(_NotMade, match="it was not made"):
            for _ in range(9):  # measure() ends with a short request, which was carried out whole
                timed(40)
                session.time(timed.call, 1)


def test_of_the_answers_of_long_requests_one_is_kept(answers):
    call = reaching(12)
    answers.load("right", None, ("x",))
    timed = _Timed(answers, call)
    assert timed(2) > 0 and timed.kept is None
    assert timed(12) > 0
    turn, got = timed.kept
    x = call.inputs["x"].storage[STEP * turn:][:12].reshape(3, 4)
    assert torch.equal(got["y"], 2 * x)


def test_gradients_of_a_timed_call_are_kept_too(answers):
    call = reaching(2, douts=with_gradient().douts, grads=("x",))
    answers.load("Double", "apply", ("x",))
    answers.time(call, 2)
    assert answers.kept(call)[1]["d_x"].tolist() == [[6.0] * 4] * 3


# -------------------------------------------------------------------- errors
@pytest.mark.parametrize(("entry", "sentence", "text"), [
    ("raises", "ValueError during the call: want more; got less", 'raise ValueError("want more'),
    ("raises_from_library", "RuntimeError during the call: shape", "return x.reshape("),
    ("raises_deep", "RuntimeError during the call: outer", 'raise RuntimeError("outer")'),
    ("endless_recursion", "RecursionError during the call", "return endless_recursion(x)"),
    ("exits", "answers.py called sys.exit() during the call", "sys.exit(0)"),
    ("interrupts", "answers.py raised KeyboardInterrupt", "raise KeyboardInterrupt"),
    ("evil_exception", "EvilError during the call: (its __str__ failed)", "raise EvilError"),
    ("blank_step", "step 4.2 is still blank", 'raise NotImplementedError("step 4.2")'),
])
def test_an_exception_is_a_crash_with_its_own_line_and_the_worker_lives(
        answers, entry, sentence, text):
    error = error_of(answers, entry)
    assert error.outcome == "crashed"
    assert error.sentence.startswith(sentence)
    line = (SUBMISSIONS / "answers.py").read_text().splitlines()[error.line - 1]
    assert line.strip().startswith(text)


def test_what_was_printed_before_an_exception_is_told_before_it(answers):
    detail = error_of(answers, "prints_and_raises").detail
    assert detail.index("I was here") < detail.index("return 1 / 0")


def test_a_huge_message_is_cut_and_its_control_characters_are_shown(answers):
    error = error_of(answers, "huge_message")
    assert len(error.sentence) <= 1000 and len(error.detail) <= 8192
    assert "\\x1b[31m" in error.sentence and "\x1b" not in error.sentence + error.detail


@pytest.mark.parametrize(("entry", "positional", "sentence"), [
    ("absent", ("x",), "answers.py defines no absent"),
    ("two_arguments", ("x",), "want two_arguments(x); got two_arguments(x, y)"),
    ("right", ("x", "is_causal"), "want right(x, is_causal); got right(x)"),
    ("not_callable", ("x",), "want not_callable to be callable; got int"),
])
def test_an_entry_point_that_is_not_as_agreed_is_a_crash(answers, entry, positional, sentence):
    with pytest.raises(SubmissionError, match="(?s).*") as caught:
        answers.load(entry, None, positional)
    assert caught.value.outcome == "crashed"
    assert caught.value.sentence.startswith(sentence)


def test_the_signature_of_apply_is_that_of_forward_without_ctx(answers):
    answers.load("Double", "apply", ("x", "factor"))
    with pytest.raises(SubmissionError, match="factor=2.0"):
        answers.load("Double", "apply", ("x", "factor", "more"))


# ----------------------------------------------------------- ends of a process
@pytest.mark.parametrize(("name", "sentence", "line"), [
    ("exits_at_import.py", "exits_at_import.py called sys.exit() while being imported", 3),
    ("raises_at_import.py", "RuntimeError while being imported: no good", 4),
])
def test_an_import_that_fails_is_a_crash(name, sentence, line):
    error = finding(name)
    assert (error.outcome, error.sentence, error.line) == ("crashed", sentence, line)


def test_importing_another_file_of_the_course_is_told_to_stand_alone():
    error = finding("imports_a_sibling.py")
    assert error.outcome == "crashed" and "must stand alone" in error.sentence


@pytest.mark.parametrize(("name", "sentence"), [
    ("leaves_its_process.py", "the file ended its own process with exit code 0 during a call"),
    ("segfaults.py", "the file crashed the process with a segmentation fault during a call"),
    ("is_killed.py", "the file was killed by signal 9 (SIGKILL), probably for want of host memory"),
])
def test_a_death_is_a_crash_in_its_own_words(name, sentence):
    error = finding(name)
    assert error.outcome == "crashed" and error.fatal
    assert error.sentence.startswith(sentence)
    if name == "leaves_its_process.py":
        assert "so long" in error.detail


@pytest.mark.parametrize("name", ["closes_the_channel.py", "forges_a_reply.py"])
def test_a_broken_or_forged_channel_is_a_crash(name):
    error = finding(name)
    assert error.outcome == "crashed" and error.fatal


@pytest.mark.parametrize(("name", "limit", "sentence"), [
    ("hangs_at_import.py", "timeout", "no answer within 1 s while being imported"),
    ("hangs_in_call.py", "call_timeout", "no answer within 1 s in a call of the entry point"),
])
def test_a_hang_ends_at_the_deadline_and_says_where(name, limit, sentence, monkeypatch):
    monkeypatch.setattr(session_module, "look_below", lambda pid: (0.0, False))
    monkeypatch.setattr(session_module, "ENDLESS_SECONDS", 0.5)  # for other files
    error = finding(name, **{limit: 1.0})
    assert (error.outcome, error.sentence, error.fatal) == ("timeout", sentence, True)


def test_a_call_of_what_seems_endless_has_less_time(monkeypatch):
    monkeypatch.setattr(session_module, "ENDLESS_SECONDS", 0.5)
    with open_session("hangs_in_call.py", timeout=600.0) as session:
        session.load("double", None, ("x",))
        session.seems_endless = lambda: True
        with pytest.raises(SubmissionError, match="no answer within 0.5 s in a call of the entry"):
            session.run(double_call())


LATE = "no answer within 1 s while being imported"
BUSY = "this machine was busy: 0 s of CPU time, of 1 s allowed, in 3 s while being imported"


@pytest.mark.parametrize(("cpu", "states", "said"), [
    (4.0, [True], LATE), (1.01, [True], LATE),  # it had all of its time
    (0.0, [False], LATE), (0.4, [False], LATE),  # it sleeps
    (0.4, [True], BUSY), (0.4, [False, False, True], BUSY)])  # the last one stays
def test_a_late_answer_is_the_machines_fault_only_if_others_had_the_cpu_time(monkeypatch, cpu,
                                                                           states, said):
    looks = itertools.chain(states, itertools.repeat(states[-1]))
    monkeypatch.setattr(session_module, "times", lambda pid: (5.0, 7.0))
    monkeypatch.setattr(session_module, "look_below", lambda pid: (5.0 + cpu, next(looks)))
    with open_session("hangs_at_import.py") as session:
        session.start()
        session.timeout = 1.0
        with pytest.raises(SubmissionError) as caught:
            session.load("double", None, ("x",))
    error = caught.value
    assert (error.outcome, error.fatal) == ("timeout", True) and error.sentence.startswith(said)
    assert error.waited_for_cpu == (said == BUSY)


def test_an_answer_that_is_there_is_read_however_late_this_process_looks(monkeypatch):
    monkeypatch.setattr(session_module, "look_below", lambda pid: (9.0, False))
    source = b"def double(x):\n    return x * 2\n"
    with Session(Worker(source, "problem_2.py", device="cpu", interpret=False), 60) as session:
        session.load("double", None, ("x",))
        session.timeout = 0.5
        send = session._send

        def send_and_wait(data):
            send(data)
            time.sleep(0.9)  # twice: past three limits, as if others had the CPUs
        monkeypatch.setattr(session, "_send", send_and_wait)
        assert torch.equal(session.run(double_call()).outputs[0]["y"], 2 * X)


@pytest.mark.parametrize(("cpu", "outcome"), [(2.0, "timeout"), (0.5, "pass")])
def test_what_others_keep_a_worker_waiting_for_a_cpu_does_not_count(monkeypatch, cpu, outcome):
    source = b"import time\ndef double(x):\n    time.sleep(2.5)\n    return x * 2\n"
    with Session(Worker(source, "problem_2.py", device="cpu", interpret=False), 60) as session:
        session.load("double", None, ("x",))
        session.timeout = 2.0
        monkeypatch.setattr(session_module, "times", lambda pid: (0.0, 0.0))
        monkeypatch.setattr(session_module, "look_below", lambda pid: (cpu, True))
        try:
            session.run(double_call())
            got = "pass"
        except SubmissionError as error:
            got = error.outcome
    assert got == outcome


def test_the_time_for_which_a_worker_waited_is_not_the_stages(monkeypatch):
    waited = iter((1.0, 31.0))
    with open_session("answers.py") as session:
        session.start()
        session.before, session.clock = (0.0, 1.0), Clock(600)
        monkeypatch.setattr(session_module, "times", lambda pid: (0.0, next(waited)))
        before = session.clock.end
        run(session, "unwritten")
    assert session.clock.end == pytest.approx(before + 30)


def test_a_stage_that_is_over_ends_the_request_under_way():
    with open_session("hangs_in_call.py") as session:
        session.load("double", None, ("x",))
        session.clock = Clock(0.5)
        with pytest.raises(SubmissionError) as caught:
            session.run(double_call())
    error = caught.value
    assert (error.outcome, error.id, error.fatal) == ("timeout", "", True)
    assert error.sentence == \
        "the stage's 0.5 s (--stage-timeout) ran out in a call of the entry point"


def test_a_worker_that_is_gone_answers_nothing_more():
    with open_session("leaves_its_process.py") as session:
        session.load("double", None, ("x",))
        for sentence in ("exit code 0", "ended earlier"):
            with pytest.raises(SubmissionError, match=sentence):
                session.run(double_call())


def test_children_left_behind_neither_stall_the_grader_nor_outlive_it():
    with open_session("leaves_children.py") as session:
        session.load("double", None, ("x",))
        with pytest.raises(SubmissionError, match="exit code 3"):  # stalled: no answer within 60 s
            session.run(double_call())
        folder = session.worker.folder
    assert not folder.exists()
    mark = f"HOME={folder}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert mark not in entry.read_bytes()
        except OSError:
            continue


def test_the_worker_sees_a_clean_folder_and_a_clean_environment(monkeypatch):
    monkeypatch.setenv("SECRET_SEED", "42")
    source = (
        b"import os, sys, torch\n"
        b"def double(x):\n"
        b"    clean = 'SECRET_SEED' not in os.environ and os.listdir('.') == ['problem_2.py']\n"
        b"    alone = not any('grader' in m for m in sys.modules if not m.startswith('_'))\n"
        b"    return torch.tensor([float(clean), float(alone)])\n"
    )
    spec = (OutputSpec("y", (2,), torch.float32),)
    with Session(Worker(source, "problem_2.py", device="cpu", interpret=False), 60) as session:
        session.load("double", None, ("x",))
        assert session.run(double_call(outputs=spec)).outputs[0]["y"].tolist() == [1.0, 1.0]


def test_neither_worker_nor_folder_outlive_a_killed_parent(tmp_path):
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from grader.host.processes import ForkServer, Worker\n"
        "from grader.host.session import Session\n"
        "s = Session(Worker(b'print(1)', 'a.py', device='cpu', interpret=False), 60)\n"
        "try: s.load('x', None, ())\n"
        "except Exception: pass\n"
        "print(ForkServer.running().process.pid, flush=True); time.sleep(600)\n"
    )
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", script, root], stdout=subprocess.PIPE,
                              env={**os.environ, "TMPDIR": str(tmp_path)})
    fork_server = int(parent.stdout.readline())
    assert list(tmp_path.iterdir())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 600
    while _is_running(fork_server) or list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "the fork server or the worker's folder is still there"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
