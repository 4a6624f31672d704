"""Copied steps: taken over where they fit, refused with the reason where they do not."""

import io
import os
import re
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from grader.assignment.submission import blank_steps, steps
from grader.carry import carry, main
from grader.starter import ROOT, blank, problem_files

SOLVED = {n: path.read_text("utf-8") for n, path in problem_files(ROOT).items()}
STAGES = range(4, 10)
WHOLE = "3.3 3.4 3.5 3.7 3.8"  # what stage 4 carries over


@cache
def starter(stage: int) -> str:
    return blank(SOLVED[stage])


def inside(text: str, step: str) -> list[str]:
    """The region's lines."""
    rows = text.splitlines()
    found = next(item for item in steps(text) if item.id == step)
    return rows[found.first_line:found.last_line - 1]


def with_region(text: str, step: str, new: list[str]) -> str:
    rows = text.splitlines()
    found = next(item for item in steps(text) if item.id == step)
    rows[found.first_line:found.last_line - 1] = new
    return "\n".join(rows) + "\n"


def carried(text: str) -> dict[str, str]:
    return {step.id: step.origin for step in steps(text) if step.origin}


# ------------------------------------------------------------ the real problem files
@pytest.mark.parametrize("stage", STAGES)
def test_from_solved_files_every_carried_step_of_a_starter_is_filled(stage):
    text, outcomes = carry(stage, starter(stage), SOLVED)
    assert {o.step.id: o.state for o in outcomes} == dict.fromkeys(carried(text), "filled")
    new = [step.id for step in steps(text) if not step.origin]
    assert list(blank_steps(text)) == new
    for step in new:
        text = with_region(text, step, inside(SOLVED[stage], step))
    assert text == SOLVED[stage]


@pytest.mark.parametrize("stage", STAGES)
def test_a_blank_origin_costs_its_own_steps_and_no_other(stage):
    for origin in sorted(set(carried(SOLVED[stage]).values())):
        number = int(origin.split(".")[0])
        hole = with_region(SOLVED[number], origin,
                           [f'    raise NotImplementedError("step {origin}")'])
        _, outcomes = carry(stage, starter(stage), SOLVED | {number: hole})
        refused = {o.step.id: o.words for o in outcomes if o.state != "filled"}
        assert refused == {step: f"step {origin} of problem_{number}.py is still blank"
                           for step, other in carried(SOLVED[stage]).items() if other == origin}


@pytest.mark.parametrize("stage", STAGES)
def test_a_solved_file_has_it_all_already(stage):
    text, outcomes = carry(stage, SOLVED[stage], SOLVED)
    assert text == SOLVED[stage] and {o.state for o in outcomes} == {"same"}


@pytest.mark.parametrize("stage", STAGES)
def test_it_does_not_matter_whether_the_new_steps_are_written_first(stage):
    text = SOLVED[stage]
    for step in carried(text):
        text = with_region(text, step, inside(starter(stage), step))
    assert carry(stage, text, SOLVED)[0] == SOLVED[stage]


# ------------------------------------------------------------ edited earlier files
def replaced(old: str, new: str, count: int = 0):
    """An edit: every old becomes new; how many there must be."""
    def edit(text: str) -> str:
        assert old in text and count in (0, text.count(old))
        return text.replace(old, new)
    return edit


def region(step: str, *rows: str):
    """An edit: these lines for what is in the region."""
    return lambda text: with_region(text, step, list(rows))


def together(*edits):
    def edit(text):
        for one in edits:
            text = one(text)
        return text
    return edit


LOOP = together(
    region("3.8", "        continue"),
    replaced("    # BEGIN SOLUTION 3.8", "    for _ in ():\n        # BEGIN SOLUTION 3.8"),
    replaced("    # END SOLUTION 3.8", "        # END SOLUTION 3.8"))
TABS = lambda text: re.sub("(?m)^(    )+", lambda m: "\t" * (len(m[0]) // 4), text)  # noqa: E731
# what was done; stage; its edits: stage -> edit, bytes, or None for no file; origins of the steps
# carried (and steps written already); steps refused -> why
CASES = [
    ("nothing", 4, {}, WHOLE, {}),
    ("3.7 is blank", 4, {3: region("3.7", '    raise NotImplementedError("step 3.7")  # TODO')},
     "3.3 3.4 3.5 3.8", {"4.7": "step 3.7 of problem_3.py is still blank"}),
    ("3.7 holds a comment only", 4, {3: region("3.7", "    # i, j = what?", "")},
     "3.3 3.4 3.5 3.8", {"4.7": "step 3.7 of problem_3.py is still blank"}),
    ("3.4 is begun, and still raises", 4,
     {3: replaced("    s = tl.dot(", '    raise NotImplementedError("step 3.4")\n    s = tl.dot(')},
     "3.3 3.5 3.7 3.8",
     {"4.4": "step 3.4 of problem_3.py still has its raise NotImplementedError"}),
    ("3.4 is blank, and 3.5 reads what it is to make", 4, {3: region("3.4", "    ...")},
     "3.3 3.5 3.7 3.8", {"4.4": "step 3.4 of problem_3.py is still blank"}),
    ("3.5 is half written", 4, {3: region("3.5", "    m_new = tl.maximum(m_i,")}, "",
     dict.fromkeys(("4.3", "4.4", "4.5", "4.7", "4.8"),
                   "problem_3.py is not Python: line LINE: '(' was never closed")),
    ("problem 5 is missing", 6, {5: None}, "4.1 3.3 3.4 3.7 3.8",
     {"6.2": "problem_5.py is missing"}),
    ("the markers are deleted", 7,
     {6: lambda text: re.sub(r"(?m)^ *# (BEGIN|END) SOLUTION.*\n", "", text)},
     "4.1 5.2 3.3 3.4 3.7 3.8",
     {"7.3": "problem_6.py has no step 6.3", "7.7": "problem_6.py has no step 6.7"}),
    ("a marker is repeated", 7, {6: replaced("SOLUTION 6.8", "SOLUTION 6.7", 2)},
     "4.1 5.2 3.3 3.4 3.7 3.8",
     dict.fromkeys(("7.3", "7.7"),
                   "problem_6.py has damaged markers: line LINE: step 6.7 is there twice")),
    ("a marker is lost", 6, {5: replaced("# END SOLUTION 5.2\n", "#\n", 1)},
     "4.1 3.3 3.4 3.7 3.8",
     {"6.2": "problem_5.py has damaged markers: line LINE: step 5.3 begins inside step 5.2"}),
    ("CRLF", 4, {3: replaced("\n", "\r\n")}, WHOLE, {}),
    ("CRLF in problem 4", 4, {4: replaced("\n", "\r\n")}, WHOLE, {}),
    ("a byte-order mark", 4, {3: lambda text: "\ufeff" + text}, WHOLE, {}),
    ("a byte-order mark in problem 4", 4, {4: lambda text: "\ufeff" + text}, WHOLE, {}),
    ("Latin-1", 5, {4: SOLVED[4].replace("The scores", "Größe").encode("latin-1") + b"# \xe9\n"},
     "3.3 3.4 3.5 3.7 3.8",
     dict.fromkeys(("5.1", "5.3", "5.7"), "problem_4.py is not UTF-8: save it so")),
    ("tabs", 4, {3: TABS}, WHOLE, {}),
    ("code between the regions, of no use to them", 9,
     {8: replaced("    # Step 8.12", "    tl.static_print(p)\n    # Step 8.12", 1)},
     "4.1 5.2 3.3 3.4 6.7 4.1 5.2 8.9 8.11 8.12 8.13 8.16 8.17 3.7 3.8", {}),
    ("a helper function below a region, inside its markers", 4,
     {3: replaced("    # END SOLUTION 3.8\n",
                  "\n\ndef my_helper():\n    return 1\n    # END SOLUTION 3.8\n")},
     "3.3 3.4 3.5 3.7", {"4.8": "step 3.8 of problem_3.py is not a block of Python by itself"}),
    ("a region needs the line before it", 4,
     {3: replaced("    # BEGIN SOLUTION 3.4\n", "    if MASKED and False:\n        pass\n"
                  "    # BEGIN SOLUTION 3.4\n    else:\n        pass\n")},
     "3.3 3.5 3.7 3.8", {"4.4": "step 3.4 of problem_3.py is not a block of Python by itself"}),
    ("a region needs the loop around it", 4, {3: LOOP},
     "3.3 3.4 3.5 3.7", {"4.8": "with step 3.8 in it problem_4.py is not Python: line LINE: "
                                "'continue' not properly in loop"}),
]


def placed(folder: Path, stage: int, edits: dict) -> None:
    """The starter of a stage and the earlier files, edited."""
    for number in range(1, stage + 1):
        edit = edits.get(number, lambda text: text)
        if edit is not None:
            data = edit if isinstance(edit, bytes) else \
                edit(starter(stage) if number == stage else SOLVED[number]).encode()
            (folder / f"problem_{number}.py").write_bytes(data)


@pytest.mark.parametrize(("stage", "edits", "origins", "refused"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])
def test_what_fits_is_carried_and_the_rest_is_refused_with_the_reason(
        tmp_path, monkeypatch, capsys, stage, edits, origins, refused):
    placed(tmp_path, stage, edits)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"problem_{stage}.py"
    before = path.read_bytes().decode()
    assert main([str(stage)]) == (1 if refused else 0)
    after, said = path.read_bytes().decode(), capsys.readouterr()
    assert not said.err
    compile(after.removeprefix("\ufeff"), path.name, "exec")

    told = dict(re.findall(r"(?m)^step (\S+) +(.*)$", said.out))
    filled = [told[step] for step in told if told[step].startswith("from ")]
    assert [words.split()[2] for words in filled] == re.sub(r"\(.*\)", "", origins).split()
    reasons = {step: words.removeprefix("not filled: ") for step, words in told.items()
               if words.startswith("not ")}
    assert reasons.keys() == refused.keys()
    for step, want in refused.items():
        want = re.escape(want).replace("LINE", r"\d+")
        assert re.fullmatch(want, reasons[step])
    assert {step for step in told if told[step].startswith("is written already")} == \
        set(re.findall(r"\((.*)\)", origins))
    for step, origin in carried(before).items():
        new = inside(after, step)
        if told[step].startswith("from "):
            source = (tmp_path / f"problem_{origin.split('.')[0]}.py").read_text("utf-8-sig")
            if edits.get(3) is TABS:  # the first level is the target's
                source = re.sub("(?m)^\t", "    ", source)
            assert new == inside(source, origin)
        else:
            assert new == inside(before, step)
    ends = {row[len(row.rstrip("\r\n")):] for row in after.splitlines(keepends=True)}
    assert ends == {"\r\n" if "\r\n" in before else "\n"}
    assert after.startswith("\ufeff") == before.startswith("\ufeff")


# ------------------------------------------------------------ the command
@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Stage 3 solved, stage 4 handed out."""
    placed(tmp_path, 4, {})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_came_from_where_and_what_is_left(folder, capsys):
    (folder / "problem_3.py").write_text(region("3.7", "    ...")(SOLVED[3]))
    text = region("4.4", "    s = q")(region("4.5", *inside(SOLVED[3], "3.5"))(starter(4)))
    (folder / "problem_4.py").write_text(text)
    assert main(["4"]) == 1
    assert capsys.readouterr().out == """\
step 4.3  from step 3.3 of problem_3.py, 3 lines
step 4.4  is written already, and differs from step 3.4 of problem_3.py: --again asks whether to \
take that
step 4.5  the same already
step 4.7  not filled: step 3.7 of problem_3.py is still blank
step 4.8  from step 3.8 of problem_3.py, 3 lines
problem_4.py: 4 of 5 copied steps are filled in; still to write: 4.1, 4.2, 4.6.
Next: fix what is said above and run this again, or write 4.7 yourself; --from FOLDER takes steps \
from another folder.
"""


def test_when_nothing_is_left_it_says_so_and_writes_nothing(folder, capsys):
    path = folder / "problem_4.py"
    path.write_text(SOLVED[4])
    os.utime(path, (1, 1))
    assert main(["4"]) == 0
    said = capsys.readouterr().out
    assert "problem_4.py: 5 of 5 copied steps are filled in; no other step is blank." in said
    assert path.stat().st_mtime == 1 and not (folder / ".autograder").exists()


def test_the_last_stages_have_the_optional_autograder(tmp_path, monkeypatch, capsys):
    placed(tmp_path, 9, {})
    monkeypatch.chdir(tmp_path)
    assert main(["9"]) == 0
    said = capsys.readouterr().out
    assert "\nstep 9.9   from step 5.2 of problem_5.py, 2 lines\nstep 9.10  from step 8.9 " in said
    assert said.endswith("Next: python autograder_optional.py --p9 --watch\n")


def test_a_second_run_changes_nothing(folder):
    assert main(["4"]) == 0
    once = (folder / "problem_4.py").read_bytes()
    assert main(["4"]) == 0
    assert (folder / "problem_4.py").read_bytes() == once


def test_from_takes_a_released_file_instead_of_the_own_one(folder, capsys):
    (folder / "problem_3.py").write_text(starter(3))
    (folder / "released").mkdir()
    (folder / "released" / "problem_3.py").write_text(SOLVED[3])
    assert main(["4", "--from", "released"]) == 0
    assert f"from step 3.3 of {Path('released/problem_3.py')}, 3 lines" in capsys.readouterr().out
    (folder / "problem_4.py").write_text(SOLVED[4])
    (folder / "problem_5.py").write_text(starter(5))
    assert main(["5", "--from", "released"]) == 0  # stage 4 was not released: the own one serves
    said = capsys.readouterr().out
    assert "step 5.1  from step 4.1 of problem_4.py" in said
    assert f"step 5.4  from step 3.3 of {Path('released/problem_3.py')}" in said
    assert "problem_5.py: 8 of 8 copied steps are filled in; still to write: 5.2." in said


def test_notes_in_a_blank_step_are_kept_with_the_old_file(folder, capsys):
    text = region("4.7", "    # start + i is a row, remember", "    ...")(starter(4))
    (folder / "problem_4.py").write_text(text)
    assert main(["4"]) == 0
    kept = Path(".autograder/problem_4.py")
    assert f"problem_4.py as it was is kept as {kept}\n" in capsys.readouterr().out
    assert (folder / kept).read_text() == text


def test_a_note_behind_the_raise_is_kept_with_the_old_file(folder):
    text = starter(4).replace('("step 4.5")  # TODO: your code here', '("step 4.5")  # see page 7')
    assert text != starter(4)
    (folder / "problem_4.py").write_text(text)
    assert main(["4"]) == 0
    assert Path(".autograder/problem_4.py").read_text() == text


@pytest.mark.parametrize("end", ["\f", "\u2028", "\x85"])
def test_what_python_does_not_count_as_a_line_end_is_none(end):
    odd = SOLVED[3].replace("# ---", f"# {end}---", 1)
    assert odd != SOLVED[3]
    assert carry(4, starter(4), {3: odd})[0] == carry(4, starter(4), {3: SOLVED[3]})[0]


def test_the_comments_of_a_region_may_name_steps_of_the_target():
    noisy = replaced("    s = tl.dot(", "    # Step 4.5 -- Mine now.\n    s = tl.dot(")(SOLVED[3])
    _, outcomes = carry(4, starter(4), {3: noisy})
    assert {outcome.state for outcome in outcomes} == {"filled"}


@pytest.mark.parametrize(("answers", "state"), [
    ("y\n", "replaced"), ("yes\n", "replaced"), ("Y\n", "replaced"), ("n\n", "kept"),
    ("\n", "kept"), ("", "kept"), ("yess\n", "kept"), ("ja\n", "kept"),
])
def test_again_asks_before_it_replaces_and_keeps_the_old_file(
        folder, monkeypatch, capsys, answers, state):
    old = region("4.4", "    s = tl.dot(q, k.T)")(SOLVED[4])
    (folder / "problem_4.py").write_text(old)
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    code, said = main(["4", "--again"]), capsys.readouterr().out
    kept = Path(".autograder/problem_4.py")
    assert "-    s = tl.dot(q, k.T)\n+    s = tl.dot(q, tl.trans(k))\n" in said
    assert said.count("Replace step 4.4 by step 3.4? [y/N] ") == said.count("[y/N]") == 1
    if state == "replaced":
        assert code == 0 and "step 4.4  from step 3.4 of problem_3.py, 3 lines" in said
        assert (folder / "problem_4.py").read_text() == SOLVED[4]
        assert (folder / kept).read_text() == old and f"is kept as {kept}\n" in said
    else:
        assert code == 1 and "step 4.4  is kept as it was\n" in said
        assert (folder / "problem_4.py").read_text() == old and not kept.exists()
    assert "5 of 5 copied steps are filled in" in said


def test_an_old_file_never_overwrites_an_older_one(folder, monkeypatch):
    texts = [region("4.4", f"    s = q + {i}")(SOLVED[4]) for i in range(3)]
    for text in texts:
        (folder / "problem_4.py").write_text(text)
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        assert main(["4", "--again"]) == 0
    assert [(folder / ".autograder" / f"problem_4.py{end}").read_text()
            for end in ("", ".2", ".3")] == texts


def test_again_says_why_a_written_step_cannot_be_replaced(folder, monkeypatch, capsys):
    (folder / "problem_3.py").write_text(LOOP(region("3.7", "    ...")(SOLVED[3])))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    (folder / "problem_4.py").write_text(SOLVED[4])
    assert main(["4", "--again"]) == 1
    said = capsys.readouterr().out
    assert "step 4.8  not replaced: with step 3.8 in it problem_4.py is not Python" in said
    assert "step 4.7  is written already\n" in said  # 3.7 is blank: there is nothing to ask about
    assert "5 of 5 copied steps are filled in" in said
    assert (folder / "problem_4.py").read_text() == SOLVED[4] and not Path(".autograder").exists()


def test_without_again_a_written_step_needs_no_origin(folder):
    (folder / "problem_3.py").unlink()
    (folder / "problem_4.py").write_text(SOLVED[4])
    assert main(["p4"]) == main(["problem_4.py"]) == 0  # it is known by these names, too


@pytest.mark.parametrize(("stage", "got"), [
    (1, "one that has no copied step"), (2, "one that has no copied step"),
    (3, "one that has no copied step"), (10, "one that is missing"),
])
def test_a_stage_without_carried_steps_is_a_usage_error(folder, capsys, stage, got):
    assert main([str(stage)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == (
        f"error: want a problem_{stage}.py with copied steps; got {got}\n")


@pytest.mark.parametrize(("edit", "got"), [
    (None, "is missing"),
    (b"# caf\xe9\n", "is not UTF-8: save it so"),
    (b"# -*- coding: latin-1 -*-\n", "is not UTF-8: save it so"),
    (b"#" * 300000, "has more than 262144 bytes"),
    (replaced("    q = _load", "    q = = _load", 1), "is not Python: line "),
    (lambda text: text + "x = '\0'\n", "is not Python: "),
    (replaced("# END SOLUTION 4.4\n", "\n"), "has damaged markers: line "),
    (lambda text: re.sub("# (BEGIN|END) SOLUTION", "#", text), "has no copied step"),
])
def test_a_target_that_cannot_be_filled_is_a_usage_error(
        folder, capsys, monkeypatch, edit, got):
    (folder / "problem_4.py").unlink()
    placed(folder, 4, {4: edit})
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["4", "--again"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(
        f"error: want a problem_4.py with copied steps; got one that {got}")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_target_that_is_no_regular_file_is_refused(folder, capsys, kind):
    path = folder / "problem_4.py"
    path.rename(folder / "elsewhere.py")
    {"link": lambda: path.symlink_to("elsewhere.py"), "folder": path.mkdir,
     "pipe": lambda: os.mkfifo(path)}[kind]()
    assert main(["4"]) == 2
    assert "got one that " in capsys.readouterr().err
    assert (folder / "elsewhere.py").read_text() == starter(4)


def test_a_folder_that_is_not_there_is_a_usage_error(folder, capsys):
    assert main(["4", "--from", "nowhere"]) == 2
    assert capsys.readouterr().err == "error: want a folder after --from; got nowhere\n"


@pytest.mark.parametrize("may_not", [
    pytest.param(lambda path: path.chmod(0), marks=pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads anything")),
    lambda path: (path.unlink(), path.mkdir())])
def test_an_earlier_file_that_cannot_be_read_is_refused(folder, capsys, may_not):
    may_not(folder / "problem_3.py")
    assert main(["4"]) == 1
    assert "step 4.3  not filled: problem_3.py cannot be read: " in capsys.readouterr().out


# ------------------------------------------------------------ the file stays whole
def test_the_mode_of_the_file_stays(folder):
    (folder / "problem_4.py").chmod(0o640)
    assert main(["4"]) == 0
    assert stat.S_IMODE((folder / "problem_4.py").stat().st_mode) == 0o640


@pytest.mark.parametrize("call", ["replace", "chmod"])
def test_a_failure_while_writing_leaves_the_old_file_alone(folder, capsys, monkeypatch, call):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    assert main(["4"]) == 2
    assert capsys.readouterr().err == (
        "error: want to write problem_4.py; got No space left on device\n")
    assert (folder / "problem_4.py").read_text() == starter(4)
    assert {path.name for path in folder.iterdir()} == {f"problem_{i}.py" for i in range(1, 5)}


def test_a_file_that_an_editor_saved_meanwhile_is_left_alone(folder, capsys, monkeypatch):
    path = folder / "problem_4.py"
    path.write_text(region("4.4", "    s = q")(SOLVED[4]))

    def answer(_):
        path.write_text("saved\n")
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    assert main(["4", "--again"]) == 2
    assert "got one that was changed meanwhile" in capsys.readouterr().err
    assert path.read_text() == "saved\n"


def test_an_interruption_at_a_question_writes_nothing(folder, capsys, monkeypatch):
    text = region("4.4", "    s = q")(starter(4))
    (folder / "problem_4.py").write_text(text)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    assert main(["4", "--again"]) == 130
    assert (folder / "problem_4.py").read_text() == text


def test_lines_that_end_otherwise_keep_their_ends(folder):
    mixed = starter(4).replace("# BEGIN SOLUTION 4.3\n", "# BEGIN SOLUTION 4.3\r\n")
    text, _ = carry(4, mixed, SOLVED)
    assert text.count("\r\n") == 1 + len(inside(SOLVED[3], "3.3"))


def test_no_student_code_runs_and_no_torch_is_imported(folder):
    for number in (3, 4):
        with open(folder / f"problem_{number}.py", "a") as file:
            file.write("\nopen('ran', 'w')\n")
    program = ("import sys; from grader.carry import main; code = main(['4']); "
               "sys.exit(code or 10 * bool({'torch', 'triton', 'numpy'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "") and "5 of 5" in done.stdout
    assert not (folder / "ran").exists()
