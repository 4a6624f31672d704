"""On a GPU, compiles the kernels of the coming cases while the first ones run.

It shares the cores with other gradings.  A worker without a GPU, which has the file, says what each
case would launch (replay/launches.py).  Workers that never see the file compile every variant once,
and the results are copied into the caches of the graded worker and of the replaying ones.  No
verdict depends on it: a kernel that is missing from the cache is compiled at its launch.
"""

import concurrent.futures
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from grader.course.calls import SubmissionError, pack
from grader.course.cases import Case
from grader.course.inputs import build
from grader.host import kernel_cache, worker_pool
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.timing import shapes

PATIENCE = 20.0  # seconds without an answer after which a worker is given up
LONG = 1024  # longer multiples of 16 use the same kernels
CONSTEXPR = re.compile(r"(\w+)\s*:\s*(?:\w+\.)*constexpr")


class Precompiler:
    """Works from now on.  Call ready(session, case) before each case.  cases: all that may be run;
    those that are timed are added here."""

    def __init__(self, context: GradingContext, cases: Sequence[Case]):
        self.stage, self.options = stage, options = context.stage, context.options
        timed = shapes(stage, options.bfloat16) if options.benchmark else []
        self.cases = {case.name: case  # a timed case may be among them
                      for case in (*timed, *cases)}
        self.is_asked_for = stage.needs_triton and not kernel_cache.knows(
            context.file.source, options.confinement.user)
        self.launched = {name: concurrent.futures.Future() for name in self.cases}
        self.compiled: dict[str, concurrent.futures.Future] = {}  # by variant
        self.given: dict[int, set[str]] = {}  # by worker
        if self.is_asked_for:
            major, minor = torch.cuda.get_device_capability()
            capability = 10 * major + minor
            self.workers = worker_pool.workers(
                "cpu", options.timeout, options.confinement, capability)
            # As many threads as workers: one more might wait for ever.
            self.pool = context.stack.enter_context(
                concurrent.futures.ThreadPoolExecutor(self.workers.count))
            context.stack.callback(self.pool.shutdown, wait=False, cancel_futures=True)
            context.beside(self._note, capability)

    def ready(self, session: Session, case: Case) -> None:
        """Wait for the kernels of this case, and give them to the worker that will run it."""
        if not self.is_asked_for or case.name not in self.launched:
            return
        try:
            waiting = self.launched[case.name].result(PATIENCE)
            found = [one.result(self.options.timeout) for one in waiting]
        except TimeoutError:
            self.is_asked_for = False
            return
        except (SubmissionError, concurrent.futures.CancelledError, LookupError, OSError,
                RuntimeError):
            return  # what is wrong will show when the case runs
        given = self.given.setdefault(session.pid, set())
        new = {name: files for one in found for name, files in one.items() if name not in given}
        if new:
            given |= set(new)
            session.request({"op": "take", "compiled": new}, "case")

    def _note(self, session: Session) -> None:
        """Ask what each case launches, and compile each new variant."""
        try:
            self.options.imports.helper(session, self.stage)
            for name, case in self.cases.items():
                header, _ = pack(build(_shortened(case), self.options.seed).call)
                reply, _ = session.request({"op": "note", "call": header}, "case")
                waiting = []
                for key, trace in variants(reply["trace"]):
                    if key not in self.compiled:
                        self.compiled[key] = self.pool.submit(self._compile, trace)
                    waiting.append(self.compiled[key])
                self.launched[name].set_result(waiting)
        except (SubmissionError, LookupError, TypeError, ValueError, AttributeError,
                OSError, RuntimeError):  # the trace of an untrusted worker may be anything
            pass
        finally:
            for future in self.launched.values():
                if not future.done():
                    future.set_result([])

    def _compile(self, trace: str) -> dict[str, dict[str, str]]:
        """-> the compiled files: folder in the cache -> name -> contents in base64."""
        def ask(session: Session):
            return session.request({"op": "compile_trace", "trace": trace}, "compile")
        reply, _ = self.workers.ask(ask)
        return reply["compiled"]


def _shortened(case: Case) -> Case:
    """A shorter case that launches the same kernels."""
    return replace(case, **{size: LONG for size in ("M", "N") if getattr(case, size) % LONG == 0
                            and getattr(case, size)})


def variants(text: str) -> Iterator[tuple[str, str]]:
    """For each launch of a trace: a key of its compilation, and a trace of this launch alone.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: text is no trace.
    """
    trace = json.loads(text)
    for step in trace["steps"]:
        if step[0] == "launch":
            _, number, _, arguments, options = step
            constants = set(CONSTEXPR.findall(trace["functions"][number]["text"]))
            told = {name: value if name in constants else _kind(value)
                    for name, value in arguments.items()}
            one = {"functions": trace["functions"], "steps": [step]}
            yield json.dumps([trace["functions"], number, told, options]), json.dumps(one)


def _kind(value):
    """The property of an argument that a kernel is specialised for."""
    if type(value) is int:
        return ["int", value if value == 1 else value % 16 == 0, abs(value) >= 2**31]
    if isinstance(value, float):
        return "float"
    if isinstance(value, dict) and "tensor" in value:
        _, offset, _, _, dtype = value["tensor"]
        return [dtype, offset * getattr(torch, dtype).itemsize % 16 == 0]
    if isinstance(value, dict) and "tuple" in value:
        return [_kind(item) for item in value["tuple"]]
    if isinstance(value, dict) and "named" in value:
        fields, items = value["named"]
        return [fields, [_kind(item) for item in items]]
    return value
