"""What a right file visits in vain is told, and a tile's slack on either side is not."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grader.course import case_table
from grader.course.calls import SubmissionError
from grader.course.correctness import answer
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host.options import Options, open_session
from grader.judge import context, grade, interpreter_check, wasted_tiles
from grader.judge.context import GradingContext
from grader.report.results import Check, StageResult
from grader.report.screen import Reporter

ROOT = Path(__file__).parents[2]
OPTIONS = Options(ROOT, "cpu", seed=1, timeout=60.0)
ALL = 99  # tiles too many: no border at all

# Every border of every stage's walks: text of the solved file, and that text with TILES too many.
DIAGONAL = ("range(start_m, start_m + BLOCK_M, BLOCK_N)",
            "range(start_m, tl.minimum(start_m + BLOCK_M + TILES * BLOCK_N, N), BLOCK_N)")
WINDOW = ("first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N",
          "first = tl.maximum(tl.maximum(start_m - window_size + 1, 0) // BLOCK_N - TILES, 0)"
          " * BLOCK_N")
SINKS = ("sink_end = tl.minimum(sink_size, first)",
         "sink_end = tl.minimum((tl.cdiv(sink_size, BLOCK_N) + TILES) * BLOCK_N, first)")
EDGE = "for edge in range(edge, tl.minimum(edge + (1 + TILES) * BLOCK_N, N), BLOCK_N):\n        "
EDGES = {name: ("if edge < N:\n        " + name, EDGE + name) for name in ("acc", "dq")}
BORDERS = {
    "1 end": (1, "end = min(start_m + BLOCK_M, NQ)",
              "end = min(start_m + BLOCK_M + TILES * BLOCK_N, NQ)"),
    "4 end": (4, *DIAGONAL),
    "6 end": (6, *DIAGONAL),
    "6 first": (6, *WINDOW),
    "7 end": (7, *DIAGONAL),
    "7 first": (7, *WINDOW),
    "7 sinks": (7, *SINKS),
    "8 end": (8, *EDGES["acc"]),
    "8 end of dq": (8, *EDGES["dq"]),
    "8 first of dkdv": (8, "first = start_n if CAUSAL else 0",
                        "first = tl.maximum(start_n - TILES * BLOCK_M, 0) if CAUSAL else 0"),
    "9 end": (9, *EDGES["acc"]),
    "9 end of dq": (9, *EDGES["dq"]),
    "9 first": (9, *WINDOW),
    "9 sinks": (9, *SINKS),
    "9 first of dkdv": (9, "first, inner = start_n, start_n + BLOCK_N",
                        "first, inner = tl.maximum(start_n - TILES * BLOCK_M, 0), "
                        "start_n + BLOCK_N"),
    "9 last of dkdv": (9, "tl.minimum(inner - 1 + window_size, N))",
                       "tl.minimum(inner - 1 + window_size + TILES * BLOCK_M, N))"),
}


@pytest.fixture(scope="module")
def sessions():
    """A worker a stage, for one file after the other."""
    opened = {}

    def load(number: int, source: bytes):
        stage = STAGES[number]
        if number not in opened or opened[number].gone:
            opened[number] = open_session(stage, OPTIONS, source)
        opened[number].give(source)
        opened[number].load(stage.entry, stage.attribute, stage.positional)
        return opened[number]

    yield load
    for session in opened.values():
        session.close()


def moved(borders: dict, tiles: int) -> tuple[int, bytes]:
    """A stage, and its solved file with these of its borders so many tiles further out."""
    number = next(iter(borders.values()))[0]
    source = (ROOT / STAGES[number].filename).read_text("utf-8")
    for _, old, new in borders.values():
        assert source.count(old) == 1
        source = source.replace(old, new.replace("TILES", str(tiles)))
    return number, source.encode()


def is_right(session, number: int) -> bool:
    """On four tiles of 64."""
    built = build(replace(wasted_tiles.long_case(STAGES[number], 512), N=256), seed=0)
    reply = session.run(built.call)
    exact = answer(built, "cpu")
    got = reply.outputs[0] | {"d_" + name: x for name, x in reply.grads.items()}
    return all(exact.judge(name, x).accepted for name, x in got.items())


def walked(session, number: int) -> Check | None:
    return wasted_tiles.tiles_check(STAGES[number], OPTIONS, session)


@pytest.mark.interpreter
@pytest.mark.parametrize("border", BORDERS)
def test_a_border_a_tile_too_far_is_slack_and_two_are_needless_work(sessions, border):
    for tiles, outcome in [(1, "pass"), (2, "needless work")]:
        number, source = moved({border: BORDERS[border]}, tiles)
        check = walked(sessions(number, source), number)
        assert check.outcome == outcome, f"{tiles} tiles too far"


@pytest.mark.interpreter
@pytest.mark.parametrize("border", BORDERS)
def test_a_border_a_tile_too_near_gives_wrong_numbers_and_is_never_asked(sessions, border):
    number, source = moved({border: BORDERS[border]}, -1)
    assert not is_right(sessions(number, source), number)


@pytest.mark.interpreter
@pytest.mark.parametrize("number", [n for n, stage in STAGES.items() if stage.loop_steps])
def test_a_file_that_visits_everything_is_right_and_told_where(sessions, number):
    borders = {name: row for name, row in BORDERS.items() if row[0] == number}
    _, source = moved(borders, ALL)
    session = sessions(number, source)
    assert is_right(session, number)
    check = walked(session, number)
    assert (check.name, check.group, check.outcome) == ("needless-work", "walk", "needless work")
    *found, rule, step = check.lines
    assert found[0] == "Query tile 0 visits 8 key tiles; its queries see keys in only 1 of them."
    assert len(found) == (2 if number >= 8 else 1)
    if number >= 8:
        assert found[1] == "Key tile 7 visits 8 query tiles; only 1 of them has a query that can " \
            "see its keys."
    assert rule.startswith("tip: query i sees keys") and step.startswith("look at step")
    assert not {"program", "grid"} & set(check.message.split())


# ------------------------------------------------------------------- judging
def judged(number: int, read: torch.Tensor, tiles=(16, 16), side=wasted_tiles.QUERIES) -> Check:
    """read (N, N): what tiles of 16 rows read, as a worker would say."""
    N = len(read)
    tile = torch.arange(N) // 16
    both, together = torch.zeros(2, 2, N, N, dtype=torch.bool)
    both[side], together[side] = read, tile[:, None] == tile[None, :]
    stage = STAGES[number]
    return wasted_tiles.judge_loop(stage, wasted_tiles.long_case(stage, N), both, together, tiles)


def causal_walk(N: int, late: int = 0) -> torch.Tensor:
    """late: rows read past the end of the query tile."""
    last = torch.arange(N) // 16 * 16 + 15
    return torch.arange(N)[None, :] <= last[:, None] + late


@pytest.mark.parametrize(("late", "outcome"), [(0, "pass"), (31, "pass"), (32, "needless work")])
def test_a_walk_from_anywhere_may_take_a_tile_too_many(late, outcome):
    assert judged(4, causal_walk(128, late)).outcome == outcome
    backwards = causal_walk(128, late).T  # the keys' tiles begin and end where the queries' do
    first = torch.arange(128) // 16 * 16
    assert judged(8, torch.arange(128)[None, :] >= first[:, None] - late,
                  side=wasted_tiles.KEYS).outcome == outcome
    assert judged(4, backwards).outcome == "needless work"


def test_large_query_tiles_and_small_key_tiles_have_the_slack_of_the_large():
    assert judged(4, causal_walk(128, late=31), tiles=(16, 4)).outcome == "pass"


def test_the_tiles_that_are_counted_are_those_of_the_file():
    check = judged(4, torch.ones(128, 128, dtype=torch.bool), tiles=(16, 4))
    assert check.lines[0].startswith("Query tile 0 visits 32 key tiles; its queries see")
    assert check.lines[0].endswith(" keys in only 4 of them.")


def test_sinks_are_visible_from_everywhere_and_what_lies_between_is_not():
    N, first = 128, torch.arange(128) // 16 * 16
    key = torch.arange(N)[None, :]
    window = (key >= first[:, None] - 16) & causal_walk(N)
    assert judged(7, window | (key < 16)).outcome == "pass"
    assert judged(6, window | (key < 16)).outcome == "needless work"
    assert judged(7, causal_walk(N)).outcome == "needless work"


def test_a_walk_that_nobody_made_is_none():
    assert judged(9, torch.zeros(128, 128, dtype=torch.bool)).outcome == "pass"


# ------------------------------------------------------------------- asking
class Worker(contextlib.AbstractContextManager):
    """Stands in for a Session: says what it was given, and notes what it was asked."""

    timeout = 60.0

    def __init__(self, tile: int = 16, walk: bool = True):
        self.tile, self.made, self.asked = tile, walk, []

    def __exit__(self, *error):
        pass

    def walk(self, call):
        N = call.inputs["q"].shape[-2]
        self.asked.append(N)
        if len(self.asked) > 9:
            raise AssertionError("asked without end")
        read = torch.ones(2, N, N, dtype=torch.bool)
        return read & self.made, read, (min(self.tile, N), min(self.tile, N) // 2)


@pytest.mark.parametrize(("tile", "asked"), [(1, [128]), (16, [128]), (64, [128, 512]),
                                             (48, [128, 384]), (128, [128, 1024]),
                                             (256, [128, 1024, 2048]), (4096, [128, 1024])])
def test_it_is_asked_longer_only_if_eight_tiles_need_it(tile, asked):
    worker = Worker(tile)
    check = wasted_tiles.tiles_check(STAGES[4], OPTIONS, worker)
    assert worker.asked == asked and (check is None) == (tile > 256)


def test_where_no_rows_are_recognised_a_tenth_is_not_given():
    check = wasted_tiles.tiles_check(STAGES[4], OPTIONS, Worker(walk=False))
    assert check.outcome == "needless work" and "could not be seen" in check.what
    assert check.look_at.startswith("look at step 4.2")


@pytest.mark.interpreter
def test_rows_that_are_loaded_as_their_bits_are_recognised(sessions):
    number, source = moved({"4 end": BORDERS["4 end"]}, ALL)
    source = source.decode().replace(
        "                q, k, v, o, lse, q.stride()",
        "                q, k.view(torch.int32), v.view(torch.int32), o, lse, q.stride()")
    for name in "kv":
        load = f"    {name} = _load({name}_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)"
        source = source.replace(load, f"{load}.to(q.dtype, bitcast=True)")
    assert source.count("int32") == source.count("bitcast") == 2
    check = walked(sessions(number, source.encode()), number)
    assert check.outcome == "needless work" and "visits 8 key tiles" in check.what


def test_what_the_interpreter_cannot_run_is_not_asked_and_loses_nothing():
    worker = Worker()
    worker.walk = lambda call: (_ for _ in ()).throw(SubmissionError("crashed", "no"))
    assert wasted_tiles.tiles_check(STAGES[4], OPTIONS, worker) is None


def counted(number: int, session, has_steps: bool = True, **chosen) -> list[str]:
    """The outcome of the check, if there is one."""
    stage = STAGES[number]
    file = SimpleNamespace(source=b"", steps=["1.1"] * has_steps, state="syntax_error")
    result = StageResult(number, stage.title, stage.points)
    with GradingContext(stage, file, replace(OPTIONS, **chosen), Reporter(io.StringIO()),
                        result) as asked:
        wasted_tiles.count(asked, session, interpreter_check.start(asked))
    return [check.outcome for check in result.checks]


def test_stages_that_skip_nothing_are_not_asked():
    assert [n for n, stage in STAGES.items() if stage.loop_steps] == [1, 4, 6, 7, 8, 9]
    assert counted(5, Worker()) == []


@pytest.mark.parametrize("number", [n for n, stage in STAGES.items() if stage.loop_steps])
def test_the_steps_it_points_at_are_in_the_problem_file(number):
    text = (ROOT / STAGES[number].filename).read_text("utf-8")
    assert all(f"# BEGIN SOLUTION {step}\n" in text for step in STAGES[number].loop_steps)


def test_beside_a_gpu_a_worker_without_one_is_asked(monkeypatch):
    worker, opened = Worker(), []
    worker.load = lambda *entry: opened.append(entry)
    monkeypatch.setattr(interpreter_check, "ragged_cases", lambda context: [])
    monkeypatch.setattr(context, "open_session", lambda stage, options, *file: (
        opened.append(options.device), worker)[1])
    assert counted(4, None, device="cuda") == ["pass"] and worker.asked == [128]
    assert opened == ["cpu", ("flash_attention_forward", None, ("q", "k", "v", "is_causal"))]


def test_without_a_gpu_the_worker_of_the_cases_is_asked():
    worker = Worker()
    assert counted(4, worker) == ["pass"] and worker.asked == [128]


# ----------------------------------------------------------------- in a grading
@pytest.mark.parametrize(("number", "has_steps", "chosen", "asked"), [
    (4, False, {}, True), (1, True, {}, True), (1, False, {}, False),
    (4, False, {"quick": True}, False), (4, False, {"case": "standard/H1-N1-D1"}, False)])
def test_whom_a_grading_asks(number, has_steps, chosen, asked):
    worker = Worker()
    assert bool(counted(number, worker, has_steps, **chosen)) == bool(worker.asked) == asked


@pytest.mark.interpreter
def test_needless_work_leaves_a_stage_passed_and_is_in_its_report(tmp_path, monkeypatch):
    _, source = moved({"4 end": BORDERS["4 end"]}, ALL)
    (tmp_path / "problem_4.py").write_bytes(source)
    first = case_table.listed(4, "cpu", False)[:1]
    monkeypatch.setattr(case_table, "listed", lambda *settings: first)
    said = io.StringIO()
    result = grade.grade_stage(STAGES[4], replace(OPTIONS, directory=tmp_path), Reporter(said))
    assert (result.outcome, result.points) == ("pass", 90)
    assert [check.outcome for check in result.checks].count("needless work") == 1
    assert "look at step 4.2; more: python autograder.py --hint 4.2" in said.getvalue()
    (tmp_path / "problem_4.py").write_bytes(re.sub(rb"# (BEGIN|END) SOLUTION.*", b"", source))
    result = grade.grade_stage(STAGES[4], replace(OPTIONS, directory=tmp_path), Reporter(said))
    assert result.points == 90 and result.to_fix == ""
    assert "In this course's problem_4.py, this is done in step 4.2. For a" in said.getvalue()
