"""Programs, tiles and heads: each of these mistakes is wrong in an example, a right one in none."""

import numpy as np
import pytest

from grader.step_checks import rows
from grader.step_checks.examples import Observed, Pointer


def group(h, HQ, HKV):
    return h // (HQ // HKV)


def wrong_heads(head) -> list[str]:
    found = []
    for example in rows.heads().examples():
        given, made = example.given, {}
        at = int(head(int(given["h"]), given["HQ"], given["HKV"]))
        for name in "kv":
            batch, heads, *rest = given[f"{name}_strides"]
            made[f"{name}_head"] = Pointer(name, int(given["b"]) * batch + at * heads), *rest
        if example.check(Observed([made] * example.programs, [], {})):
            found.append(example.words)
    return found


@pytest.mark.parametrize("head", [
    *rows.HEADS.values(),
    lambda h, HQ, HKV: round(h * HKV / HQ),
    lambda h, HQ, HKV: int(np.float32(h) * np.float32(HKV / HQ)),  # 0.99999994 for head 41 of 82
    lambda h, HQ, HKV: h // max(HQ // HKV, 2),
    lambda h, HQ, HKV: group(h, HQ, HKV) if HKV > 1 else h,
    lambda h, HQ, HKV: min(h // (HQ // 2), HKV - 1)])
def test_a_wrong_head_of_keys_is_noticed(head):
    assert wrong_heads(group) == [] and wrong_heads(head)


def wrong_rows(bh, start, count=lambda N, T: -(-N // T)) -> list[str]:
    """The examples in which these are wrong, as functions of program, tiles, heads and size."""
    found = []
    for example in rows.rows().examples():
        H, N, T = (example.given[name] for name in ("HQ", "N", "BLOCK_M"))
        tiles, made = count(N, T), []
        for program in range(example.programs):
            one, first = (f(program, tiles, example.programs // tiles, T) for f in (bh, start))
            made.append({"bh": one, "b": one // H, "h": one % H, "start_m": first,
                         "query": first + np.arange(T)})
        if (one := example.check(Observed(made, [], {}))) and not one.note:
            found.append(example.words)
    return found


@pytest.mark.parametrize("wrong, said", [
    ({"bh": 6}, "Program 0 has bh 6; bh must be from 0 to 5."),
    ({"start_m": 8}, "Program 0 has start_m 8; tiles begin at 0, 16, 32, 48."),
    ({"h": 1}, "Program 0 has bh 0, which is head 0 of batch entry 0; here h and b give head 1 of "
     "batch entry 0."),
    ({"query": np.arange(1, 17)},
     "Program 0 has start_m 0, so query should be 0 ... 15; it is 1 ... 16.")])
def test_what_is_wrong_with_a_program_is_one_whole_sentence(wrong, said):
    right = {"bh": 0, "b": 0, "h": 0, "start_m": 0, "query": np.arange(16)}
    found = rows.rows().examples()[0].check(Observed([right | wrong], [], {}))
    assert found.lines == (said,) and found.name == next(iter(wrong))


def test_rows_that_no_program_takes_are_noticed():
    def head(i, tiles, BH, T):
        return i // tiles

    def start(i, tiles, BH, T):
        return i % tiles * T

    assert wrong_rows(head, start) == []
    assert wrong_rows(lambda i, tiles, BH, T: i % BH, lambda i, tiles, BH, T: i // BH * T) == []
    assert wrong_rows(head, lambda i, tiles, BH, T: (tiles - 1 - i % tiles) * T) == []
    for other in (lambda i, tiles, BH, T: i % tiles, lambda i, tiles, BH, T: i * T,
                  lambda i, tiles, BH, T: 0, lambda i, tiles, BH, T: (i % tiles + 1) * T):
        assert wrong_rows(head, other)
    for other in (lambda i, tiles, BH, T: i, lambda i, tiles, BH, T: i % BH,
                  lambda i, tiles, BH, T: 0, lambda i, tiles, BH, T: i // (tiles + 1)):
        assert wrong_rows(other, start)
    assert wrong_rows(head, start, lambda N, T: N // T + 1)
