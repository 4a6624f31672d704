"""The exercises and their answers: python -m guide.questions writes exercises.json from them.

Students get that file.  It has the questions, explanations of three common wrong answers each, and
hashes in place of the right and wrong numbers.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from guide import worked
from guide.exercises import FILE, hashes


@dataclass(frozen=True)
class Exercise:
    """question, because: Markdown.  answer() -> numbers.  slips: (wrong numbers, why)."""

    question: str
    answer: Callable[[], tuple[float, ...]]
    because: str
    slips: tuple[tuple[Callable[[], tuple[float, ...]], str], ...]

    def hidden(self, number: str) -> dict:
        """The exercise as in exercises.json, without any number of an answer."""
        return {"number": number, "question": self.question,
                "answer": hashes(number, self.answer()),
                "slips": [[hashes(number, numbers()), words] for numbers, words in self.slips]}


def shown(numbers) -> str:
    return ", ".join(worked.show(float(x)) for x in numbers)


def page() -> str:
    """The contents of exercises.json."""
    rows = [json.dumps(one.hidden(number), ensure_ascii=False) for number, one in EXERCISES.items()]
    return "[\n" + ",\n".join(rows) + "\n]\n"


EXERCISES: dict[str, Exercise] = {}


def exercise(number, question, answer, because, *slips):
    if len(slips) != 3:
        raise ValueError(f"want three slips in exercise {number}; got {len(slips)}")
    EXERCISES[number] = Exercise(question, answer, because, slips)


def _state(scores, tile=2):
    *_, last = worked.online(scores, [0.0] * len(scores), tile)
    return last


exercise(
    "0.1",
    "A GPU has 132 multiprocessors, and each holds 2 programs of a kernel at a time. The grid has "
    "600 programs of equal length. In how many waves do they run, and how many programs are in "
    "the last wave?",
    lambda: (3, 72), "264 run side by side: 264 + 264 + 72.",
    (lambda: (2, 72), "The last, partly filled wave counts too: round up."),
    (lambda: (5, 72), "Each multiprocessor holds two programs: 264 run at once, not 132."),
    (lambda: (3, 264), "The last wave holds what is left: 600 - 2 * 264."))
exercise(
    "0.2",
    "Attention without a mask, one head, N = 4096, D = 64, bfloat16. How many GFLOP do its two "
    "products take, and how many MiB does the score matrix take?",
    lambda: (4 * 4096**2 * 64 / 1e9, 4096**2 * 2 / 2**20),
    "Two products of 2 N² D each are 4 N² D; N² numbers of 2 bytes.",
    (lambda: (2 * 4096**2 * 64 / 1e9, 32), "That is one product: q kᵀ. P v takes as much again."),
    (lambda: (4 * 4096**2 * 64 / 1e9, 16), "That counts numbers: a bfloat16 has 2 bytes."),
    (lambda: (4 * 4096**2 * 64 / 1e9, 64), "A bfloat16 has 2 bytes, not 4."))
exercise(
    "1.1",
    "A row holds m_i = 2, l_i = 3 after some tiles. The next tile has the scores 4 and 2. What "
    "are m_i, alpha and l_i after it?",
    lambda: (4, math.exp(-2), 3 * math.exp(-2) + 1 + math.exp(-2)),
    "alpha = exp(2 - 4); l_i = alpha · 3 + exp(0) + exp(-2).",
    (lambda: (4, math.exp(2), 3 * math.exp(2) + 1 + math.exp(-2)),
     "alpha is upside down: what was summed with the smaller maximum must shrink."),
    (lambda: (4, math.exp(-2), 3 + 1 + math.exp(-2)), "The old l_i is not multiplied by alpha."),
    (lambda: (4, math.exp(-2), math.exp(-2) * (3 + 1 + math.exp(-2))),
     "alpha belongs to the old sum only: p is already taken from the new maximum."))
exercise(
    "1.2",
    "The same row ends with m_i = 4, l_i = 2, acc = 5. What are o and lse?",
    lambda: (2.5, 4 + math.log(2)), "o = acc / l_i and lse = m_i + log(l_i).",
    (lambda: (2.5, math.log(2)), "The maximum was subtracted on the way: lse needs it back."),
    (lambda: (2.5, 4 + math.log2(2)), "lse is a natural logarithm."),
    (lambda: (5, 4 + math.log(2)), "acc is not divided yet: o = acc / l_i."))
exercise(
    "2.1",
    "N = 300, BLOCK_N = 128. How many programs does the example kernel need, and how many "
    "lanes of the last one are switched off?",
    lambda: (3, 84), "cdiv(300, 128) = 3; the last one covers 256 ... 383, and 300 ... 383 are "
    "outside.",
    (lambda: (2, 84), "Round up: with two programs, elements 256 ... 299 are never computed."),
    (lambda: (3, 44), "44 lanes are inside; the others are switched off."),
    (lambda: (3, 83), "300 ... 383 are 84 numbers: both ends count."))
exercise(
    "2.2",
    "x is a float16 view of shape (M, N) = (100, 50) with strides (1, 100). How many elements "
    "after the first is x[3, 7]?",
    lambda: (703,), "3 · 1 + 7 · 100.",
    (lambda: (157,), "That assumes contiguous rows: 3 · 50 + 7. Use the strides."),
    (lambda: (307,), "Rows and columns are exchanged: the row index takes the first stride."),
    (lambda: (1406,), "Offsets count elements, not bytes: Triton multiplies by the size itself."))
exercise(
    "3.1",
    "N = 200, BLOCK_N = 64, one query whose 200 scores are all 0. The last tile is not masked, "
    "and elements outside read 0. What is l_i, and what should it be?",
    lambda: (256, 200), "56 keys that do not exist score 0, and exp(0) = 1 each.",
    (lambda: (200, 200), "A score of 0 is a weight of 1, not of 0."),
    (lambda: (264, 200), "Four tiles of 64 hold 256 keys, 56 of them outside."),
    (lambda: (256, 192), "The whole tiles hold 192 keys, and 8 more are in the last one."))
exercise(
    "3.2",
    "In base 2, a row ends with m_i = 3 and l_i = 4. What is lse, as a natural logarithm?",
    lambda: (5 * math.log(2),), "(3 + log2(4)) · ln 2.",
    (lambda: (5,), "That is in base 2: multiply by ln 2."),
    (lambda: (3 + math.log(4),), "m_i is in base 2 as well: convert the whole sum."),
    (lambda: (5 / math.log(2),), "ln x = log2(x) · ln 2: multiply, not divide."))
exercise(
    "4.1",
    "N = 512, tiles of 64. How many key tiles do all query tiles of a head visit together, and "
    "how many of these need the mask?",
    lambda: (worked.counted(512, 64)["whole"] + 8, 8), "1 + 2 + … + 8 = 36, one diagonal each.",
    (lambda: (64, 8), "There are 64 tiles, but those right of the diagonal are never visited."),
    (lambda: (28, 8), "28 are whole; the diagonal tiles are visited too."),
    (lambda: (36, 36), "Left of the diagonal every query sees every key: no mask there."))
exercise(
    "4.2",
    "N = 100, tiles of 64, causal. In the second diagonal tile, how many of the 64 · 64 pairs "
    "have an existing query and are visible?",
    lambda: (36 * 37 / 2,), "Rows 64 … 99 exist; row r of the tile sees r + 1 of its keys.",
    (lambda: (64 * 65 / 2,), "Rows 100 … 127 do not exist."),
    (lambda: (36 * 35 / 2,), "A query sees itself: the diagonal counts."),
    (lambda: (36 * 36,), "Keys after the query are hidden within the tile, too."))
exercise(
    "5.1",
    "HQ = 24, HKV = 6. Which key/value head does query head 13 read? And which one would it "
    "read if the heads were interleaved, which is wrong here?",
    lambda: (13 // 4, 13 % 6), "The group has 24 / 6 = 4 heads: 13 // 4 = 3. Interleaved: 13 % 6.",
    (lambda: (13 // 6, 13 % 6), "Divide by the size of the group, HQ // HKV, not by HKV."),
    (lambda: (1, 3), "The two are exchanged: contiguous groups are right here."),
    (lambda: (13 % 4, 13 % 6), "13 % 4 is its place within the group."))
exercise(
    "5.2",
    "32 layers, HQ = 32, HKV = 8, D = 128, bfloat16. How many KiB does one token add to the "
    "KV cache?",
    lambda: (worked.cache_bytes(8, 1, 128, 32) / 1024,), "2 tensors · 32 layers · 8 heads · 128 · "
    "2 bytes.",
    (lambda: (512,), "Only the 8 key/value heads are kept, not 32."),
    (lambda: (64,), "k and v are both kept."),
    (lambda: (4,), "Every layer keeps its own."))
exercise(
    "6.1",
    "W = 150, tiles of 64, the query tile at 320. What are first and inner?",
    lambda: (128, 256), "320 − 149 = 171, down to 128; 320 + 64 − 150 = 234, up to 256.",
    (lambda: (171, 256), "first is rounded down to a tile's border."),
    (lambda: (128, 192), "inner is rounded up: the tile at 192 still holds hidden keys."),
    (lambda: (192, 256), "first is rounded down, not up: keys 171 … 191 are seen."))
exercise(
    "6.2",
    "How many pairs of query and key are visible with N = 1000 and W = 10?",
    lambda: (10 * 11 / 2 + 990 * 10,), "The first 10 queries see 1, 2, …, 10 keys, the others 10.",
    (lambda: (10000,), "The first queries have fewer than 10 keys before them."),
    (lambda: (11 * 12 / 2 + 989 * 11,), "The window includes the query's own key: W keys in all."),
    (lambda: (9 * 10 / 2 + 991 * 9,), "The query's own key is one of the W keys, which makes 10."))
exercise(
    "7.1",
    "W = 4, Z = 3 sinks. How many keys does query 5 see, and how many does query 9?",
    lambda: (6, 7), "Query 5: sinks 0, 1, 2 and the window 2, 3, 4, 5: key 2 counts once. "
    "Query 9: 0, 1, 2 and 6, 7, 8, 9.",
    (lambda: (7, 7), "Key 2 is a sink and in the window of query 5: it counts once."),
    (lambda: (4, 4), "The sinks stay visible in addition to the window."),
    (lambda: (6, 8), "The window includes the query's own key: 6, 7, 8, 9."))
exercise(
    "7.2",
    "Tiles of 64, W = 128, Z = 100 sinks, the query tile at 192. Where does the sinks' phase end, "
    "and how many key tiles does it visit?",
    lambda: (64, 1), "first = (192 − 127) // 64 · 64 = 64, and the phase may not reach into it.",
    (lambda: (100, 2), "Tile 64 … 127 is the window's already: its keys would be counted twice."),
    (lambda: (64, 2), "range(0, 64, 64) is one tile."),
    (lambda: (65, 2), "first is rounded down to a tile's border: 64."))
exercise(
    "8.1",
    "A row of P is (0.5, 0.25, 0.25), its dP is (4, 0, 8). What are delta and dS?",
    lambda: (4, 0, -1, 1), "delta = 0.5 · 4 + 0.25 · 8 = 4; dS = P (dP − 4).",
    (lambda: (4, 2, 0, 2), "That is P · dP: delta is not subtracted."),
    (lambda: (12, -4, -3, -1), "delta is the sum of P · dP, not of dP."),
    (lambda: (4, 0, -4, 4), "dS has the factor P."))
exercise(
    "8.2",
    "HQ = 8, HKV = 2, N = 1024, tiles of 64, B = 1. How many programs does dq's kernel have, and "
    "how many does dkdv's?",
    lambda: (128, 32), "dq has a program for each tile of a query head, dkdv for each tile of a "
    "key/value head: 16 · 8 and 16 · 2.",
    (lambda: (128, 128), "dk and dv have HKV heads; a program sums over its group."),
    (lambda: (32, 32), "dq has HQ heads."),
    (lambda: (32, 128), "The two are exchanged."))
exercise(
    "9.1",
    "One query with the scores 0 and 0 and a sink logit of ln 2. What are lse and the sum of "
    "its row of P?",
    lambda: (math.log(4), 0.5), "exp(ln 2) + 1 + 1 = 4.",
    (lambda: (math.log(2), 1), "The sink's weight belongs to the denominator."),
    (lambda: (math.log(2 + math.log(2)), 2 / (2 + math.log(2))),
     "The logit joins as exp(logit), like every score."),
    (lambda: (math.log(4), 1), "The row sums to 1 only with the sink's own weight."))
exercise(
    "9.2",
    "That query has o = 3 and do = 2, D = 1. What does it add to the gradient of the sink logit?",
    lambda: (-0.5 * 6,), "p = exp(ln 2 − ln 4) = 0.5, delta = 6, dP = 0: dS = 0.5 (0 − 6).",
    (lambda: (3,), "The sign: dS = P (dP − delta), and the sink's dP is 0."),
    (lambda: (-6,), "The sink's weight P is a factor: 0.5."),
    (lambda: (-1,), "delta is do · o = 6, not do."))


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
