"""A submission's text: as Python's tree; and what came out of it, made safe to show."""

import ast
import threading
import unicodedata

_parsing = threading.Lock()
KEPT = 32 * 1024  # bytes kept at either end of what a submission prints


def syntax_tree(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """ast.parse(); one thread at a time, for a second one may have it raise SystemError."""
    with _parsing:
        return ast.parse(source, filename)


def escape(text: str) -> str:
    """Show control, ANSI and direction-changing characters as \\x1b and the like.

    Newlines and tabs stay.  A terminal or a web page then shows what was printed, and obeys none
    of it.
    """
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return char
    code = ord(char)
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def ranges(numbers: list[int] | tuple[int, ...], at_most: int | None = None) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"; more runs than at_most end in an ellipsis."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(words[:at_most]) + ", ..." * (at_most is not None and len(words) > at_most)


class Tail:
    """The first and the last 32 KiB of a stream of any length."""

    def __init__(self):
        self.first, self.last = bytearray(), bytearray()
        self.count = 0
        self.closed = False

    def add(self, data: bytes) -> None:
        """Empty data means the end of the stream."""
        self.closed = not data
        self.count += len(data)
        room = KEPT - len(self.first)
        self.first += data[:room]
        self.last += data[room:]
        del self.last[:-KEPT]

    def text(self) -> str:
        """What was kept, escaped, with a line that says how much is missing."""
        missing = self.count - len(self.first) - len(self.last)
        gap = f"\n[... {missing} bytes left out ...]\n".encode() if missing else b""
        return escape((bytes(self.first) + gap + bytes(self.last)).decode(errors="replace"))
