"""What stands around a step decides whether it can be run on its own."""

import pytest

from grader.assignment import submission
from grader.assignment.record import ROOT
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.starter import blank
from grader.step_checks import blanks
from grader.step_checks.checks import StepChecks
from tests.step_checks.blanks import colours, lights, run_anew, solved, submitted

pytestmark = pytest.mark.usefixtures("no_search")


@pytest.mark.parametrize("old, new, said", [
    ("    # END SOLUTION 3.4\n", "", "`# END SOLUTION 3.4` is missing or moved"),
    ("    # BEGIN SOLUTION 3.4\n", "", "`# BEGIN SOLUTION 3.4` is missing or moved"),
    ("    # END SOLUTION 3.8\n", "", "`# END SOLUTION 3.8` is missing or moved"),
    ("SOLUTION", "", ""),
])
def test_a_missing_marker_is_said_with_its_step(tmp_path, old, new, said):
    (tmp_path / "problem_3.py").write_text(solved(3).replace(old, new), "utf-8")
    file = submission.read(tmp_path, "problem_3.py", "flash_attention_forward")
    with StepChecks(STAGES[3], Options(tmp_path, "cpu", 1, 60.0), file) as found:
        assert found.result() == [] and said in found.why and bool(said) == bool(found.why)


def test_a_name_that_is_thrown_away_belongs_to_no_step():
    maximum = "m_new = torch.maximum(m_i, s.amax(dim=-1))"
    assert maximum in solved(1)
    found = lights(solved(1).replace(
        maximum, "tile_max, _ = s.max(dim=-1)\n            m_new = torch.maximum(m_i, tile_max)"),
        1)
    assert {id: light.lines for id, light in found.items() if light.light != "right"} == {}


def test_a_step_in_changed_surroundings_has_no_light():
    call = "keep = _keep(query[:, None], key[None, :], N)"
    source = solved(3).replace(call, call.replace("N)", "N + 0)"))
    found = lights(source, 3)
    asked = {id: one.light for id, one in run_anew(source).items()}
    assert asked["3.4"] == asked["3.5"] == "none"
    assert asked["3.1"] == asked["3.6"] == "right"
    assert found.keys() == asked.keys()


def test_a_step_that_uses_what_another_makes_has_no_light():
    source = solved(3).replace("    whole = N", "    _ = num_tiles\n    whole = N")
    found = lights(source, 3)
    assert found["3.2"].light == "none"
    assert "num_tiles" in found["3.2"].lines[0]


def test_a_step_that_uses_what_is_not_promised_is_told_that_name():
    found = lights(solved(3).replace("acc = tl.dot(p.to(v.dtype), v,",
                                     "acc = tl.dot(p.to(v.dtype), k,"), 3)
    assert colours(found, "wrong") == ["3.5"]
    assert found["3.5"].seen == (
        "This step uses k, which is not among the values it is given.",)


@pytest.mark.parametrize("id, above, line", [
    ("3.4", "    s = tl.dot(q,", "tl.static_assert(BLOCK_N >= 64)"),
    ("3.2", "    whole = N //", "assert BLOCK_M == BLOCK_N, f'{BLOCK_M} is not {BLOCK_N}'"),
    ("3.2", "    whole = N //", "assert BLOCK_M == BLOCK_N"),
])
def test_a_step_that_asserts_what_only_its_small_tiles_break_has_no_light(id, above, line):
    found = lights(solved(3).replace(above, f"    {line}\n{above}"), 3)
    assert colours(found, "wrong") == []
    assert found[id].light == "none" and "does not hold for the small tiles" in found[id].lines[0]


def test_a_step_that_reads_strides_by_the_names_of_a_named_tuple_has_no_light():
    found = lights(solved(5).replace("_head(k_ptr, k_strides, b, kv_head), ", (
        "(k_ptr + b * k_strides.b + kv_head * k_strides.h, k_strides.n, k_strides.d), ")), 5)
    assert colours(found, "wrong") == [] and found["5.2"].light == "none"


def test_a_step_that_uses_a_constant_of_its_function_has_no_light():
    source = solved(3).replace("    b, h = bh // HQ,",
                               "    tl.static_assert(D >= 16)\n    b, h = bh // HQ,")
    found = lights(source, 3)
    assert found["3.1"].light == "none" and "it uses D" in found["3.1"].lines[0]


def test_a_comment_or_another_layout_does_not_change_the_surroundings():
    source = solved(3)
    given = blanks.skeletons(source, tuple(submission.steps(source)))
    other = source.replace("    keep = _keep(query[:, None], key[None, :], N)\n",
                           "    keep = _keep(query[:, None],\n        key[None, :], N)  # mine\n\n")
    assert other != source
    assert blanks.skeletons(other, tuple(submission.steps(other))) == given


@pytest.mark.parametrize("old, new, said", [
    ("scale,\n    D: tl.constexpr, BLOCK_D", "scale, D: tl.constexpr, BLOCK",
     "You changed line 68, `def _fwd_kernel(`"),
    ("    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)", "    acc = tl.zeros([BLOCK_M, BLOCK_D])",
     "You changed line 90, `acc = tl.zeros([BLOCK_M, BLOCK_D])`: it was `acc = tl.zeros("
     "[BLOCK_M, BLOCK_D], tl.float32)`"),
    ("_head(v_ptr, v_strides, b, h)", "_head(v_ptr, k_strides, b, h)",  # past column 60
     "You changed line 88, `k_head, v_head = _head(k_ptr, k_strides, b, h), _head(v_ptr, "
     "k_strides, b, h)`: it was `k_head, v_head = "),
    ("    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)\n", "",
     'A given line is missing above line 90, `l_i, m_i = tl.zeros(')])
def test_what_was_changed_around_a_step_is_said(old, new, said):
    source = solved(3).replace(old, new, 1)
    assert source != solved(3)
    found = blanks.Blanks(source, submitted(source, 3).steps)
    assert found.changed("3.2").startswith(said) and not found.changed("3.5")


def test_the_starter_has_the_surroundings_of_the_solved_file():
    for stage in range(1, 10):
        texts = solved(stage), blank(solved(stage))
        first, second = (blanks.skeletons(text, tuple(submission.steps(text)))
                         for text in texts)
        assert first == second


def test_the_record_of_the_surroundings_is_that_of_the_problem_files():
    assert blanks.RECORD.read_text("utf-8") == blanks.record(ROOT), \
        "python -m grader.step_checks.blanks writes it anew"
    assert blanks.LINES.read_text("utf-8") == blanks.record_lines(ROOT)
    assert not any("BEGIN SOLUTION" in line for line in blanks.given_lines().values())
