"""What the guide quotes: steps of the problem files by their markers, mistakes by their names."""

import re
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Missing(LookupError):
    """What a page quotes is not there any more."""


class Slip(NamedTuple):
    """A common mistake: the lines that hold it, and what the grader says of it."""

    right: str
    wrong: str
    mistake: str
    rule: str


def step(number: str) -> str:
    """The solution of step "4.2", as it stands in problem_4.py, without its indent."""
    path = ROOT / f"problem_{number.split('.')[0]}.py"
    marker = re.escape(number) + r"\n"
    found = re.search(rf"# BEGIN SOLUTION {marker}(.*?)\n *# END SOLUTION {marker}",
                      path.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise Missing(f"want a step {number} in {path.name}; got none")
    return textwrap.dedent(found[1])


def definition(stage: str, name: str) -> str:
    """A whole function of problem_4.py, with its decorator."""
    path = ROOT / f"problem_{stage}.py"
    found = re.search(rf"^(@[^\n]*\n)?def {re.escape(name)}\(.*?(?=^\S|\Z)",
                      path.read_text(encoding="utf-8").replace("\n):", "\n ):"),
                      re.DOTALL | re.MULTILINE)
    if found is None:
        raise Missing(f"want a function {name} in {path.name}; got none")
    return found[0].replace("\n ):", "\n):").strip()


@cache
def _mutants(stage: int) -> dict[str, dict]:
    path = ROOT / "attacks" / "mutants" / f"stage_{stage}.toml"
    return {m["id"]: m for m in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]}


@cache
def _names() -> dict[str, dict]:
    return tomllib.loads((ROOT / "attacks" / "names.toml").read_text(encoding="utf-8"))


@cache
def _table() -> dict:
    from grader.steps.known import known

    return known()


def slip(stage: int, name: str) -> Slip:
    """A mutant of the grader's catalogue, and the words of the diagnosis that names it, or what the
    catalogue says that it breaks."""
    if name not in _mutants(stage):
        raise Missing(f"want a mutant {name} in attacks/mutants/stage_{stage}.toml; got none")
    mutant, names = _mutants(stage)[name], _names()
    expected = names.get(f"stage_{stage}", {}).get(name) or names["any"].get(name)
    diagnosis = _table().get(expected[0] if isinstance(expected, list) else expected)
    if diagnosis is None or "{" in diagnosis.words:
        return Slip(mutant["old"], mutant["new"], mutant["breaks"], "")
    return Slip(mutant["old"], mutant["new"], diagnosis.words, diagnosis.rule)
