"""The command line: exit codes, sentences, JSON, other stages still run."""

import json
import os
import resource
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from grader import cli
from grader.assignment import record
from tests.commands import grader

ROOT = Path(__file__).parent.parent

RIGHT = '''
import torch
TILE = 256
class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        for lo in range(0, q.shape[2], TILE):
            l, acc, m = 0.0, 0.0, torch.full_like(lse[:, :, lo:lo + TILE, None], float("-inf"))
            for n in range(0, min(lo + TILE, k.shape[2]) if is_causal else k.shape[2], TILE):
                k_tile, v_tile = (x[:, :, n:n + TILE].float() for x in (k, v))
                s = q[:, :, lo:lo + TILE].float() @ k_tile.mT * q.shape[-1] ** -0.5
                if is_causal:
                    rows, keys = torch.arange(lo, lo + s.shape[2]), torch.arange(n, n + s.shape[3])
                    s = s.masked_fill(keys > rows[:, None], float("-inf"))
                m_new = torch.maximum(m, s.amax(-1, keepdim=True))
                p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
                l, acc, m = l * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ v_tile, m_new
            o[:, :, lo:lo + TILE] = (acc / l).to(o.dtype)
            lse[:, :, lo:lo + TILE] = (m + l.log())[..., 0]
        return o, lse
'''


def in_a_process(*arguments, program="autograder.py"):
    return subprocess.run([sys.executable, str(ROOT / program), *map(str, arguments)], cwd=ROOT,
                          capture_output=True, text=True, timeout=600)


def graded(tmp_path, files: dict[str, str], *arguments, program="autograder.py", run=grader):
    """-> what the program ended with, and the JSON it wrote."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    out = tmp_path / "out.json"
    done = run("--submission", tmp_path, "--json", out, "--device", "cpu", "--seed", 7,
               *arguments, program=program)
    return done, json.loads(out.read_text("utf-8"))


def test_an_entry_point_with_too_few_arguments_is_told_so(tmp_path):
    wrong = RIGHT.replace("is_causal=False", "*, is_causal=False")
    done, _ = graded(tmp_path, {"problem_1.py": wrong}, "--p1", "--no-benchmark")
    said = " ".join(done.stdout.split())
    assert "is_causal=False) (it takes fewer positional arguments)" in said
    assert "Next: fix the file, then run python autograder.py --p1" in said


def test_a_case_of_what_is_promised_runs_again_by_the_name_reported(tmp_path):
    name = "beyond/H2-N70-D32-float16-last"
    _, data = graded(tmp_path, {"problem_1.py": RIGHT}, "--p1", "--case", name, "--no-benchmark")
    check, = data["stages"][0]["checks"]
    assert (check["name"], check["outcome"]) == (name, "pass")


@pytest.mark.parametrize("program", ["autograder.py", "autograder_optional.py"])
def test_help_answers_without_importing_torch(program, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    code = ("import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); "
            "sys.argv = [sys.argv[1], '--help']; runpy.run_path(sys.argv[0], run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(ROOT / program)],
                          cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "--submission" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments, words", [
    (["--p8"], "want a problem of this program; for that one: python autograder_optional.py --p8"),
    (["--p10"], "want --p1 to --p7; got --p10"),
    (["p8"], "want a problem of this program; for that one: python autograder_optional.py --p8"),
    (["--all"], "want an option that --help lists; got --all"),
    (["--submission", "/nowhere"], "want a directory; got /nowhere"),
    (["--json", "/nowhere/out.json"], "want a file in a directory that exists"),
    (["--timeout", "0"], "--timeout: want a number of seconds above 0; got 0"),
    (["--stage-timeout", "inf"], "--stage-timeout: want a number of seconds above 0; got inf"),
    (["--memory", "0.4"], "--memory: want 0.5 GiB at least, for PyTorch itself; got 0.4"),
    (["--hint", "99.9"], "want a step"),
    (["--step", "8.3"], "Problem 8 has its own grader: python autograder_optional.py --step 8.3"),
    (["--plot", "mask.png"], "--plot: want an .svg file in a directory that exists; got mask.png"),
    (["--page"], "--page: want an .html file, or --watch with it; got neither"),
    (["--page", "/nowhere/p.html"], "--page: want an .html file in a directory that exists; got"),
    (["--page", "p.html", "--step", "3.5"], "--page: want a whole problem; got --step with it"),
    (["--quick", "--warmup"], "--warmup: want it alone, or with --watch or --page"),
    (["--device", "tpu"], "invalid choice"),
])
def test_usage_errors_exit_2_and_say_what_was_wanted(arguments, words):
    done = grader(*arguments)
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


@pytest.mark.parametrize("arguments, got", [
    (["p2"], "p2"), (["--P2"], "--P2"), (["-p2"], "-p2"), (["P2", "--quick"], "P2"), (["2"], "2"),
    (["--p", "2"], "--p 2"), (["--p=2"], "--p 2"), (["\u2013p2"], "\u2013p2"),
    (["\u2014p2"], "\u2014p2"), (["problem_2.py"], "problem_2.py"), (["--problem2"], "--problem2"),
    (["--p1", "2"], "2"), (["--p-2"], "--p-2")])
def test_a_problem_that_is_asked_for_otherwise_is_told_its_option(capsys, arguments, got):
    with pytest.raises(SystemExit) as end:
        cli.main("autograder.py", arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: want --p2; got {got}\n")


@pytest.mark.parametrize("program", ["autograder.py", "autograder_optional.py"])
def test_where_python_may_not_look_beside_the_program_it_says_so(program):
    done = subprocess.run([sys.executable, "-P", str(ROOT / program), "--help"], text=True,
                          capture_output=True, timeout=600, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.endswith("Next: unset PYTHONSAFEPATH\n")


def test_a_right_submission_passes_with_exit_0(tmp_path):
    done, data = graded(tmp_path, {"problem_1.py": RIGHT}, "--p1", run=in_a_process)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "timing skipped: no GPU" in done.stdout and "seed 7" in done.stdout
    assert "Next: python autograder.py --p2" in done.stdout and "Isolation" not in done.stdout
    stage = data["stages"][0]
    assert (stage["outcome"], stage["points"], stage["benchmark"]) == ("pass", 200, None)
    assert data["seed"] == 7 and data["device"] == "cpu"
    assert data["grader"] == record.version()


def test_each_way_to_fail_has_its_own_outcome_and_the_other_stages_still_run(tmp_path):
    entry = "def flash_attention_forward(q, k, v, is_causal=True, window_size=1, sink_size=0):\n"
    done, data = graded(tmp_path, {
        "problem_1.py": RIGHT.replace("* q.shape[-1] ** -0.5", ""),
        "problem_2.py": "def weighted_row_sum_forward(x, w):\n    raise RuntimeError('mine')\n",
        "problem_3.py": "def flash_attention_forward(q k):\n",
        "problem_4.py": entry + "    raise NotImplementedError\n",
        "problem_6.py": "def something_else():\n    return 1\n",
        "problem_7.py": "import time\n" + entry + "    time.sleep(900)\n",
    }, "--timeout", 4, "--quick")
    assert done.returncode == 1, done.stderr
    outcomes = {stage["stage"]: stage["outcome"] for stage in data["stages"]}
    assert outcomes == {1: "wrong", 2: "crashed", 3: "crashed", 4: "not_started", 5: "missing",
                        6: "crashed", 7: "timeout"}
    assert all(stage["points"] == 0 for stage in data["stages"])
    assert "mine" in done.stdout and "problem_3.py" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", [[], ["--submit"], ["--json", "x"], ["--verbose"]])
def test_what_is_kept_or_asked_for_in_full_ends_at_no_failure(option):
    arguments = cli._parser((2,), "autograder.py").parse_args(["--device", "cpu", *option])
    grading = cli._Grading(arguments, [2], [2], "autograder.py")
    assert grading.options(None).may_stop == (not option)


def test_numbers_that_pytorch_computed_without_a_kernel_are_not_started(tmp_path):
    source = ("import torch\ndef flash_attention_forward(q, k, v, is_causal=True):\n"
              "    return torch.nn.functional.scaled_dot_product_attention("
              "q, k, v, is_causal=True)\n")
    done, data = graded(tmp_path, {"problem_4.py": source}, "--p4", "--quick")
    assert done.returncode == 1 and data["stages"][0]["points"] == 0
    assert data["stages"][0]["outcome"] == "not_started", done.stdout
    assert "No kernel was launched yet: PyTorch computed this." in done.stdout


@pytest.mark.interpreter
def test_a_window_too_wide_is_wrong_and_says_where(tmp_path):
    source = (ROOT / "problem_6.py").read_text("utf-8")
    mistaken = source.replace("(age < window_size)", "(age <= window_size)")
    assert mistaken != source
    done, data = graded(tmp_path, {"problem_6.py": mistaken}, "--p6", "--quick")
    check = data["stages"][0]["checks"][0]
    assert check["outcome"] == "wrong" and check["where"].startswith("rows 128-255")
    assert check["errors"]["o"]["row"] > check["errors"]["o"]["row_limit"]
    assert len(check["message"].splitlines()) <= 12 and "--hint 6.8" in done.stdout


@pytest.mark.parametrize("arguments", [["--p8"], ["--step", "3.5"], ["--device", "tpu"]])
def test_a_refused_command_leaves_no_former_page_behind(tmp_path, arguments):
    page = tmp_path / "page.html"
    page.write_text("P8 passed")
    assert grader("--page", page, *arguments).returncode == 2
    assert "P8 passed" not in page.read_text() and "<h1>Not graded</h1>" in page.read_text()
    assert grader("--page", tmp_path / "no.html", *arguments).returncode == 2
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_a_refused_command_keeps_a_file_that_can_be_no_page(tmp_path):
    own = tmp_path / "problem_1.py"
    own.write_text("mine")
    assert grader("--page", own).returncode == 2 and own.read_text() == "mine"


@pytest.mark.interpreter
def test_a_page_shows_the_step_its_line_and_what_the_kernel_does(tmp_path):
    source = (ROOT / "problem_4.py").read_text("utf-8")
    mistaken = source.replace("range(0, start_m, BLOCK_N)", "range(BLOCK_N, start_m, BLOCK_N)", 1)
    assert mistaken != source
    page = tmp_path / "page.html"
    done, data = graded(tmp_path, {"problem_4.py": mistaken}, "--p4", "--quick", "--page", page)
    text = page.read_text("utf-8")
    assert done.returncode == 1 and "<title>4.2 is red</title>" in text, done.stderr
    assert "<mark>for start_n in range(BLOCK_N, start_m, BLOCK_N):</mark>" in text
    assert "--hint 4.2" in text
    assert "<h2>The mask</h2>" in text and "<h2>The loop over tiles</h2>" in text
    assert "Look at the red rings: the loop misses visible pairs of " in text


def as_on_windows(text: str) -> str:
    return "\ufeff" + text.replace("\n", "\r\n")


@pytest.mark.interpreter
def test_a_file_with_a_byte_order_mark_and_crlf_passes_a_whole_stage(tmp_path):
    saved = as_on_windows((ROOT / "problem_2.py").read_text("utf-8"))
    done, data = graded(tmp_path, {"problem_2.py": saved}, "--p2")
    assert done.returncode == 0, done.stdout
    assert "compile/sm_90" in [check["name"] for check in data["stages"][0]["checks"]]
    assert data["stages"][0]["sha256"] == sha256(saved.encode()).hexdigest()


@pytest.mark.interpreter
@pytest.mark.parametrize("old, new, said", [
    ("w.to(tl.float32)[None, :], axis=1)", "(w * w).to(tl.float32)[None, :], axis=1)",
     "one-too-many"),
    ("offs_n[None, :] * stride_xn", "offs_k[None, :] * stride_xn", "name-not-defined"),
])
def test_its_mistakes_have_the_names_and_the_lines_of_any_other(tmp_path, old, new, said):
    source = (ROOT / "problem_2.py").read_text("utf-8")
    mistaken = source.replace(old, new, 1)
    assert mistaken != source
    found = [graded(tmp_path, {"problem_2.py": text}, "--p2", "--quick")[1]["stages"][0]["checks"]
             for text in (mistaken, as_on_windows(mistaken))]
    assert found[0] == found[1] and found[0][0]["diagnosis"]["id"] == said


@pytest.mark.interpreter
def test_a_seed_replays_the_same_inputs(tmp_path):
    source = (ROOT / "problem_2.py").read_text("utf-8")

    def error(seed):
        data = graded(tmp_path, {"problem_2.py": source}, "--p2", "--quick", "--seed", seed)[1]
        return data["stages"][0]["checks"][0]["errors"]["y"]["row"]

    first = error(5)
    assert first == error(5) and first != error(6)


@pytest.mark.interpreter
@pytest.mark.parametrize("number", [3, 8])
def test_the_solved_files_pass(tmp_path, number):
    program = "autograder_optional.py" if number > 7 else "autograder.py"
    source = (ROOT / f"problem_{number}.py").read_text("utf-8")
    done, data = graded(tmp_path, {f"problem_{number}.py": source}, f"--p{number}",
                        program=program)
    assert done.returncode == 0, done.stdout
    names = [check["name"] for check in data["stages"][0]["checks"]]
    assert "compile/sm_90" in names


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(1, 10))
def test_the_solved_files_pass_on_a_gpu(number):
    program = "autograder_optional.py" if number > 7 else "autograder.py"
    done = in_a_process(f"--p{number}", "--device", "cuda", "--no-benchmark", program=program)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("error", ["ImportError", "OSError", "AttributeError"])
def test_a_pytorch_that_cannot_be_imported_is_said_whatever_it_raises(tmp_path, error):
    (tmp_path / "torch.py").write_text(f"raise {error}('libtorch.so')\n")
    done = subprocess.run([sys.executable, "autograder.py", "--p1"], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == ("error: want PyTorch installed (pip install torch); got libtorch.so. "
                           "python autograder.py --doctor says more\n")


def test_a_pipe_gets_the_results_once_at_the_end(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(json.loads(pipe.read_text())), daemon=True)
    reader.start()
    assert grader("--p1", "--submission", tmp_path, "--json", pipe).returncode == 1
    reader.join(60)
    assert [stage["outcome"] for stage in read[0]["stages"]] == ["missing"] and pipe.is_fifo()


def limited(kib: int, *arguments) -> subprocess.CompletedProcess:
    """The program, by whose `ulimit -f` no file may be larger."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, kib << 10))
    return subprocess.run([sys.executable, "autograder.py", *arguments], cwd=ROOT, timeout=600,
                          capture_output=True, text=True, preexec_fn=limit)


def test_a_limit_on_the_size_of_files_is_kept_or_said():
    done = limited(8, "--step", "W.2")
    assert done.returncode == 2
    assert "want files of 16 MiB allowed (ulimit -f); got a limit of 8 KiB" in done.stderr
    done = limited(1 << 16, "--step", "W.2")
    assert done.returncode == 0, done.stdout + done.stderr
