"""Samples of a kernel's lines, as Proton writes them, without a GPU."""

from grader.sandbox.worker import profiling


def node(name, samples=0, *children):
    return {"frame": {"name": name}, "metrics": {"num_samples": samples}, "children": children}


def test_samples_are_counted_by_line_in_the_calls_that_were_asked():
    kernel = node("kernel", 0, node("/w/problem_4.py:9@kernel", 5), node("/w/problem_4.py:7@f", 20),
                  node("/lib/triton/language/standard.py:9@kernel", 10))
    other = node("other", 0, node("/w/problem_4.py:9@other", 1))
    tree = node("ROOT", 0, kernel, node("sampled", 0, kernel, other))
    assert profiling.counted(tree, "problem_4.py") == {"samples": 36, "lines": [(7, 20), (9, 6)]}
