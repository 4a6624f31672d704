"""Compiles what a trace launches, for a worker that will launch it soon.

Two processes share the work, both without a GPU.  One has the file and says what a call would
launch.  The other never sees the file and compiles the kernels from their text, as replay.py does,
so that the file cannot tamper with the cache.
"""

import base64
import json
import os
from contextlib import suppress
from pathlib import Path

import torch

from ..wire import DTYPES
from .replay import Replay

SENT = (".cubin", ".json", ".so")  # the files of a cache that a launch needs


class Address:
    """What a kernel's compilation depends on in a tensor."""

    def __init__(self, dtype: torch.dtype, address: int):
        self.dtype, self.address = dtype, address

    def data_ptr(self) -> int:
        return self.address


class Launches(Replay):
    """A replay whose launches only compile (compile_only.py) and whose operations do nothing."""

    def __init__(self, trace: dict, folder: str):
        self.trace, self.folder, self.interpreted = trace, Path(folder), False
        self.device, self.functions = "cuda", {}

    def compile(self) -> list[str]:
        """-> the names of the cache's folders with the results."""
        import triton.compiler.compiler as compiler
        import triton.runtime.build as build

        names: dict[str, None] = {}
        open_cache = compiler.get_cache_manager

        def noted(key):
            cache = open_cache(key)
            names[Path(cache.cache_dir).name] = None
            return cache

        compiler.get_cache_manager = build.get_cache_manager = noted
        try:
            for step in self.trace["steps"]:
                if step[0] == "launch":
                    self._make_launcher(self._launch(*step[1:]))
        finally:
            compiler.get_cache_manager = build.get_cache_manager = open_cache
        return list(names)

    def _make_launcher(self, kernel) -> None:
        """Compile the C code of a launch, which Triton leaves out if there is no driver."""
        with suppress(Exception):
            from triton.backends.nvidia import driver

            driver.CudaUtils()
            driver.CudaLauncher(kernel.src, kernel.metadata)

    def _tensor(self, what) -> Address:
        _, offset, _, _, dtype = what
        return Address(getattr(torch, dtype), 1024 + offset * getattr(torch, dtype).itemsize)


def note(worker, request: dict):
    """The trace of what a call would launch; no tensor is sent, nothing runs or compiles."""
    call = request["call"]
    worker.compiler.only_notes = True
    inputs, upstream, on_device, sent = worker.place(
        call, _fresh(call["inputs"]), _fresh(call["douts"]))
    gradients = []
    with (noted := worker._recorder(on_device, sent)):
        outputs = worker._call(call, inputs)
    if call["grads"]:
        with noted:
            gradients = worker._gradients(call, inputs, outputs, upstream)
    return {"trace": json.dumps(noted.trace(outputs, gradients, []))}, ()


def _fresh(layouts: dict) -> dict[str, torch.Tensor]:
    """Storages with arbitrary contents, which no one reads."""
    return {name: torch.empty(layout["numel"], dtype=DTYPES[layout["dtype"]], device="cpu")
            for name, layout in layouts.items()}


def compile_trace(worker, request: dict):
    """Compile what a trace launches.  -> the cache's files with the result, by folder."""
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    names = Launches(json.loads(request["trace"]), os.getcwd()).compile()
    return {"compiled": {name: packed(cache, name) for name in names}}, ()


def packed(cache: Path, name: str) -> dict[str, str]:
    """The files of a folder of the cache, in base64."""
    return {path.name: base64.b64encode(path.read_bytes()).decode()
            for path in (cache / name).iterdir() if path.suffix in SENT}


def take(worker, request: dict):
    """Put what another process compiled into this one's cache, unless it is there already."""
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    for name, files in request["compiled"].items():
        folder = cache / name
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        there = {file: str(folder / file) for file in files if not file.startswith("__grp__")}
        for file, contents in files.items():
            data = base64.b64decode(contents)
            if file.startswith("__grp__"):
                data = json.dumps({"child_paths": there}).encode()
            (folder / file).write_bytes(data)
    return {}, ()
