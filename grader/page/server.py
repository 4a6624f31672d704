"""The page as a file, or served to this computer alone for as long as a watch lasts."""

import contextlib
import http.server
import os
import secrets
import sys
import threading
import urllib.parse
import webbrowser
from pathlib import Path

from grader.assignment import hints
from grader.assignment.submission import Submission
from grader.course.stages import STAGES, Stage
from grader.host import files
from grader.page.document import LAST, Shown, document
from grader.report import overview
from grader.report.results import StageResult

WAIT_SECONDS = 25.0  # that a browser waits for news before it asks again
BROWSERS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # variables where there is one
HEADERS = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store",
           "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
           "X-Content-Type-Options": "nosniff"}
MOST_BYTES = 1000  # of what a form may send


class Page:
    """What was shown last.  show() is called with every result, first when the steps are known."""

    address = ""  # of one that is served

    def __init__(self, directory: Path):
        self.directory, self.shown, self.news = directory, {}, threading.Condition()
        self.asked: dict[str, list[str]] = {}  # step -> the hints that were given here

    def show(self, stage: Stage, result: StageResult, file: Submission | None,
             is_whole: bool = False) -> None:
        """Have the page say this of the stage.  is_whole: all is known; file: None if the grader
        failed before it was read."""
        if file is not None:
            following = self.following(result) if is_whole or result.to_fix else ""
            with self.news:
                self.keep(Shown(stage, result, file, following, is_whole))
                self.renew()

    def following(self, result: StageResult) -> str:
        """What to do next."""
        return overview.after_run([result], [*STAGES], self.directory, False, False)

    def keep(self, one: Shown) -> None:
        """Beside the other stages of the run."""
        self.shown[one.stage.number] = one

    def renew(self) -> None:
        """What is shown has changed."""

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *error) -> None:
        """The watch has ended."""


class FilePage(Page):
    """Written anew with every result.  All stages of the run are on it."""

    def __init__(self, directory: Path, path: Path):
        super().__init__(directory)
        self.path = path

    def renew(self) -> None:
        """Raises OSError."""
        text = document(list(self.shown.values()), overview.steps_written(self.directory))
        files.write(self.path, text.encode(errors="replace"))


class ServedPage(Page):
    """`with` it: on 127.0.0.1, at an address that cannot be guessed.  The stage that was graded
    last is on it, and buttons for hints."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.token, self.version = secrets.token_urlsafe(16), 0
        self.text = document([], live=True)

    def __enter__(self) -> "ServedPage":
        page = self

        class Bound(_Handler):
            of = page

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self.server.daemon_threads, self.server.block_on_close = True, False
        self.hosts = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        self.address = f"http://127.0.0.1:{self.server.server_port}/{self.token}/"
        threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True).start()
        # A browser of this computer, not one that would take the terminal.
        if sys.platform in ("darwin", "win32") or any(map(os.environ.get, BROWSERS)):
            webbrowser.open(self.address)
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    def keep(self, one: Shown) -> None:
        self.shown = {one.stage.number: one}

    def following(self, result: StageResult) -> str:
        return f"{result.to_fix} and save" if result.to_fix else super().following(result)

    def renew(self) -> None:
        for one in self.shown.values():
            one.served = True
            one.hints = self.asked
        self.text = document(list(self.shown.values()),
                             overview.steps_written(self.directory), True)
        self.version += 1
        self.news.notify_all()

    def hint(self, step: str) -> None:
        """Give the next hint of a step, and count it as --hint does."""
        with self.news:
            said = self.asked.get(step, [])
            if not (said and LAST in said[-1]):
                with contextlib.suppress(hints.UnknownStep):
                    self.asked[step] = [*said, hints.next_hint(step)]
            self.renew()

    def after(self, version: str) -> str | None:
        """The page, once it is not this version any more; None if that takes too long."""
        with self.news:
            changed = self.news.wait_for(lambda: str(self.version) != version, WAIT_SECONDS)
            return self.text if changed else None


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers what begins with the token, to pages of ours."""

    of: ServedPage

    def below_token(self) -> str | None:
        """What is asked for; None of a page that is not ours: a name of another's may lead to
        127.0.0.1, too."""
        origin = self.headers.get("Origin") or f"http://{self.headers.get('Host')}"
        start = f"/{self.of.token}/"
        ours = self.headers.get("Host") in self.of.hosts and origin[7:] in self.of.hosts
        return self.path[len(start):] if ours and secrets.compare_digest(
            self.path[:len(start)].encode(), start.encode()) else None

    def do_GET(self) -> None:
        path = self.below_token()
        if path == "":
            self.answer(200, self.of.text)
        elif path and path.startswith("changed?"):
            text = self.of.after(path.removeprefix("changed?"))
            self.answer(200 if text else 204, text or "")
        else:
            self.answer(404)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.below_token() != "hint" or not length.isdecimal() or int(length) > MOST_BYTES:
            self.answer(404)
            return
        form = urllib.parse.parse_qs(self.rfile.read(int(length)).decode(errors="replace"))
        self.of.hint(form.get("step", [""])[0])
        self.answer(303)

    def answer(self, status: int, text: str = "") -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        for name, value in {**HEADERS, "ETag": str(self.of.version)}.items():
            self.send_header(name, value)
        if status == 303:
            self.send_header("Location", f"/{self.of.token}/")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *about) -> None:
        """The terminal is the grader's."""
