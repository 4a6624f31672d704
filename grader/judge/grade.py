"""One stage of a submission, from its file to its points: WAY, a list of parts that a loop walks.

Every part is given what is known so far (known.py), and adds to it; its module's head says what.
A check that is settled goes through settling.done(), which tells the report.  Which mistake made a
wrong answer, words/follow_up.py says; whether a blank alone is right, lights/lights.py.

One stage's end never stops the next, and a fault of the grader's own never costs points.
"""

import time
import traceback

from grader.course.stages import Stage
from grader.host import without_file
from grader.host.options import Options
from grader.judge import (
    asking,
    compiling,
    confirm,
    further,
    needless,
    reading,
    settling,
    timing,
    tuning,
)
from grader.judge.known import Known
from grader.judge.points import settle
from grader.judge.precompile import Precompiler
from grader.lights.lights import Lights
from grader.report.results import StageResult
from grader.report.screen import Reporter


def begin(known: Known) -> None:
    """What is at work beside the cases, before the first of them."""
    stage, options, enter = known.stage, known.options, known.stack.enter_context
    known.session = enter(known.open_session())  # first: on a GPU workers take longest to start
    known.workers = without_file.workers(options.device, options.timeout, options.confinement)
    known.workers.clock = known.clock
    known.workers.begin()
    if options.spare is None:  # with --watch only once all is right
        compiling.begin(known)
    known.lights = enter(Lights(stage, options, known.file))
    needless.begin(known)
    if options.device == "cuda":
        known.ready = Precompiler(known).ready
    known.confirmations = confirm.Confirmations(known)
    known.stack.push(known.confirmations.close)


ANYWAY, IF_RIGHT = False, True
WAY = (  # the parts, when each runs, what it adds
    (reading.read, ANYWAY),  # the file and its cases; or, with no cases, the result
    (begin, ANYWAY),  # workers, and what they do beside the cases: a light a step, compiling
    (asking.ask_cases, ANYWAY),  # what each case gave, judged, its mistake named; kernels, tiles
    (confirm.rest, ANYWAY),  # a check a case: are the same kernels right on other numbers?
    (further.ask_contract, IF_RIGHT),  # a check: the borders of the file's own tiles
    (tuning.run_configurations, IF_RIGHT),  # a check: every one of an autotuned kernel
    (compiling.compiled, ANYWAY),  # a check, where there is no GPU: do the kernels compile for one?
    (settling.blanks, ANYWAY),  # a check that fails, if no case reached a blank
    (needless.counted, IF_RIGHT),  # a check: does it visit tiles in vain?
    (timing.timed, IF_RIGHT),  # time and memory, where there is a GPU
    (settling.accuse, ANYWAY),  # to the report the accusations, which had to wait
    (further.ask_beyond, IF_RIGHT),  # checks that decide nothing
)  # and settle(): outcome and points, whatever came in between


def grade_stage(stage: Stage, options: Options, reporter: Reporter) -> StageResult:
    """Grade one stage from the file in options.directory; never raises but for Ctrl-C."""
    known, start = Known(stage, options, reporter), time.monotonic()
    result = known.result
    reporter.stage_begins(stage)
    try:
        with known.stack:
            for part, if_right in WAY:
                if not if_right or known.session is not None and known.all_right():
                    part(known)
                if not known.cases:  # the file says by itself how the stage ends
                    break
            if known.clock.is_over() and not result.sentence:
                result.sentence = f"{known.clock.words()}; what was judged stands."
    except Exception as error:
        result.outcome = "grader_fault"
        result.sentence = (f"the grader itself failed ({type(error).__name__}: {error}); nothing "
                           "is settled by it. Please run it again; if it comes back, report the "
                           "lines below.")
        result.detail = traceback.format_exc()
    settle(result, known.cases, options)
    if known.file and result.outcome not in ("pass", "skipped"):
        said = dict.fromkeys(filter(None, (result.sentence, known.file.nothing_yet)))
        result.sentence = " ".join(said)
    result.seconds = time.monotonic() - start
    reporter.stage_ends(stage, result)
    return result
