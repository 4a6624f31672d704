"""A page is served to this computer alone, under its token, for as long as the watch lasts."""

import http.client
import json
import socket
import struct
import threading
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from grader.assignment import submission
from grader.assignment.hints import RUNGS
from grader.assignment.record import ROOT
from grader.course.stages import STAGES
from grader.page import server
from grader.page.server import FilePage, ServedPage
from grader.report.results import StageResult, StepCheck

RED = StepCheck("6.8", "wrong", seen=("Query 39 sees key 32.",)).as_dict()
FILE = submission.read(ROOT, "problem_6.py", "flash_attention_forward")


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in server.BROWSERS:
        monkeypatch.delenv(name, raising=False)
    with ServedPage(tmp_path) as served:
        yield served


def show(page, *steps, outcome="wrong") -> None:
    page.show(STAGES[6], StageResult(6, "A sliding window", 50, outcome, steps=list(steps)), FILE,
              is_whole=True)


def ask(page, path="", method="GET", body=None, headers=None, start=None):
    """-> status, text, headers."""
    to = http.client.HTTPConnection("127.0.0.1", urlsplit(page.address).port, timeout=20)
    to.request(method, (start or f"/{page.token}/") + path, body, headers or {})
    answer = to.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_it_shows_what_was_graded_last(page):
    assert "Grading. What it finds will be here." in ask(page)[1]
    show(page, RED)
    status, text, headers = ask(page)
    assert status == 200 and "Step 6.8 is wrong" in text and "Fix step 6.8 and save" in text
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    # With no-referrer a browser hides the origin of the form for hints: "Origin: null".
    assert headers["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize("path, start, headers", [
    ("", "/", {}), ("", "/wrong-token-of-that-len/", {}), ("problem_6.py", None, {}),
    ("../../etc/passwd", None, {}), ("", None, {"Host": "evil.example"}),
    ("", None, {"Origin": "http://evil.example"})])
def test_it_serves_nothing_but_the_page_and_only_to_itself(page, path, start, headers):
    assert ask(page, path, start=start, headers=headers)[:2] == (404, "")


def test_the_next_stage_stands_below_the_one_that_passed_until_it_is_begun(page):
    show(page, outcome="pass")
    blank = replace(FILE, blank_steps=("7.3",), steps=())
    page.show(STAGES[7], StageResult(7, "Sinks", 50, "not_started"), blank, is_whole=True)
    text = ask(page)[1]
    assert text.index("A sliding window") < text.index("Sinks") < text.index(
        "Write step 7.3 and save")
    page.show(STAGES[7], StageResult(7, "Sinks", 50, "wrong"), FILE, is_whole=True)
    assert "A sliding window" not in ask(page)[1]


def test_a_browser_that_waits_is_told_at_once_of_a_result(page):
    _, _, headers = ask(page)
    found = []
    waiting = threading.Thread(target=lambda: found.append(
        ask(page, f"changed?{headers['ETag']}")))
    waiting.start()
    show(page, RED)
    waiting.join(20)
    assert found[0][0] == 200 and "6.8 is red" in found[0][1]
    assert found[0][2]["ETag"] != headers["ETag"]


def test_a_browser_that_waits_too_long_asks_again(page, monkeypatch):
    monkeypatch.setattr(server, "WAIT_SECONDS", 0.01)
    assert ask(page, f"changed?{page.version}")[:2] == (204, "")


def test_hints_come_one_rung_at_a_time_and_are_counted_as_those_of_the_command(page, tmp_path):
    show(page, RED)
    for rung in range(len(RUNGS)):
        assert "Give me a hint" in (text := ask(page)[1]) or "One more hint" in text
        status, _, headers = ask(page, "hint", "POST", "step=6.8", {
            "Origin": f"http://127.0.0.1:{urlsplit(page.address).port}"})
        assert status == 303 and headers["Location"] == f"/{page.token}/"
        assert json.loads((tmp_path / ".autograder/hints.json").read_text()) == {"6.8": rung}
    text = ask(page)[1]
    assert text.count('class="hint"') == len(RUNGS) and "<button" not in text
    ask(page, "hint", "POST", "step=6.8")  # of a page that was open before
    assert ask(page)[1].count('class="hint"') == len(RUNGS)
    assert text.index("hint 1 of 3") < text.index("hint 3 of 3")


@pytest.mark.parametrize("body, headers", [
    ("step=6.8", {"Origin": "http://evil.example"}), ("step=6.8", {"Origin": "null"}),
    ("step=6.8", {"Origin": ""}), ("step=6.8" + "x" * 2000, {}),
    *(("step=6.8", {"Content-Length": length}) for length in (
        "9" * 5000, "-1", "1e3", "", "\xb2"))])
def test_what_is_no_form_of_this_page_gets_no_hint(page, tmp_path, capfd, body, headers):
    assert ask(page, "hint", "POST", body, headers)[0] == 404
    assert not (tmp_path / ".autograder").exists() and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("scheme", ["https", "wss", "a+b", "1234"])
def test_an_origin_of_another_scheme_is_not_this_page(page, tmp_path, scheme):
    host = urlsplit(page.address).netloc
    for origin in (f"{scheme}://{host}", f"{(scheme + ':///////')[:7]}{host}"):
        assert ask(page, headers={"Origin": origin})[0] == 404
        assert ask(page, "hint", "POST", "step=6.8", {"Origin": origin})[0] == 404
    assert not (tmp_path / ".autograder").exists()


def reset(page, request: str) -> None:
    """Send this and reset the connection, as a browser does whose tab is closed."""
    to = socket.create_connection(("127.0.0.1", urlsplit(page.address).port))
    to.sendall(request.replace("TOKEN", page.token).replace(
        "HOST", urlsplit(page.address).netloc).encode())
    to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    to.close()


@pytest.mark.parametrize("request_", [
    "", "GET /TOKEN/ HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET /TOKEN/ HT",
    "GET /TOKEN/changed?VERSION HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "POST /TOKEN/hint HTTP/1.1\r\nHost: HOST\r\nContent-Length: 80\r\n\r\nstep=6.8"])
def test_a_closed_tab_or_a_reset_connection_prints_and_changes_nothing(page, tmp_path, capfd,
                                                                      monkeypatch, request_):
    ended = threading.Semaphore(0)
    shut = page.server.shutdown_request
    monkeypatch.setattr(page.server, "shutdown_request",
                        lambda request: (shut(request), ended.release()))
    before = page.version
    reset(page, request_.replace("VERSION", str(before)))
    if "VERSION" in request_:
        show(page, RED)  # there is news for the closed tab
    assert ended.acquire(timeout=20)
    assert not (tmp_path / ".autograder").exists() and capfd.readouterr() == ("", "")
    assert page.version == before + ("VERSION" in request_) and ask(page)[0] == 200


def test_a_fault_of_the_server_itself_is_not_hidden(page, monkeypatch, capfd):
    monkeypatch.setattr(server._Handler, "below_token", lambda handler: 1 / 0)
    with pytest.raises(http.client.HTTPException):
        ask(page)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_step_without_hints_changes_nothing(page, tmp_path):
    show(page, RED)
    assert ask(page, "hint", "POST", "step=<script>")[0] == 303
    assert not (tmp_path / ".autograder").exists() and ask(page)[1].count("<script>") == 1


def test_it_ends_with_the_watch(tmp_path, monkeypatch):
    for name in server.BROWSERS:
        monkeypatch.delenv(name, raising=False)
    with ServedPage(tmp_path) as page:
        assert ask(page)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(page)


def test_a_browser_is_opened_where_there_is_one(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    for name in server.BROWSERS:
        monkeypatch.delenv(name, raising=False)
    with ServedPage(tmp_path) as page:
        assert opened == [] or server.sys.platform != "linux"
        assert page.server.server_address[0] == "127.0.0.1"  # no other computer reaches it
    opened.clear()
    monkeypatch.setenv("DISPLAY", ":0")
    with ServedPage(tmp_path) as page:
        assert opened == [page.address] and page.token in page.address


def test_a_page_in_a_file_has_every_stage_and_names_the_command_for_a_hint(tmp_path):
    page = FilePage(tmp_path, tmp_path / "page.html")
    show(page, RED)
    page.show(STAGES[4], StageResult(4, "Causal", 100, "pass"), FILE)
    text = page.path.read_text("utf-8")
    assert text.count("<h1") == 2 and "python autograder.py --hint 6.8" in text
    assert "<button" not in text and "data-live>" not in text


def test_a_page_in_a_file_says_what_to_run_next_once_all_is_known(tmp_path):
    page = FilePage(tmp_path, tmp_path / "page.html")
    page.show(STAGES[6], StageResult(6, "x", 50, "wrong", steps=[RED]), FILE)
    assert page.shown[6].next == ""
    show(page, RED)
    assert page.shown[6].next.startswith("fix step 6.8, then run python autograder.py --p6 ")
    page.show(STAGES[6], StageResult(6, "x", 50, "wrong"), FILE, True, "run the check again")
    assert page.shown[6].next == "run the check again"
    page.show(STAGES[5], StageResult(5, "x", 50, "missing"), None, True)
    assert 5 not in page.shown  # there is no file to show


def test_a_page_that_cannot_be_written_ends_no_grading_and_is_said_at_the_end(tmp_path):
    page = FilePage(tmp_path, tmp_path / "gone" / "page.html")
    show(page, RED)
    with pytest.raises(FileNotFoundError):
        page.renew()
