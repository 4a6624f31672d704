"""The walk to step through and the checks of the exercises, in a browser without a network."""

import html
import json
import re
import shutil
import subprocess

import pytest

import reference
from guide import exercises, questions, worked
from guide.excerpts import ROOT

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)
# Presses "next tile" to the end, then "back" once; leaves what stood there in the page.
DRIVER = """
addEventListener("load", () => {
  const [back, on] = document.querySelectorAll("#walk button");
  const look = () => ({
    told: document.querySelector("#walk .moves span").textContent,
    here: document.querySelector("#walk .here").textContent,
    done: document.querySelectorAll("#walk .done").length,
    rows: [...document.querySelectorAll("#walk table tr")].map(
      (row) => [...row.children].map((cell) => cell.textContent)),
    end: document.querySelector("#walk .wide p")?.textContent ?? "",
  });
  const seen = [look()];
  while (!on.disabled) { on.click(); seen.push(look()); }
  back.click();
  seen.push(look());
  const left = document.createElement("pre");
  left.id = "seen";
  left.textContent = JSON.stringify(seen);
  document.body.append(left);
});
"""




def left_by(folder, body: str, name: str = "page"):
    """What a page of this body leaves, as JSON, in an element with the id seen."""
    if BROWSER is None:
        pytest.skip("want chromium or google-chrome; got none")
    (folder / f"{name}.html").write_text(f'<!doctype html><meta charset="utf-8">{body}',
                                      encoding="utf-8")
    ran = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--window-size=1500,1000", "--virtual-time-budget=5000",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / name}-profile",
         (folder / f"{name}.html").as_uri()],
        capture_output=True, text=True, timeout=300, check=True)
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', ran.stdout)[1]))


WIDTHS = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
  const scrolls = (e) => e === document.documentElement
    || /auto|scroll|hidden/.test(getComputedStyle(e).overflowX);
  const wide = [...document.querySelectorAll("article *, html")].filter((e) =>
    e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1 && scrolls(e));
  const shown = (figure) => [...figure.querySelectorAll("img")].filter((e) => e.clientWidth > 0)
    .map((e) => e.className.match(/only-(wide|narrow)/)[1]).join(" ");
  parent.postMessage(JSON.stringify({
    wide: wide.map((e) => `${e.tagName} ${e.textContent.slice(0, 50)}`),
    shown: [...new Set([...document.querySelectorAll("figure.drawing")].map(shown))],
  }), "*");
});</script>"""
FRAME = """<iframe src="{}.html" style="width: {}px; height: 900px"></iframe>
<script>addEventListener("message", (event) => {{
  const left = document.createElement("pre");
  left.id = "seen";
  left.textContent = event.data;
  document.body.append(left);
}});</script>"""


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("page", [
    "index", "memory", "algorithm", "stage_1", "stage_4", "stage_9", "tools", "sink_attn"])
def test_nothing_is_wider_than_its_page_and_figures_fit_it(built, page, width):
    site = built / "html"
    text = (site / f"{page}.html").read_text("utf-8").replace("</body>", WIDTHS + "</body>")
    copy = f"seen-{page}-{width}"
    (site / f"{copy}.html").write_text(text, "utf-8")
    seen = left_by(site, FRAME.format(copy, width), f"frame-{page}-{width}")
    form = {1400: "wide", 390: "narrow"}[width]
    assert seen == {"wide": [], "shown": [form] * ("<figure" in text)}


HEIGHTS = """<pre id="seen"></pre><script>addEventListener("load", () => {
  const small = [...document.querySelectorAll("article summary, article input, article select, " +
    "article button, .toc-tree a")].filter((e) =>
    e.offsetParent !== null && e.getBoundingClientRect().height < 24);
  document.getElementById("seen").textContent = JSON.stringify(small.map((e) => e.outerHTML));
});</script>"""


@pytest.mark.parametrize("page", ["index", "stage_1", "stage_4", "stage_8"])
def test_what_is_clicked_or_moved_is_24_pixels_high(built, page):
    text = (built / "html" / f"{page}.html").read_text("utf-8")
    assert left_by(built / "html", text.replace("</body>", HEIGHTS + "</body>"),
                   f"heights-{page}") == []


BROKEN = """<pre id="seen"></pre><script>addEventListener("load", () => {
  const broken = [];
  for (const cell of document.querySelectorAll("table.numbers td, table.numbers th")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
      for (const word of texts.currentNode.data.matchAll(/[^\\s/-]+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (range.getClientRects().length > 1) broken.push(word[0]);
      }
  }
  document.getElementById("seen").textContent = JSON.stringify(broken);
});</script>"""


@pytest.mark.parametrize("page", ["tools", "sink_attn", "stage_1", "stage_4"])
def test_no_number_or_word_of_a_table_is_broken_in_two(built, page):
    text = (built / "html" / f"{page}.html").read_text("utf-8")
    assert left_by(built / "html", text.replace("</body>", BROKEN + "</body>"),
                   f"broken-{page}") == []


def script(name: str) -> str:
    return f"<script>{(ROOT / 'guide' / 'static' / name).read_text('utf-8')}</script>"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return left_by(
        tmp_path_factory.mktemp("walk"),
        f'<div id="walk"></div><script type="application/json" id="walk-frames">'
        f"{json.dumps(worked.causal_frames())}</script>{script('walk.js')}"
        f"<script>{DRIVER}</script>")


def test_every_frame_shows_its_tile_and_its_numbers(seen):
    frames = worked.causal_frames()
    assert len(seen) == len(frames) + 1
    for i, (frame, shown) in enumerate(zip(frames, seen, strict=False)):
        assert shown["told"].startswith(f"{i + 1} of {len(frames)}: ")
        assert shown["here"] == f"S{frame['query_tile']}{frame['key_tile']}"
        assert shown["done"] == i
        head, *rows = shown["rows"]
        assert head == ["query", "s", "alpha", "p", "m_i", "l_i", "acc"]
        for r, row in enumerate(rows):
            assert row[1:] == [frame[name][r] for name in ("s", "alpha", "p", "m", "l", "acc")]


def test_the_last_tile_of_a_row_of_tiles_shows_the_output(seen):
    for frame, shown in zip(worked.causal_frames(), seen, strict=False):
        assert bool(frame["o"]) == ("o = acc / l_i" in shown["end"])


def test_back_goes_one_frame_back(seen):
    assert seen[-1] == seen[-3]


def test_the_check_on_a_page_says_what_the_command_says(tmp_path):
    asked = [(number, numbers) for number, one in questions.EXERCISES.items()
             for numbers in (one.answer(), *(wrong() for wrong, _ in one.slips), (12345.0,))]
    forms = "".join('<form class="check" data-check="{}"></form>'.format(html.escape(json.dumps(
        questions.EXERCISES[number].hidden(number)))) for number, _ in asked)
    typed = json.dumps([", ".join(map(repr, map(float, numbers))) for _, numbers in asked])
    got = left_by(tmp_path, forms + script("check.js") + f"""<script>
      addEventListener("load", () => {{
        const typed = {typed};
        const said = [...document.querySelectorAll("form.check")].map((form, i) => {{
          form.querySelector("input").value = typed[i];
          form.querySelector("button").click();
          return form.querySelector("output").textContent;
        }});
        const left = document.createElement("pre");
        left.id = "seen";
        left.textContent = JSON.stringify(said);
        document.body.append(left);
      }});</script>""")
    assert got == [exercises.judge(number, numbers)[1] for number, numbers in asked]


def test_the_mask_to_play_with_counts_what_the_mask_of_the_reference_shows(tmp_path):
    asked = [(N, block, window, sinks) for N in (8, 23, 32) for block in (2, 4, 16)
             for window in (1, 4, 7, N) for sinks in (0, 2, 9)]
    got = left_by(tmp_path, script("play.js") + f"""<pre id="seen"></pre><script>
      document.getElementById("seen").textContent = JSON.stringify({json.dumps(asked)}.map(
        (one) => maskTiles(...one)));</script>""")
    for (N, block, window, sinks), one in zip(asked, got, strict=True):
        assert one["kinds"] == worked.kinds(N, block, window=window, sinks=sinks)
        assert one["pairs"] == reference.keep_mask(N, N, True, window, sinks).sum()


def test_what_is_played_with_shows_its_numbers_and_is_moved_by_ordinary_inputs(tmp_path):
    places = "".join(f'<div class="play" data-play="{name}"><script type="application/json">'
                     f"{json.dumps(data)}</script></div>" for name, data in worked.played().items())
    got = left_by(tmp_path, places + script("play.js") + """<script>
      addEventListener("load", () => {
        const [mask, bars, walks] = document.querySelectorAll(".play");
        const move = (place, which, value) => {
          const input = place.querySelectorAll("input, select")[which];
          input.value = value;
          input.dispatchEvent(new Event("input"));
          return place.querySelector(".said").textContent;
        };
        const seen = { mask: move(mask, 2, 10), bars: [], walks: [] };
        for (let k = 1; k <= 3; k++) seen.bars.push(move(bars, 2, k));
        move(walks, 0, "W = 10 and two sinks");
        move(walks, 1, 0);
        for (let k = 1; k <= 6; k++) seen.walks.push(move(walks, 2, k));
        seen.named = [...document.querySelectorAll("input, select")].every((e) =>
          e.labels.length === 1 && e.tabIndex === 0);
        seen.drawn = [...document.querySelectorAll("svg")].map((e) =>
          e.querySelectorAll("rect, text").length > 5 && e.querySelector("title").textContent > "");
        const left = document.createElement("pre");
        left.id = "seen";
        left.textContent = JSON.stringify(seen);
        document.body.append(left);
      });</script>""")
    n = worked.counted(32, 4, window=10, sinks=2)
    assert got["mask"].startswith(f"{n['whole']} whole, {n['cut']} cut, {n['skipped']} skipped.")
    for frame, told in zip(worked.bars(worked.SCORES, 2), got["bars"], strict=True):
        assert f"m_i = {frame['m']}, alpha = {frame['alpha']}, l_i = {frame['l']}" in told
    column = worked.dkdv_walk(0, 24, 4, 10, 2)
    for k, told in enumerate(got["walks"], 1):
        start, phase = column[k - 1]
        assert f"{k} of {len(column)}: query tile {start // 4}, {phase}." in told
        assert (k > 1) == ("dq has ended after 1." in told)
    assert got["named"] and got["drawn"] == [True] * 4
