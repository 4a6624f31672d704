"""Text that came out of a submission is safe to show, and bounded."""

from grader.text import KEPT, Tail, brief, escape


def test_control_and_direction_characters_are_shown_and_plain_text_stays():
    assert escape("a\x1b[0m\r\u202e\x00\n\té✅") == "a\\x1b[0m\\x0d\\u202e\\x00\n\té✅"


def test_a_warning_is_one_sentence_and_a_temporary_folder_is_cut():
    printed = """q is (1, 2)
/tmp/grade_x1/problem_1.py:95: UserWarning: The .grad attribute of a Tensor is accessed. Its .grad \
won't be populated. (Triggered internally at /pytorch/build/TensorBody.h:489.)
  return q.grad
  File "/tmp/grade_x1/problem_1.py", line 3, in f
"""
    assert brief(printed, "problem_1.py") == """q is (1, 2)
problem_1.py:95: UserWarning: The .grad attribute of a Tensor is accessed
  return q.grad
  File "problem_1.py", line 3, in f
"""
    assert len(brief(f"/lib/torch/graph.py:8: FutureWarning: {'x ' * 200}", "problem_1.py")) < 180


def test_a_long_stream_keeps_its_ends_and_counts_the_rest():
    tail = Tail()
    for piece in (b"<", b"a" * 3 * KEPT, b">"):
        tail.add(piece)
    text = tail.text()
    assert text.startswith("<a") and text.endswith("a>")
    assert f"[... {KEPT + 2} bytes left out ...]" in text
