"""Writes the page to a file, or serves it to this computer only, while a watch lasts."""

import contextlib
import http.server
import os
import re
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

WAIT_SECONDS = 25.0  # for which a browser waits for news before it asks again
BROWSERS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # variables that are set if there is one
# With no-referrer a browser would hide the origin of our own form.
HEADERS = {"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff",
           "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
LENGTH = re.compile("[0-9]{1,3}")  # in bytes, of a form


class FilePage(contextlib.nullcontext):
    """A file with all stages of the run, rewritten with every result."""

    address = ""  # a served page's

    def __init__(self, directory: Path, path: Path = Path("")):
        super().__init__(self)
        self.directory, self.path, self.news = directory, path, threading.Condition()
        self.shown: dict[int, Shown] = {}

    def show(self, stage: Stage, result: StageResult, file: Submission | None,
             is_whole: bool = False, following: str = "") -> None:
        """Show a result.  is_whole: all is known; file: None if it was never read; following: what
        to do next, if that is not an option of the course's stages."""
        if file is not None:
            to_do = result.to_fix or "".join(f"write step {id}" for id in file.to_write[:1])
            following = (f"{to_do} and save" if self.address and to_do else following or
                         overview.after_run([result], [*STAGES], self.directory, False, False))
            with self.news, contextlib.suppress(OSError):  # the last renew() reports it
                self.keep(Shown(stage, result, file, following * is_whole, is_whole))
                self.renew()

    def keep(self, one: Shown) -> None:
        self.shown[one.stage.number] = one

    def text(self) -> str:
        return document([*self.shown.values()], overview.steps_written(self.directory),
                        bool(self.address))

    def renew(self) -> None:
        """Raises OSError."""
        files.write(self.path, self.text().encode(errors="replace"))


class ServedPage(FilePage):
    """Serves the last stage, and hints, in a `with`: on 127.0.0.1, at an address no one can
    guess."""

    def __enter__(self) -> "ServedPage":
        self.token, self.version = secrets.token_urlsafe(16), 0
        self.asked: dict[str, list[str]] = {}  # step -> the hints given here
        self.server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"page": self}))
        self.hosts = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        self.address = f"http://127.0.0.1:{self.server.server_port}/{self.token}/"
        self.body = self.text()
        threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True).start()
        # Only a graphical browser, not one that would take the terminal.
        if sys.platform in ("darwin", "win32") or any(map(os.environ.get, BROWSERS)):
            webbrowser.open(self.address)
        return self

    def __exit__(self, *error) -> None:
        self.server.shutdown()
        self.server.server_close()

    def keep(self, one: Shown) -> None:
        one.served, one.hints = True, self.asked
        begins = one.result.outcome == "not_started"  # begins after a stage that has just passed
        self.shown = {**self.shown, one.stage.number: one} if begins else {one.stage.number: one}

    def renew(self) -> None:
        self.body, self.version = self.text(), self.version + 1
        self.news.notify_all()

    def hint(self, step: str) -> None:
        """Show the next hint of a step, and count it as --hint does."""
        with self.news, contextlib.suppress(hints.UnknownStep):
            if LAST not in "".join(self.asked.get(step, [])):
                self.asked.setdefault(step, []).append(hints.next_hint(step))
            self.renew()

    def after(self, version: str) -> str:
        """Wait for a newer version of the page, and return it; "" if that takes too long."""
        with self.news:
            changed = self.news.wait_for(lambda: str(self.version) != version, WAIT_SECONDS)
            return self.body if changed else ""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def handle_error(self, request, client_address) -> None:
        """Say nothing of a tab that was closed, or a connection that was reset."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests whose path begins with the token, if they come from our own page."""

    page: ServedPage

    def below_token(self) -> str | None:
        """The path after the token; None if the request is not from our page, because other host
        names may lead to 127.0.0.1, too."""
        host, start = self.headers.get("Host"), f"/{self.page.token}/"
        origin = self.headers.get("Origin", f"http://{host}")
        ours = host in self.page.hosts and origin in {f"http://{one}" for one in self.page.hosts}
        return self.path[len(start):] if ours and secrets.compare_digest(
            self.path[:len(start)].encode(), start.encode()) else None

    def do_GET(self) -> None:
        path = self.below_token()
        if path == "":
            self.answer(200, self.page.body)
        elif path and path.startswith("changed?"):
            text = self.page.after(path.removeprefix("changed?"))
            self.answer(200 if text else 204, text)
        else:
            self.answer(404)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.below_token() != "hint" or not LENGTH.fullmatch(length):
            return self.answer(404)
        sent = self.rfile.read(int(length))
        if len(sent) < int(length):  # the connection ended before all of it was there
            return self.answer(404)
        form = urllib.parse.parse_qs(sent.decode(errors="replace"))
        self.page.hint(form.get("step", [""])[0])
        return self.answer(303)

    def answer(self, status: int, text: str = "") -> None:
        body = text.encode(errors="replace")
        more = {204: {}, 303: {"Location": f"/{self.page.token}/", "Content-Length": 0}}.get(
            status, {"Content-Length": len(body)})
        self.send_response(status)
        for name, value in (HEADERS | more | {"ETag": self.page.version}).items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *about) -> None:
        """Print nothing: the terminal belongs to the grader."""
