"""Processes that form groups of torch.distributed: over gloo on the CPU, or one for each GPU."""

import contextlib
import multiprocessing
import os

import torch
import torch.distributed as dist

from grader.sandbox.kernels.interpreter_speedups import spare_repetition

SECONDS = 120  # the longest that a test waits for an answer


ON_THE_CPU = dict(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")


class Ranks:
    """The processes.  On the CPU they are forked from one that has imported torch and Triton."""

    def __init__(self, folder, backend: str = "gloo", most: int = 4):
        context = multiprocessing.get_context("forkserver" if backend == "gloo" else "spawn")
        context.set_forkserver_preload([__name__, "transformers", "sink_attn.context_parallel"])
        self.pipes, self.processes = [], []
        for rank in range(most):
            ours, theirs = context.Pipe()
            args = theirs, backend, rank, most, f"{folder}/store"
            with _environment(**ON_THE_CPU if backend == "gloo" else {}):
                process = context.Process(target=_serve, args=args)
                process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, size: int, function, *args, **options) -> list:
        """Returns function(group, *args, **options) of every rank, or what it raised."""
        for pipe in self.pipes[:size]:
            pipe.send((size, function, args, options))
        late = [not pipe.poll(SECONDS) for pipe in self.pipes[:size]]
        assert not any(late), f"no answer in time from ranks {late}"
        return [pipe.recv() for pipe in self.pipes[:size]]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


@contextlib.contextmanager
def _environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _serve(pipe, backend, rank, most, store):
    if backend == "gloo":
        torch.set_num_threads(1)
        spare_repetition()
    else:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=most)
    groups = {size: dist.new_group(range(size)) for size in range(1, most + 1)}
    while True:
        size, function, args, options = pipe.recv()
        try:
            answer = function(groups[size], *args, **options)
        except Exception as error:  # a test says what it wants to be raised
            answer = error
        pipe.send(answer)
