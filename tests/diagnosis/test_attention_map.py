"""The effective matrix is the one that is used, and what is wrong with it is said and drawn."""

from xml.etree import ElementTree

import pytest
import torch

import reference
from grader.course.cases import Case
from grader.diagnosis import attention_map, drawing

SVG = "{http://www.w3.org/2000/svg}"
CASE = Case(4, "standard", 64, D=16, HQ=2, HKV=2, is_causal=True)


def ask(spoil):
    """A submission whose mask spoil changes.  -> ask(built), gradients included."""
    def answer(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        keep = spoil(reference.keep_mask(case.N, case.N, True))
        s = (t["q"] @ t["k"].mT * case.D**-0.5).masked_fill(~keep, -torch.inf)
        p = torch.softmax(s, -1)
        found = {"o": (p @ t["v"]).float()}
        if case.grads:
            do = built.call.douts["o"].view().double()
            dp = do @ t["v"].mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            found["d_v"], found["d_q"] = (p.mT @ do).float(), (ds @ t["k"] * case.D**-0.5).float()
        return found
    return answer


def later(keep):
    query = torch.arange(len(keep))[:, None]
    return keep | (torch.arange(len(keep))[None] == query + 1)


@pytest.mark.parametrize("tensor", ["o", "d_v", "d_q"])
def test_the_matrix_of_a_right_function_is_the_expected_one(tensor):
    case = CASE if tensor == "o" else Case(8, "standard", 64, D=16, HQ=2, HKV=2, is_causal=True,
                                           grads=("q", "k", "v"))
    matrix = attention_map.read(ask(lambda keep: keep), case, 1, tensor)
    torch.testing.assert_close(matrix.found, matrix.expected, atol=1e-6, rtol=1e-5)
    assert attention_map.describe(matrix) is None
    assert drawing.caption(matrix).startswith("These weights are all right")


def test_extra_keys_are_found_with_what_they_have_in_common():
    id, text = attention_map.describe(attention_map.read(ask(later), CASE, 0))
    assert id == "effect-extra-keys" and "query 0 sees key 1" in text.lower()
    assert "query - key = -1" in text


def test_missing_keys_are_found():
    def hidden(keep):
        keep = keep.clone()
        keep[1:, 0] = False
        return keep
    id, text = attention_map.describe(attention_map.read(ask(hidden), CASE, 0))
    assert id == "effect-missing-keys" and "always with key 0" in text


def weights(change):
    """As ask, for a submission that changes its weights, (queries, keys)."""
    def answer(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        keep = reference.keep_mask(case.N, case.N, True)
        s = (t["q"] @ t["k"].mT * case.D**-0.5).masked_fill(~keep, -torch.inf)
        return {"o": (change(torch.softmax(s, -1), s) @ t["v"]).float()}
    return answer


def doubled(p, s):
    p = p.clone()
    p[..., :, :16] *= 2
    return p / p.sum(-1, keepdim=True)


@pytest.mark.parametrize("change, id, said", [
    (lambda p, s: torch.softmax(s * 40, -1), "effect-too-sharp", "too sharp"),
    (lambda p, s: torch.softmax(s * 1.4427, -1), "effect-too-sharp",
     "1.443 (log2(e)) times as large"),
    (lambda p, s: torch.softmax(s * 0.25, -1), "effect-too-flat",
     "0.25 (1 / sqrt(D)) times as large"),
    (lambda p, s: torch.softmax(s.masked_fill(s == -torch.inf, 0), -1), "effect-hidden-weights",
     "gives weight to key 1, which should be hidden"),
    (lambda p, s: torch.softmax(s.clamp_min(-3), -1), "effect-hidden-weights",
     "does not match its score: it is that of a score of -3. "),
    (lambda p, s: (s > -torch.inf).double() / (s > -torch.inf).sum(-1, keepdim=True),
     "effect-too-flat", "all keys that a query sees have the same weight"),
    (lambda p, s: p * 0.5, "effect-row-sums", "add up to 0.5 instead of 1."),
    (doubled, "effect-weights", "with one of the first 16 keys"),
    (lambda p, s: torch.where(p < 0.01 * p.amax(-1, keepdim=True), 0, p), "effect-small-weights",
     "each of them less than 1 % of the largest weight in its row"),
    (lambda p, s: p.flip(-1), "effect-weights", "do not follow the scores of q and k. Are q, k"),
])
def test_a_key_is_not_said_to_be_hidden_where_no_mask_hides_it(change, id, said):
    found = attention_map.describe(attention_map.read(weights(change), CASE, 0))
    assert found[0] == id and said in found[1][0].lower() + found[1][1:], found


def test_a_count_of_wrong_pairs_says_where_they_are_or_that_they_are_everywhere():
    pairs = torch.zeros(150, 150, dtype=torch.bool)
    pairs[3, 140] = pairs[50, 20] = True
    assert attention_map._pattern(pairs, CASE) == (
        ". This happens for 2 pairs among queries 3-50 and keys 20-140.")
    pairs[0, 0] = pairs[0, 149] = pairs[149, 0] = True
    assert attention_map._pattern(pairs, CASE).endswith(" 5 pairs, spread over the whole matrix.")


@pytest.mark.parametrize("queries, keys, said", [
    (range(5, 20), range(3), "and in each of them the key is a sink inside the window."),
    (range(40, 60), range(3), "and in each of them the key is a sink."),
    (range(5, 20), range(4, 5), "always with key 4, the first one after the sinks."),
    (range(5, 20), range(3, 4), "always with key 3."),
    (range(40, 60), range(9), "all of them with one of the first 9 keys.")])
def test_wrong_pairs_are_set_beside_the_sinks(queries, keys, said):
    case = Case(7, "standard", 64, D=16, HQ=2, HKV=2, is_causal=True, window=23, sinks=4)
    pairs = torch.zeros(64, 64, dtype=torch.bool)
    pairs[queries.start:queries.stop, keys.start:keys.stop] = True
    assert attention_map._pattern(pairs, case).endswith(said)


def test_a_factor_of_dq_is_not_said_of_the_weights():
    case = Case(8, "standard", 64, D=16, HQ=2, HKV=2, is_causal=True, grads=("q", "k", "v"))

    def unscaled(built):
        found = ask(lambda keep: keep)(built)
        return found | {"d_q": found["d_q"] * 4}
    matrix = attention_map.read(unscaled, case, 1, "d_q")
    assert bool(matrix.wrong.any()) and attention_map.describe(matrix) is None


def test_the_picture_fits_a_terminal_and_marks_what_differs():
    lines = drawing.text(attention_map.read(ask(later), CASE, 0))
    assert all(len(line) <= 80 for line in lines)
    assert any("X" in line.split("   ")[-1] for line in lines[3:-4])
    assert lines[-1].startswith("Look at query 0, key 1: ")


def test_the_plot_is_written(tmp_path):
    drawing.plot(attention_map.read(ask(later), CASE, 0), tmp_path / "matrix.svg")
    tree = ElementTree.parse(tmp_path / "matrix.svg")
    assert [x.text for x in tree.iter(SVG + "title")][1:] == [
        "The expected mask", "Your mask", "The difference"]
    assert any("Look at query 0, key 1: " in x.text for x in tree.iter(SVG + "text"))


def test_each_wrong_weight_is_drawn_once_as_what_is_wrong_with_it():
    wrong = drawing._wrong(matrix := attention_map.read(ask(later), CASE, 0))
    assert (sum(wrong.values()) == matrix.wrong.numpy()).all()
    assert wrong["seen"][0, 1] and not wrong["unseen"].any()


@pytest.mark.parametrize("stage, tile", [(1, 128), (3, 64), (6, 64)])
def test_what_is_drawn_has_more_than_one_tile_where_the_case_has(stage, tile):
    case = Case(stage, "standard", 512, D=16, HQ=2, HKV=2, is_causal=True)
    matrix = attention_map.read(ask(lambda keep: keep), case, 0)
    assert len(matrix.found) > tile
    assert f"mark tiles of {tile}." in " ".join(drawing.text(matrix))


def test_missing_keys_that_only_a_window_would_hide_are_said_to_be_so():
    def last_30(keep):
        return keep & torch.ones_like(keep).triu(-29)
    _, text = attention_map.describe(attention_map.read(ask(last_30), CASE, 0))
    assert text.endswith(" pairs, as if there were a window of 30 keys.")


def test_a_query_head_that_dv_of_its_head_lacks_is_said_to_be_left_out():
    case = Case(5, "standard", 40, D=16, HQ=4, HKV=2, is_causal=True, grads=("q", "k", "v"))

    def of_other_heads(built):  # query head h counts for head h % HKV
        do, case = built.call.douts["o"].view().double(), built.case
        dv = torch.stack([do[:, h::case.HKV].sum(1) for h in range(case.HKV)], 1)
        return {"d_v": dv.float()}

    matrix = attention_map.read(of_other_heads, case, 1, "d_v")
    assert attention_map.describe(matrix) == ("effect-head-left-out", (
        "In the code that computes dk and dv, query head 1 has no part in v.grad of key/value "
        "head 0; it has one in that of key/value head 1."))
