"""What a forged trace can have a replaying worker do."""

import pytest
import torch

from grader.sandbox.replay import replay

TENSOR = {"tensor": [0, 0, [4], [1], "float32"]}
FUNCTION = {"name": "kernel", "kind": "jit", "options": {}, "first": 1, "line": 1, "names": []}


def carried_out(tmp_path, *steps, functions=()) -> None:
    trace = {"storages": [{"bytes": 16, "input": "x"}, {"bytes": 4}], "functions": list(functions),
             "steps": list(steps), "outputs": [], "gradients": []}
    with torch.no_grad():
        replay.Replay(trace, {"x": torch.ones(4)}, "cpu", str(tmp_path), True).run()


def test_a_file_is_neither_read_nor_written(tmp_path):
    file = tmp_path / "of_another_submission.cubin"
    file.write_bytes(bytes(4))
    mapped = {"tensor": [1, 0, [1], [1], "float32"]}
    kwargs = {"dict": [["dtype", {"torch": "float32"}]]}
    with pytest.raises(replay.Unrepeatable, match="a file, by aten::from_file"):
        carried_out(tmp_path, ["op", "aten::from_file", [str(file), True, 1], kwargs, [mapped]],
                    ["op", "aten::fill_.Scalar", [mapped, 1.0], {"dict": []}, [mapped]])
    assert file.read_bytes() == bytes(4)


def test_pytorch_itself_is_not_changed(tmp_path):
    with pytest.raises(replay.Unrepeatable, match="no operation aten::__setattr__.__call__"):
        carried_out(tmp_path, ["op", "aten::__setattr__.__call__", ["clone", 3], {"dict": []}, []])
    assert not hasattr(torch.ops.aten.clone, "__index__")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_kernel_reads_the_numbers_of_a_library_and_nothing_else_of_it(tmp_path, library):
    pytest.importorskip("triton")
    told = {**FUNCTION, "names": [["lib", {"module": library}]]}

    def built(text):
        carried_out(tmp_path, ["launch", 0, [1], {"x": TENSOR}, {}], functions=[
            {**told, "text": f"def kernel(x):\n    {text}"}])

    built("y = -lib.inf")
    with pytest.raises(Exception, match="uses lib.zeros, which Triton does not have"):
        built("y = lib.zeros(3)")


def test_a_library_in_an_annotation_alone_is_not_looked_into(tmp_path):
    pytest.importorskip("triton")
    carried_out(tmp_path, ["launch", 0, [1], {"x": TENSOR}, {}], functions=[
        {**FUNCTION, "names": [["torch", {"module": "torch"}]],
         "text": "def kernel(x: torch.Tensor):\n    y = x"}])


def test_pythons_functions_are_those_that_a_kernel_may_use(tmp_path):
    pytest.importorskip("triton")
    function = {**FUNCTION, "text": "def kernel(x):\n    raise knobs",
                "names": [["__builtins__", {"module": "triton"}]]}
    with pytest.raises(Exception, match="name 'knobs' is not defined"):
        carried_out(tmp_path, ["launch", 0, [1], {"x": TENSOR}, {}], functions=[function])
