"""Four processes on the CPU that form groups of torch.distributed, over gloo."""

import contextlib
import multiprocessing
import os

import torch
import torch.distributed as dist

from grader.sandbox.kernels.interpreter_speedups import spare_repetition

MOST = 4
SECONDS = 120  # the longest that a test waits for an answer


class Ranks:
    """The processes.  They are forked from one that has imported torch and Triton."""

    def __init__(self, folder):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "transformers", "sink_attn.context_parallel"])
        self.pipes, self.processes = [], []
        for rank in range(MOST):
            ours, theirs = context.Pipe()
            with _environment(
                TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo"
            ):
                process = context.Process(target=_serve, args=(theirs, rank, f"{folder}/store"))
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
            process.terminate()
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


def _serve(pipe, rank, store):
    torch.set_num_threads(1)
    spare_repetition()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=MOST)
    groups = {size: dist.new_group(range(size)) for size in range(1, MOST + 1)}
    while True:
        size, function, args, options = pipe.recv()
        try:
            answer = function(groups[size], *args, **options)
        except Exception as error:  # a test says what it wants to be raised
            answer = error
        pipe.send(answer)
