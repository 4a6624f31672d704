"""The grader is interrupted, waited_for_cpu or started badly: it ends, cleans up, and says why."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
SOLVED = (ROOT / "problem_2.py").read_text("utf-8")
LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
SOON = 120  # seconds; what is left behind lives for longer
INTERRUPTED = "\nInterrupted; what was graded so far stands.\n"
OLD = '{"stages": []}\n'  # what an earlier run may have written

# Marks how far it came, and leaves a child that nothing but its ancestry gives away.
SLOW = '''
import ctypes, os, sys, time
open("imported", "w").close()
time.sleep(1)
def weighted_row_sum_forward(x, w):
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG
        program = "import time; time.sleep(900)"
        os.execve(sys.executable, [sys.executable, "-c", program, os.getcwd()], {})
    open("called", "w").close()
    time.sleep(900)
'''


@pytest.fixture
def grading(tmp_path):
    """Folders and files of a grading of its own; `start` begins it, in a shell's words if asked.

    Nothing in it reaches the folders of this account: its home and its temporary folder are here.
    """
    for name in ("work", "tmp", "home", "json"):
        (tmp_path / name).mkdir()
    here = SimpleNamespace(folder=tmp_path, tmp=tmp_path / "tmp", home=tmp_path / "home",
                           json=tmp_path / "json" / "out.json", process=None, seen=set())
    here.json.write_text(OLD)

    def start(source, *options, shell='exec "$@"', **settings) -> subprocess.Popen:
        (tmp_path / "work" / "problem_2.py").write_text(source, "utf-8")
        command = [sys.executable, str(ROOT / "autograder.py"), "--p2", "--device", "cpu",
                   "--no-benchmark", "--submission", str(tmp_path / "work"), "--json",
                   str(here.json), *options]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **settings}
        here.process = subprocess.Popen(
            ["sh", "-c", shell, "sh", *command], cwd=ROOT,
            env={**os.environ, "TMPDIR": str(here.tmp), "HOME": str(here.home)},
            # A test run in the background was started with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **settings)
        return here.process

    here.start = start
    yield here
    if here.process is not None and here.process.poll() is None:
        here.process.kill()
        here.process.communicate()


def until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def running() -> dict[int, tuple[int, bytes]]:
    """Process -> its parent and when it started, of all that are not dead."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # "pid (name) state parent ..."; the name may hold anything
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(entry.name)] = int(fields[1]), fields[19]
    return found


def family(grading) -> list[int]:
    """The processes seen below the grader so far that still run, in whatever session they are."""
    now, below = running(), [grading.process.pid]
    for pid in below:
        below += [child for child, (parent, _) in now.items() if parent == pid]
    grading.seen |= {(pid, now[pid][1]) for pid in below if pid in now}
    return [pid for pid, start in grading.seen if now.get(pid, (0, b""))[1] == start]


def came_to(grading, moment: str) -> bool:
    if moment == "torch is imported":
        return len(family(grading)) > 1  # the reaper, which is started just before
    if moment == "the next stage":
        return bool(json.loads(grading.json.read_text())["stages"])
    names = {"its worker starts": "grader-*", "the file is imported": "imported",
             "it calls the file": "called"}
    return any(grading.tmp.rglob(names[moment]))


def wait_for(grading, moment) -> None:
    """moment: seconds from the start, or what came_to knows."""
    if isinstance(moment, float):
        time.sleep(moment)
    else:
        assert until(lambda: came_to(grading, moment) or grading.process.poll() is not None, 600)
    assert grading.process.poll() is None, grading.process.communicate()
    assert grading.process.pid in family(grading)


# ----------------------------------------------------------------- interruptions
@LINUX
@pytest.mark.parametrize(("number", "moment", "options"), [
    (signal.SIGTERM, 0.2, ["--quick"]), (signal.SIGINT, "torch is imported", ["--quick"]),
    (signal.SIGTERM, "its worker starts", ["--quick"]),
    (signal.SIGTERM, "the file is imported", ["--quick"]),
    (signal.SIGINT, "it calls the file", []),  # while a second worker compiles
    (signal.SIGINT, "the next stage", ["--quick", "--p1"]),  # there is no problem_1
], ids=lambda value: "" if isinstance(value, list) else str(value))
def test_a_signal_at_any_moment_ends_all_of_it_and_leaves_a_whole_json(
        grading, number, moment, options):
    process = grading.start(SLOW, "--timeout", "600", *options)
    wait_for(grading, moment)
    process.send_signal(number)
    output, errors = process.communicate(timeout=SOON)
    if isinstance(moment, float):  # perhaps before a line of ours has run
        assert process.returncode in (128 + number, -number), output + errors
    else:
        assert (process.returncode, errors[-len(INTERRUPTED):]) == (128 + number, INTERRUPTED)
        assert "Traceback" not in output + errors
    assert until(lambda: not family(grading), SOON), family(grading)
    assert until(lambda: list(grading.tmp.iterdir()) == [], SOON)
    stages = json.loads(grading.json.read_text())["stages"]
    assert [stage["stage"] for stage in stages][:1] == [1] * (moment == "the next stage")
    assert [path.name for path in grading.json.parent.iterdir()] == [grading.json.name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_a_stage_does_not_wait_for_what_it_would_close(number, tmp_path):
    program = f"""
import os, time
from grader.process import left_at_once
with left_at_once():
    try:
        os.kill(os.getpid(), {int(number)})
        time.sleep(600)
    finally:
        open({str(tmp_path / "closed")!r}, "w").close()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, list(tmp_path.iterdir())) == (128 + number, [])
    assert done.stderr == INTERRUPTED


@LINUX
def test_who_interrupts_the_wait_for_a_save_leaves_no_worker(grading):
    process = grading.start("1 / 0", "--watch", stdout=(grading.folder / "said").open("w"))
    said = grading.folder / "said"
    assert until(lambda: "Watching" in said.read_text() and came_to(grading, "its worker starts"),
                 600)
    # The grader, the reaper, the two fork servers, a supervisor.
    assert until(lambda: len(family(grading)) > 4, SOON)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=SOON)[1].endswith(INTERRUPTED)
    assert process.returncode == 130
    assert until(lambda: not family(grading), SOON), family(grading)
    assert until(lambda: list(grading.tmp.iterdir()) == [], SOON)


@LINUX
@pytest.mark.parametrize("moment", ["its worker starts", "it calls the file"])
def test_a_killed_grader_leaves_no_process_and_no_folder(grading, moment):
    process = grading.start(SLOW, "--timeout", "600")
    wait_for(grading, moment)
    process.kill()
    process.wait()
    assert until(lambda: not family(grading), SOON), family(grading)
    assert until(lambda: list(grading.tmp.iterdir()) == [], SOON)
    json.loads(grading.json.read_text())


# ---------------------------------------------------------------- bad surroundings
@pytest.mark.interpreter
def test_a_grader_without_its_standard_streams_grades_all_the_same(grading):
    process = grading.start(SOLVED, "--quick", shell='exec "$@" <&- >&- 2>&-')
    output = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert json.loads(grading.json.read_text())["stages"][0]["outcome"] == "pass"


@pytest.fixture
def no_home(grading):
    """The home of a grading is a file."""
    grading.home.rmdir()
    grading.home.write_text("no folder")
    yield
    assert grading.home.read_text() == "no folder"


@pytest.mark.interpreter
def test_a_reader_that_goes_away_ends_no_grading_nor_does_a_useless_home(grading, no_home):
    process = grading.start(SOLVED, "--quick")
    process.stdout.close()
    assert process.wait(timeout=600) == 0, process.stderr.read()
    assert json.loads(grading.json.read_text())["stages"][0]["outcome"] == "pass"
    errors = process.stderr.read().splitlines()
    assert not [line for line in errors if not line.startswith("warning: the files run as root")]


def test_without_a_home_a_hint_is_given_all_the_same(grading, no_home):
    process = grading.start(SOLVED, "--hint", "2.1")
    output = process.communicate(timeout=600)
    assert process.returncode == 0 and "Traceback" not in output[1], output


def mounted(grading, folder: Path, make_useless: str, source: str) -> tuple[int, str, str, str]:
    """Grade with a small file system on folder, and make_useless done to it.

    -> exit code, output, errors, and what stands in the folder and its out.json afterwards.
    """
    enter = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-Urm"]
    mount = f'mount -t tmpfs -o size=300k none "{folder}" && cd "{folder}"'
    try:
        subprocess.run([*enter, "sh", "-c", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    script = grading.folder / "in_a_small_folder.sh"
    script.write_text(f"""{mount} && printf '%s' '{OLD}' > out.json && {make_useless}
        cd '{ROOT}'; "$@"; code=$?
        exec > '{grading.folder}/after'; ls '{folder}'; cat '{folder}/out.json'; exit $code""")
    process = grading.start(source, "--quick", shell=f'exec {" ".join(enter)} sh {script} "$@"')
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors, (grading.folder / "after").read_text()


FULL = "{ head -c 1000000 /dev/zero > filler; } 2> filler.log"
NEARLY_FULL = FULL.replace("; }", "; truncate -s -4096 filler; }")


def test_a_full_temporary_folder_is_our_fault_and_is_named(grading):
    # Room for four kilobytes: where there is none at all, Python takes another folder.
    code, output, errors, after = mounted(grading, grading.tmp, NEARLY_FULL, SOLVED)
    assert code in (2, 3) and "No space left" in output + errors, output + errors
    assert "Traceback" not in errors and "grader-" not in after
    stages = json.loads(grading.json.read_text())["stages"]
    assert [stage["outcome"] for stage in stages] in ([], ["grader_fault"])


@pytest.mark.parametrize("make_useless", [FULL, "mount -o remount,ro ."], ids=["full", "readonly"])
def test_a_json_that_cannot_be_written_is_refused_and_the_old_one_stays(grading, make_useless):
    code, _, errors, after = mounted(grading, grading.json.parent, make_useless, "def f(:\n")
    assert code in (2, 3), errors
    assert str(grading.json) in errors and "Traceback" not in errors
    assert after.endswith(OLD) and ".tmp" not in after
