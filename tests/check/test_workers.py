"""What a worker does otherwise for a function that is not of the course."""

import pytest

from grader.check import adapter
from grader.check.asking import Asked, Asking
from grader.host.processes import Confinement
from tests.sessions import error_of, open_session, run

LOOKS = """
{top}
import torch

def attention(q, k, v, *, is_causal):
    if torch.cuda.is_available() or q.is_cuda:
        raise ValueError("there is a GPU")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""


def plain_call(file, readable=()):
    with Asking(adapter.read(str(file)), "cpu", 1, Confinement(readable=readable)) as asking:
        return asking.found(Asked(asking.plain))


@pytest.mark.interpreter
@pytest.mark.parametrize(("top", "verdict"), [("", "right"), ("import triton", "refused")])
def test_only_a_file_with_kernels_of_its_own_is_told_of_a_gpu(tmp_path, top, verdict):
    file = tmp_path / "looks.py"
    file.write_text(LOOKS.format(top=top))
    assert plain_call(file).verdict == verdict


def test_a_package_that_is_installed_elsewhere_can_be_imported(tmp_path):
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "mine.py").write_text("answer = 42\n")
    file = tmp_path / "looks.py"
    file.write_text(LOOKS.format(top=f"import sys; sys.path.append({str(package)!r}); import mine"))
    assert plain_call(file, (package,)).verdict == "right"


def test_packages_that_are_installed_in_place_are_found(monkeypatch):
    class Package:
        def __init__(self, said):
            self.read_text = {"direct_url.json": said}.get

    monkeypatch.setattr(adapter.metadata, "distributions", lambda: [
        Package('{"url": "file:///home/me/my%20kernels", "dir_info": {"editable": true}}'),
        Package('{"url": "file:///home/me/built", "dir_info": {}}'), Package(None)])
    assert [*map(str, adapter.editable_folders())] == ["/home/me/my kernels"]


def test_a_call_that_is_not_recorded_has_no_trace():
    with open_session("answers.py", records=False) as session:
        assert run(session, "right").trace.operations == ()
    with open_session("answers.py") as session:
        assert len(run(session, "right").trace.operations) == 1


@pytest.mark.interpreter
def test_where_no_gpu_is_pretended_a_launch_returns_nothing():
    with open_session("needs_gpu.py", pretends=False) as session:
        assert "'NoneType' object has no attribute 'n_regs'" in error_of(
            session, "registers").sentence
