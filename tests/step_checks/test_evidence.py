"""What is drawn of a wrong step is cut around what is wrong, and is text that JSON can hold."""

import json

import numpy as np
import pytest

from grader.step_checks import evidence
from grader.step_checks.examples import Example, difference
from tests.step_checks.blanks import lights, solved


def tables(one: Example, name: str, got, want) -> dict:
    found = evidence.evidence(one, difference(name, got, want))
    return {(table["role"], table["name"]): table for table in found["tables"]}


def test_tables_show_the_rows_and_columns_around_the_first_wrong_number():
    want = np.arange(16 * 32, dtype=np.float64).reshape(16, 32)
    got = want.copy()
    got[9, 20:22] = np.nan, -np.inf
    found = tables(Example("", {"m_i": np.arange(16.0), "N": 3}, None), "s", got, want)
    assert list(found) == [("given", "m_i"), ("expected", "s"), ("got", "s")]
    table = found["got", "s"]
    assert table["rows"] == list(range(6, 12)) and table["columns"] == list(range(18, 23))
    assert table["wrong"] == [[0, 0, 1, 1, 0] if row == 9 else [0] * 5 for row in range(6, 12)]
    assert table["cells"][3] == ["306", "307", "nan", "-inf", "310"]
    assert found["given", "m_i"]["rows"] == table["rows"]
    assert found["given", "m_i"]["cells"][0] == ["6"] and found["given", "m_i"]["columns"] == [0]
    json.dumps(list(found.values()), allow_nan=False)
    got[9], got[15, 31] = want[9], -1
    last = tables(Example("", {}, None), "s", got, want)["got", "s"]  # as many, up to the corner
    assert last["rows"] == list(range(10, 16)) and last["columns"] == list(range(27, 32))


def test_of_a_tensor_with_heads_the_wrong_head_is_shown():
    want = np.zeros((2, 3, 4, 4))
    got = want.copy()
    got[1, 2, 0, 0] = 1
    found = tables(Example("", {"q": want + 7}, None), "s", got, want)
    assert list(found) == [("given", "q[1, 2]"), ("expected", "s[1, 2]"), ("got", "s[1, 2]")]
    assert found["got", "s[1, 2]"]["cells"][0][0] == "1"


@pytest.mark.parametrize("old, new, kind", [
    ("age < window_size", "age <= window_size", "mask"),
    ("range(first, inner, BLOCK_N)", "range(first + BLOCK_N, inner, BLOCK_N)", "tiles"),
    ("l_i = l_i * alpha", "l_i = l_i", "tables")])
def test_a_wrong_step_carries_its_evidence_into_the_json(old, new, kind):
    assert old in (text := solved(6))
    found = [one.as_dict() for one in lights(text.replace(old, new, 1), 6).values()]
    [step] = [step for step in found if step["light"] == "wrong"]
    assert list(step["evidence"]) == [kind]
    if kind == "mask":
        want, got = ("".join(step["evidence"]["mask"][name]) for name in ("want", "got"))
        differ = [pair for pair in zip(want, got, strict=True) if pair[0] != pair[1]]
        assert set(differ) == {(".", "x")}
    if kind == "tiles":
        loop = step["evidence"]["tiles"]
        more = [right - mine for mine, right in zip(*loop["visits"], strict=True)]
        assert sorted(more) == [0] * (len(more) - 1) + [1]
    assert not any("evidence" in step for step in found if step["light"] == "right")
