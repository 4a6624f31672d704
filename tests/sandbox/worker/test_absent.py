"""What is said of a file that asks for what is not there, and what is not held against it."""

import pytest

from grader.course.calls import SubmissionError
from grader.host.processes import Worker
from grader.host.session import Session
from tests.sessions import double_call

HEAD = "import os\nimport torch\n"
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, 2 * tl.load(x + at, at < 12), at < 12)

def double(x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, N=16)
    return y
"""


def of(source: str, **settings) -> str:
    """What is said of the file when it is imported, then called; "" if it answers."""
    settings = {"device": "cpu", "interpret": True, **settings}
    with Session(Worker(source.encode(), "a.py", **settings), 60.0) as session:
        try:
            session.load("double", None, ("x",))
            if settings.get("compile_for"):
                session.compile(double_call())
            else:
                session.run(double_call())
        except SubmissionError as error:
            return error.sentence
    return ""


@pytest.mark.parametrize("line", [
    "torch.cuda.Event(enable_timing=True)", "torch.cuda.mem_get_info()", "torch.cuda.Stream()",
    "torch.cuda.get_device_properties(0).max_threads_per_multi_processor", "torch.cuda.init()",
    "torch.cuda.memory_summary()", "torch.Generator(device='cuda')", "torch.cuda.CUDAGraph()",
    "torch.cuda.reset_peak_memory_stats()", "torch.cuda.utilization()",
    "__import__('subprocess').run(['nvidia-smi'])"])
def test_what_needs_a_gpu_belongs_below_the_main_guard(line):
    said = of(f"{HEAD}{line}\ndef double(x):\n    return 2 * x\n")
    assert said.startswith("a.py asks for a GPU while being imported, and there is none here")
    assert 'put timing and anything else that needs one under if __name__ == "__main__":' in said


@pytest.mark.interpreter
def test_so_does_tritons_own_timing():
    said = of(HEAD + KERNEL + "\ntriton.testing.do_bench(lambda: double(torch.ones(12)))\n")
    assert said.startswith("a.py asks for a GPU while being imported")


@pytest.mark.parametrize("line", ["raise ValueError('want CUDA tensors')",
                                  "assert x.dim() == 9, 'a CUDA kernel of nine axes'"])
def test_what_a_file_raises_itself_keeps_its_words(line):
    said = of(f"{HEAD}def double(x):\n    {line}\n")
    assert "CUDA" in said and "asks for a GPU" not in said


@pytest.mark.interpreter
def test_a_kernel_that_the_compiler_gives_up_on_asks_for_no_gpu():
    source = KERNEL.replace("@triton.jit", """
@triton.jit
def add(t, x, i):
    if tl.max(t) < 0:
        return t
    return t + tl.load(x + tl.cast(i, tl.int64) + tl.arange(0, 16))

@triton.jit""").replace("    tl.store(y + at, 2 * tl.load(x + at, at < 12), at < 12)", """
    t = tl.load(x + at)
    for i in range(0, N):
        t = add(t, x, i)
    tl.store(y + at, t)""")
    said = of(HEAD + source, compile_for=90)
    assert "PassManager::run failed. Try: " in said and "asks for a GPU" not in said


@pytest.mark.parametrize(("line", "said"), [
    ("import no_such_one", "a.py imports no_such_one, which is not installed: the course needs "
     "only PyTorch, Triton and NumPy."),
    ("import helpers.masks", "a.py imports helpers, which is not installed"),
    ("from .utils import f", "a.py uses a relative import"),
    ("import torch.nothing", "a.py imports torch.nothing, which torch 2."),
    ("open('table.txt')", "FileNotFoundError while being imported: there is no table.txt. A file "
     "is graded on its own"),
    ("os.chdir('/content')", "FileNotFoundError while being imported: there is no /content."),
    ("get_ipython()", "a.py calls get_ipython, which only exists in a notebook: remove"),
    ("display(1)", "a.py calls display, which only exists in a notebook: remove that"),
    ("raise PermissionError(13, 'no', '/opt/cache')", "PermissionError while being imported: a "
     "file that is graded may not open /opt/cache. It may write to its working directory, ~, "
     "tempfile.gettempdir() and the TRITON_CACHE_DIR it is given"),
])
def test_what_is_not_there_is_said_with_what_there_is(line, said):
    assert of(f"{HEAD}{line}\ndef double(x):\n    return 2 * x\n").startswith(said)


def test_the_folders_that_are_named_can_be_written():
    assert of(HEAD + """import tempfile
assert tempfile.gettempdir() == os.environ["TMPDIR"]  # though dill, say, asked before the fork
for folder in (".", os.path.expanduser("~"), tempfile.gettempdir(), os.environ["TRITON_CACHE_DIR"]):
    open(os.path.join(folder, "mine"), "w").write("x")
def double(x):
    return 2 * x
""") == ""


@pytest.mark.interpreter
@pytest.mark.parametrize("line", ['os.environ["TRITON_INTERPRET"] = "0"',
                                  'del os.environ["TRITON_INTERPRET"]',
                                  'os.environ["TRITON_CACHE_DIR"] = "/proc/mine"'])
@pytest.mark.parametrize("mode", [{}, {"compile_for": 90}], ids=["interpreted", "compiled"])
def test_a_file_that_sets_tritons_variables_is_graded_like_any_other(line, mode):
    assert of(HEAD + line + KERNEL, **mode) == ""


@pytest.mark.interpreter
def test_a_file_that_turns_the_interpreter_off_all_the_same_is_told_once():
    source = KERNEL.replace("@triton.jit", "triton.knobs.runtime.interpret = False\n@triton.jit")
    assert of(HEAD + source).startswith("want every kernel in Triton's interpreter, for lack of "
                                        "a GPU; got kernel without")


@pytest.mark.interpreter
@pytest.mark.parametrize("mode", [{}, {"compile_for": 90}], ids=["interpreted", "compiled"])
def test_a_kernel_without_a_text_of_its_own_is_refused_in_tritons_words(mode):
    made = HEAD + "import triton\nexec('@triton.jit\\ndef kernel(x):\\n    pass\\n')\n"
    assert of(made + "def double(x):\n    return 2 * x\n", **mode).startswith(
        "ValueError while being imported: @jit functions should be defined in a Python file")
