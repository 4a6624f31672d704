"""Checks answers to the guide's exercises.

    python -m guide.exercises              all questions
    python -m guide.exercises 4.1          one of them
    python -m guide.exercises 4.1 36 36    is it right?

An answer is a number, or several in a row; three digits are enough.  Common wrong answers are
explained.  exercises.json holds hashes of the numbers; guide/questions.py, which students do not
have, makes it.
"""

import json
import math
import sys
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("exercises.json")
TOLERANCE = 5e-3


@cache
def exercises() -> dict[str, dict]:
    """Number -> question, answer, slips; numbers are hashed."""
    return {one["number"]: one for one in json.loads(FILE.read_text(encoding="utf-8"))}


def _hash(text: str) -> str:
    """32-bit FNV-1a: it hides a number from a glance, not from a search."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def _three_digits(x: float) -> str:
    digits, exponent = f"{x:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def _keys(x: float) -> list[str]:
    """The texts that identify an answer x: three digits, and itself if it is an integer."""
    return [_three_digits(x), *[str(int(x))] * (math.isfinite(x) and float(x).is_integer())]


def hashes(number: str, numbers) -> list[list[str]]:
    """For each number of an answer the hashes that count as equal: integers exactly, others to
    three digits, as one writes them by hand."""
    found = []
    for i, want in enumerate(numbers):
        keys = {str(int(want))}
        if not float(want).is_integer():
            step = 10.0 ** (math.floor(math.log10(abs(want))) - 2)
            near = (want + k * step for k in range(-7, 8))
            keys = {_three_digits(x) for x in map(float, map(_three_digits, near))
                    if math.isclose(x, want, rel_tol=TOLERANCE)}
        found.append(sorted(_hash(f"{number}/{i}/{key}") for key in keys))
    return found


def _fits(number: str, got, hashed) -> bool:
    return len(got) == len(hashed) and all(
        any(_hash(f"{number}/{i}/{key}") in one for key in _keys(x))
        for i, (x, one) in enumerate(zip(got, hashed, strict=True)))


def judge(number: str, got: tuple[float, ...]) -> tuple[bool, str]:
    """-> whether it is right; one line that says so."""
    one = exercises()[number]
    if _fits(number, got, one["answer"]):
        return True, f"{number}: right."
    if len(got) != len(one["answer"]):
        return False, f"{number}: want {len(one['answer'])} numbers; got {len(got)}."
    for hashed, words in one["slips"]:
        if _fits(number, got, hashed):
            return False, f"{number}: not yet. {words}"
    return False, f"{number}: not right, and none of the usual slips."


def _number(text: str) -> float:
    """ "−3," -> -3.0: accepts the guide's minus sign and a comma."""
    return float(text.strip(",").replace("−", "-"))


def main(arguments: list[str]) -> int:
    try:
        number, got = (arguments or [""])[0], tuple(map(_number, arguments[1:]))
        if arguments and number not in exercises():
            raise ValueError
    except ValueError:
        print(f"want an exercise ({', '.join(exercises())}) and its numbers; got {arguments}")
        return 2
    if not got:
        for one in [exercises()[number]] if number else exercises().values():
            print(f"{one['number']}  {one['question']}")
        return 0
    right, words = judge(number, got)
    print(words)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
