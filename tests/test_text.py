"""Text that came out of a submission is safe to show, and bounded."""

from grader.text import KEPT, Tail, escape


def test_control_and_direction_characters_are_shown_and_plain_text_stays():
    assert escape("a\x1b[0m\r\u202e\x00\n\té✅") == "a\\x1b[0m\\x0d\\u202e\\x00\n\té✅"


def test_a_long_stream_keeps_its_ends_and_counts_the_rest():
    tail = Tail()
    for piece in (b"<", b"a" * 3 * KEPT, b">"):
        tail.add(piece)
    text = tail.text()
    assert text.startswith("<a") and text.endswith("a>")
    assert f"[... {KEPT + 2} bytes left out ...]" in text
