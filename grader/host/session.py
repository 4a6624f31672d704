"""Talks to a worker, and ends it.

    worker = Worker(source, "problem_3.py", device="cuda", interpret=False)
    with Session(worker, timeout=60) as session:
        session.load("flash_attention_forward", None, ("q", "k", "v", "is_causal"))
        reply = session.run(call)

The worker is not trusted.  Every wait has a deadline, every size is known before a byte is read,
nothing is unpickled, and how the process ended proves nothing: only a complete reply with the
request's nonce counts.  If parent and worker share an account, this protects against mistakes, not
against a determined cheat.
"""

import contextlib
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable

import torch

from grader.course.calls import (
    Call,
    CompiledKernel,
    Launch,
    Race,
    Reply,
    SubmissionError,
    Tuned,
    pack,
    results,
    size,
)
from grader.course.trace import Trace
from grader.host.clock import MORE, Clock, look_below, times
from grader.host.processes import Worker
from grader.sandbox import wire
from grader.text import Tail, escape

START_SECONDS = 120.0  # for Python and `import torch`, with a cold disk
DEATH_SECONDS = 3.0  # from a closed channel to the news that the worker has ended
ENDLESS_SECONDS = 10.0  # for a call of a file that has an endless loop
ASLEEP = 10  # looks, LOOK_SECONDS apart, at a late worker that does nothing: it sleeps
LOOK_SECONDS = 0.1
STEP = 64  # elements from the inputs of one timed call to the next; 16-byte aligned in any dtype
MAX_HEADER = 64 << 20  # enough for a very long trace
OUTCOMES = {"crashed", "wrong", "skipped"}  # what a worker may claim
DOING = {"start": "while Python and PyTorch started", "import": "while being imported",
         "case": "in a call of the entry point", "compile": "while its kernels compiled"}


class Session:
    """The conversation with one worker.  timeout: seconds per request."""

    def __init__(self, worker: Worker, timeout: float):
        self.worker, self.timeout = worker, timeout
        self.socket = worker.socket
        self.clock: Clock | None = None  # of the stage under way
        self.phase, self.pid = "start", 0  # pid: the worker's, once started
        self.asked, self.limit = 0.0, timeout  # when the last request was sent; its timeout
        self.end = 0.0  # when that is over, or when to look again how much CPU time it had
        self.last = 0.0  # when a late request is given up, whatever it had
        self.before = 0.0, 0.0  # times() at the last request
        self.cpu, self.idle = 0.0, 0  # CPU time since; looks at a late worker that did nothing
        self.seems_endless: Callable[[], bool] = lambda: False  # then ENDLESS_SECONDS are enough
        self.prepared: Call | None = None
        self.started = self.gone = False
        self.confined: tuple[str, ...] = ()  # the confinement in force, once started
        self.output = Tail()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def give(self, source: bytes) -> None:
        """Give the worker another file in place of the first, before load()."""
        self.worker.path.write_bytes(source)

    # --------------------------------------------------------------- requests
    def load(self, entry: str, attribute: str | None, positional: tuple[str, ...],
             keywords: tuple[str, ...] = ()) -> None:
        """Import the file, find the entry point (or its `apply`), check its arguments."""
        self.request({"op": "load", "entry": entry, "attribute": attribute,
                       "positional": list(positional), "keywords": list(keywords)}, "import")

    def run(self, call: Call) -> Reply:
        """Make one call, and fetch everything."""
        header, tensors = pack(call, with_refill=True)
        start = time.monotonic()
        specs = [(spec.shape, spec.dtype) for spec in call.outputs]
        grads = [(call.inputs[name].shape, call.inputs[name].storage.dtype) for name in call.grads]
        storages = [(t.storage.shape, t.storage.dtype)
                    for t in (*call.inputs.values(), *call.douts.values())]
        later = (specs + 2 * grads) * (call.repeats > 1)
        again = specs if call.refill is not None else []
        reply, blobs = self.request(
            {"op": "run", **header}, "case", tensors,
            expect=specs * call.repeats + grads + later + again + specs + storages,
        )
        seconds = time.monotonic() - start
        blobs = iter(blobs)

        def named(names: Iterable[str]) -> dict[str, torch.Tensor]:
            return {name: next(blobs) for name in names}

        names = [spec.name for spec in call.outputs]
        with self._reading():
            trace, race = Trace(reply["trace"]), Race.read(reply["race"])
            tuned = Tuned.read(reply.get("tuned"))
        return Reply(
            outputs=[named(names) for _ in range(call.repeats)],
            grads=named(call.grads),
            restrided=named(names if call.repeats > 1 else ()),
            grads_again=named(call.grads if call.repeats > 1 else ()),
            grads_late=named(call.grads if call.repeats > 1 else ()),
            refilled=named(names) if call.refill is not None else None,
            late=named(names),
            inputs_after=named(call.inputs),
            douts_after=named(call.douts),
            trace=trace,
            stdout=self.output.text(),
            seconds=seconds,
            race=race,
            tuned=tuned,
        )

    def replay(self, call: Call, trace: Trace) -> dict[str, torch.Tensor]:
        """Repeat the trace on the inputs of call, in a worker that loaded no file.

        -> outputs and, as "d_q", gradients.
        """
        header, tensors = pack(call)
        shapes = results(call)
        _, blobs = self.request({"op": "replay", "trace": trace.text, **header}, "case", tensors,
                                 expect=list(shapes.values()))
        return dict(zip(shapes, blobs, strict=True))

    def walk(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
        """Count which rows of queries and keys this call reads together.  -> read (flags), together
        (2, N, N) and tiles, see sandbox/worker/reads.py."""
        header, tensors = pack(call)
        N = call.inputs["q"].shape[-2]
        _, (read, together, tiles) = self.request(
            {"op": "walk", **header}, "case", tensors,
            expect=[((2, N, N), torch.uint8)] * 2 + [((2,), torch.int64)])
        return read, together > 0, tuple(tiles.clamp(1, N).tolist())

    def accesses(self, call: Call) -> list[Launch]:
        """What every program that this call launches loads and stores, as far as it comes."""
        header, tensors = pack(call)
        reply, _ = self.request({"op": "accesses", **header}, "case", tensors)
        with self._reading():
            return [Launch.read(launch) for launch in reply["launches"][:16]]

    def compile(self, call: Call, to_ptx: bool = False, known: dict[str, int] | None = None
                ) -> list[CompiledKernel]:
        """Compile what this call launches, for the worker's compile_for.  -> one entry per variant.

        to_ptx: stop there, which takes half the time.  known: variants that are not compiled again,
        hash -> bytes of shared memory.
        """
        header, tensors = pack(call)
        reply, _ = self.request({"op": "compile", "to_ptx": to_ptx, "known": known or {}, **header},
                                "compile", tensors)
        with self._reading():
            return [
                CompiledKernel(
                    escape(str(kernel["name"]))[:200], size(kernel["shared_bytes"]),
                    float(kernel["seconds"]),
                    tuple((size(line), escape(str(text))[:1000])
                          for line, text in kernel["warnings"][:100]),
                    size(kernel["line"]), escape(str(kernel["hash"]))[:64],
                )
                for kernel in reply["kernels"][:1000]
            ]

    def step(self, request: dict) -> list:
        """Run one blank of the file on its own.  -> the unchecked answers of worker/run_step.py,
        for each text one per example."""
        reply, _ = self.request({"op": "step", **request}, "case")
        return reply.get("examples")

    def start(self) -> None:
        """Wait until the worker is ready; it has not read the submission yet."""
        if not self.started:
            ready, _ = self._exchange({}, "start", (), (), START_SECONDS, "")
            self.confined = tuple(map(str, ready["confined"]))
            self.pid = ready["pid"]  # sent before the file is imported
            self.started = True

    def time(self, call: Call, n: int) -> float:
        """Seconds, by this process's clock, for n calls back to back.

        Before the clock starts, the inputs are in place and one call was made.  With grads, each
        turn is a forward and a backward.  Turn i reads its inputs STEP * i elements further into
        their storages.

        Raises:
            ValueError: a storage is too short for n turns.
        """
        for name, tensor in call.inputs.items():
            if tensor.end() + STEP * (n - 1) > tensor.storage.numel():
                raise ValueError(f"{name}: want a storage of {tensor.end() + STEP * (n - 1)} "
                                 f"elements for {n} timed calls; got {tensor.storage.numel()}")
        self.prepare(call)
        self.request({"op": "arrange", "n": n, "step": STEP}, "case")
        self.kept_turn = secrets.randbelow(n)
        start = time.monotonic()
        self.request({"op": "time", "keep": self.kept_turn}, "case")
        return time.monotonic() - start

    def kept(self, call: Call) -> tuple[int, dict[str, torch.Tensor]]:
        """-> a turn drawn from the calls timed last; its answer."""
        shapes = results(call)
        _, blobs = self.request({"op": "kept"}, "case", expect=list(shapes.values()))
        return self.kept_turn, dict(zip(shapes, blobs, strict=True))

    def memory(self, call: Call) -> int:
        """Peak bytes of one call, outputs included, inputs not."""
        self.prepare(call)
        reply, _ = self.request({"op": "memory"}, "case")
        with self._reading():
            return size(reply["peak_bytes"])

    def prepare(self, call: Call) -> None:
        """Put the inputs in place and make one call, before a measurement."""
        if self.prepared is not call:
            header, tensors = pack(call)
            self.request({"op": "prepare", **header}, "case", tensors)
            self.prepared = call

    def close(self) -> None:
        """End the worker and all it started, and remove its folder, in bounded time."""
        self.worker.close()

    # -------------------------------------------------------------- transport
    def request(self, header: dict, phase: str, tensors=(), expect=()):
        """Send one request and read its reply: (header, tensors of the expected sizes)."""
        if self.gone:
            raise SubmissionError("crashed", "the worker ended earlier", fatal=True)
        self.start()
        return self._exchange(header, phase, tensors, expect, self.timeout, secrets.token_hex(16))

    def _exchange(self, header, phase, tensors, expect, seconds, nonce):
        before, self.before = self.before, times(self.pid)
        if self.clock is not None:
            self.clock.add(max(0.0, self.before[1] - before[1]))
        self.phase, self.limit, self.asked = phase, seconds, time.monotonic()
        self.end, self.last, self.idle = self.asked + seconds, float("inf"), 0
        blobs = [torch.empty(shape, dtype=dtype) for shape, dtype in expect]
        try:
            if header:
                self._send(wire.pack_header({"nonce": nonce, **header}))
                for tensor in tensors:
                    self._send(wire.raw_bytes(tensor))
            with self._reading():
                reply = self._receive_header(nonce)
                if reply.get("ok") is False:
                    raise self._finding(reply)
            for blob in blobs:
                self._receive(wire.raw_bytes(blob))
        except TimeoutError:
            raise self._lost(self._late()) from None
        except (OSError, EOFError):
            raise self._lost(self._death()) from None
        self._drain()
        return reply, blobs

    def _send(self, data) -> None:
        data = memoryview(data)
        while data:
            _, writable, _ = self._wait([self.socket])
            if writable:
                data = data[self.socket.send(data[:1 << 20], socket.MSG_DONTWAIT):]

    def _receive_header(self, nonce: str) -> dict:
        while True:
            length = bytearray(wire.LENGTH.size)
            self._receive(memoryview(length))
            size = wire.LENGTH.unpack(length)[0]
            if size > MAX_HEADER:
                raise ValueError(f"want a header of at most {MAX_HEADER} bytes; got {size}")
            text = bytearray(size)
            self._receive(memoryview(text))
            header = json.loads(text)
            if header["nonce"] != nonce:
                raise ValueError("a reply to no request")
            if "phase" not in header:
                return header
            if header["phase"] in ("compile", "case"):
                self.phase = header["phase"]

    def _receive(self, buffer: memoryview) -> None:
        while buffer:
            readable, _, _ = self._wait([])
            if self.socket not in readable:
                continue
            got = self.socket.recv_into(buffer)
            if got == 0:
                raise EOFError
            buffer = buffer[got:]

    def _wait(self, writing):
        """Wait until the socket is ready; meanwhile collect what the submission prints.

        A child of the submission can keep the socket open after the worker died, so between short
        sleeps this also looks whether the process is alive.
        """
        while True:
            if self.seems_endless() and self.limit > ENDLESS_SECONDS:
                self.limit, self.end = ENDLESS_SECONDS, self.asked + ENDLESS_SECONDS
            now, over = time.monotonic(), self.clock.end if self.clock else float("inf")
            left = min(self.end, over) - now
            reading = [self.socket] if not writing else []
            pipes = [] if self.output.closed else [self.worker.stdout]
            ready = select.select(reading + pipes, writing, [], max(0.0, min(left, 0.1)))
            if self.worker.stdout in ready[0]:
                self._drain()
            if now >= self.end:
                self.last = min(self.last, now + MORE * self.limit)
            if self.socket in ready[0] or ready[1]:
                if now < self.last:
                    return ready  # even if late: this process may have waited for a CPU, too
            elif self.worker.has_ended() and not select.select([self.socket], [], [], 0)[0]:
                raise EOFError
            if now >= self.end:
                self.end = now + self._more()
            if now >= min(self.end, over):
                raise TimeoutError

    def _more(self) -> float:
        """Seconds that a late request still has: those of CPU time that the worker, with all that
        it started, has not had yet, but not more than MORE limits in all.  0 if it sleeps."""
        if not self.pid:  # it has not started
            return 0.0
        cpu, is_busy = look_below(self.pid)
        left = self.last - time.monotonic()
        self.cpu = cpu - self.before[0]
        self.idle = 0 if is_busy else self.idle + 1 if left > 0 else ASLEEP
        if not self.is_starved():
            return 0.0
        return min(max(self.limit - self.cpu, LOOK_SECONDS) if is_busy else LOOK_SECONDS, left)

    def is_starved(self) -> bool:
        """Whether a late worker had less CPU time than its limit, though it does not sleep."""
        return self.pid > 0 and self.cpu < self.limit and self.idle < ASLEEP

    def _drain(self) -> None:
        """Collect what is in the pipe now, without waiting."""
        while not self.output.closed:
            try:
                data = os.read(self.worker.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            self.output.add(data)
            if len(data) < 1 << 16:
                return

    # --------------------------------------------------------------- findings
    def _finding(self, reply: dict) -> SubmissionError:
        """The finding that the worker reports.  Its words are shown, never trusted."""
        outcome, line = reply["outcome"], reply["line"]
        if outcome not in OUTCOMES:
            raise ValueError(f"want one of {sorted(OUTCOMES)}; got {outcome}")
        finding = SubmissionError(
            outcome, escape(str(reply["sentence"])[:1000])[:1000],
            id=reply["id"] if reply["id"] in wire.OBSERVED else "",
            detail=f"{self._printed()}\n{escape(str(reply['detail'])[-wire.MAX_TEXT:])}".strip("\n")[
                -wire.MAX_TEXT:],
            line=line if type(line) is int else None, fatal=bool(reply["fatal"]), column=column if
            type(column := reply.get("column")) is int else None, lines=tuple(number for number in
            reply.get("lines", ()) if type(number) is int),
        )
        return self._lost(finding) if finding.fatal else finding

    def _late(self) -> SubmissionError:
        """The finding for a request without an answer in time."""
        if self.clock is not None and self.clock.is_over():
            return SubmissionError("timeout", f"{self.clock.words()} {DOING[self.phase]}",
                                   detail=self._printed(), fatal=True)
        sentence = f"no answer within {self.limit:g} s {DOING[self.phase]}"
        if self.phase == "start":
            return SubmissionError("grader_fault", sentence, detail=self._printed(), fatal=True)
        if self.is_starved():
            sentence = (f"this machine was busy: {self.cpu:.0f} s of CPU time, of {self.limit:g} s "
                        f"allowed, in {time.monotonic() - self.asked:.0f} s {DOING[self.phase]}")
        return SubmissionError("timeout", sentence, id="timeout", detail=self._printed(),
                               fatal=True, waited_for_cpu=self.is_starved())

    def _lost(self, error: SubmissionError) -> SubmissionError:
        self.gone = True
        self.worker.end()
        return error

    def _death(self) -> SubmissionError:
        ending = self.worker.ending(DEATH_SECONDS)
        if self.phase == "start":
            code = ending and ending.returncode
            hint = "; --worker-user none may help" if self.worker.other_user else ""
            return SubmissionError("grader_fault", f"the worker process did not start (exit code "
                                   f"{code}){hint}", detail=self._printed(), fatal=True)
        # None: it closed its channel and is still alive.
        what = "closed the channel to the grader" if ending is None else ending.words()
        when = "during a call" if self.phase == "case" else DOING[self.phase]
        return SubmissionError("crashed", f"the file {what} {when}", detail=self._printed(),
                               fatal=True)

    def _printed(self) -> str:
        self._drain()
        return self.output.text()[-wire.MAX_TEXT:]

    @contextlib.contextmanager
    def _reading(self):
        """Within this block, what the worker said is read; end the worker if it is no answer."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
                MemoryError) as error:
            raise self._lost(SubmissionError(
                "crashed", "the file under test broke the channel to the grader",
                detail=escape(str(error))[:wire.MAX_TEXT], fatal=True)) from None
