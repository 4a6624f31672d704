"""Decodes and parses a submission's text, and makes what it printed safe to show."""

import ast
import codecs
import io
import json
import re
import threading
import tokenize
import unicodedata

_parsing = threading.Lock()
UNPARSABLE = (SyntaxError, RecursionError, MemoryError)  # of syntax_tree()
KEPT = 32 * 1024  # bytes kept of the start and of the end of what a submission prints
NAMES = {"acc", "alpha", "delta", "dlse", "exp", "exp2", "lse"}  # in sentences on mistakes
CODINGS = {"utf-8", "utf-8-sig", "ascii", "iso-8859-1", "iso-8859-15", "cp1252"}
# What a line that is no Python looks like -> where it comes from, and what to do.
STRANGERS = (
    (r"(%%?|!!? ?|\?\??)[A-Za-z]|\w[\w.]*\?+$|\w+ *= *[%!]",
     "a notebook, and this is a Python file: take it out"),
    (r"```|~~~", "the page or the chat that the code was copied from: take it out"),
    (r"<(!|\?xml|html)", "a web page: save the file itself, on GitHub by its Raw button"),
    (r"<<<<<<<|=======$|>>>>>>>", "git, which could not merge two texts here: keep one of them"),
)
WARNING = re.compile(r"^(?:\S*/)?([^/\s]+\.py:\d+: \w*Warning: )(.*)$", re.MULTILINE)


def syntax_tree(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """ast.parse(), one thread at a time: two at once can raise SystemError.

    Raises:
        UNPARSABLE: it is not Python, or nested too deeply.
    """
    with _parsing:
        return ast.parse(source, filename)


def lines(text: str) -> list[str]:
    """Lines with their ends, as Python counts them; str.splitlines also splits at a form feed."""
    return list(io.StringIO(text, newline=""))


def coding(source: bytes) -> str:
    """The encoding that the file names, if decoding it takes time linear in its length.

    Raises:
        SyntaxError: it is unknown, or takes longer.
    """
    if source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _not_utf8("UTF-16")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError as error:
        _, _, encoding = error.msg.partition("unknown encoding: ")
        if not encoding:  # the lines that may name a coding are not UTF-8 themselves
            return "utf-8"
    if encoding not in CODINGS:
        first, second = (source + b"\n").split(b"\n", 2)[:2]
        raise _not_utf8(f"{encoding}, which line {{}} names", 1 if b"coding" in first else 2,
                        "take that line out and save it as UTF-8")
    return encoding


def decode(source: bytes) -> str:
    """The text, by the file's own coding line.

    Raises:
        SyntaxError: it cannot be decoded that way.
    """
    encoding = coding(source)
    if b"\0" in source:
        line = source[:source.index(b"\0")].count(b"\n") + 1
        raise _not_utf8("a null byte in line {}, as UTF-16 has them", line)
    try:
        return source.decode(encoding)
    except UnicodeDecodeError as error:
        what = f"the byte {source[error.start]:#04x} in line {{}}"
        what += f", where coding {encoding} has none" * (not encoding.startswith("utf-8"))
        raise _not_utf8(what, source[:error.start].count(b"\n") + 1) from None


def _not_utf8(what: str, line: int | None = None, wanted: str = "save it as UTF-8") -> SyntaxError:
    return SyntaxError(f"want a file in UTF-8; got {what.format(line)}: {wanted}",
                       (None, line, None, None))


def is_notebook(text: str) -> bool:
    """Whether the text is a notebook's JSON, whatever the file is called."""
    try:
        return text.lstrip().startswith("{") and "cells" in json.loads(text)
    except (ValueError, RecursionError):
        return False


def stranger(text: str, line: int | None) -> str:
    """A sentence on a line that was not written for a Python file (a diff, a notebook), or "" """
    rows = lines(text)
    row = rows[line - 1].strip() if line and line <= len(rows) else ""
    whose = next((whose for pattern, whose in STRANGERS if re.match(pattern, row)), "")
    return whose and f"line {line}, {escape(row[:60])}, belongs to {whose}"


def escape(text: str) -> str:
    """Show control, ANSI and direction-changing characters as \\x1b and the like.

    Newlines and tabs stay.  A terminal or a web page then shows the text and obeys none of it.
    """
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return char
    code = ord(char)
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def brief(printed: str, filename: str) -> str:
    """What a submission printed, without the path of its temporary folder, and only the first
    sentence of a warning: PyTorch's go on with places inside PyTorch."""
    def warning(found: re.Match) -> str:
        said = found[2].partition(". ")[0]
        return found[1] + (said if len(said) <= 150 else said[:147] + "...")

    printed = re.sub(rf"(?<![^\s\"'(])[^\s\"'(]*/(?={re.escape(filename)}\b)", "", printed)
    return WARNING.sub(warning, printed)


def sentence(words: str) -> str:
    """The words as a sentence: with a capital letter, unless they begin with a name of the code."""
    first = re.match(r"[\w.]*", words)[0]
    is_name = len(first) < 3 and first not in ("a", "in", "no") or first in NAMES or "." in first
    return (words if is_name else words[:1].upper() + words[1:]) + "."


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


def either(words, last: str = "or") -> str:
    """ "6.3, 6.4 or 6.8"."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def tensor_name(name: str) -> str:
    """A tensor as messages call it: "k.grad", "o"."""
    return f"{name[2:]}.grad" if name.startswith("d_") else name


class Tail:
    """The first and the last 32 KiB of a stream of any length."""

    def __init__(self):
        self.first, self.last = bytearray(), bytearray()
        self.count = 0
        self.closed = False

    def add(self, data: bytes) -> None:
        """Add data; empty data marks the end of the stream."""
        self.closed = not data
        self.count += len(data)
        room = KEPT - len(self.first)
        self.first += data[:room]
        self.last += data[room:]
        del self.last[:-KEPT]

    def text(self) -> str:
        """What was kept, escaped, with a line on how much is missing."""
        missing = self.count - len(self.first) - len(self.last)
        gap = f"\n[... {missing} bytes left out ...]\n".encode() if missing else b""
        return escape((bytes(self.first) + gap + bytes(self.last)).decode(errors="replace"))
