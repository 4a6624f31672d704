"""What a GPU is asked for once: the tables are drawn from timed.json, and absent without it."""

import json
from importlib.util import find_spec

import pytest

from guide import excerpts, measured, seen, timed

TEXT = excerpts.ROOT / "guide" / "text" / "tools.md"
MACHINE = {"gpu": "NVIDIA of a test", "driver": "1.2", "torch": "3.4.5+cu1", "triton": "6.7"}
TREE = [{"frame": {"name": "ROOT"}, "metrics": {}, "children": [
    {"frame": {"name": "_fwd_kernel"}, "metrics": {"time (ns)": 2.5e6, "count": 20}},
    {"frame": {"name": "scope"}, "metrics": {}, "children": [
        {"frame": {"name": "softmax"}, "metrics": {"time (ns)": 7.5e6, "count": 40}}]}]},
        {"CUDA": {"0": {"num_sms": 132}}}]


def made():
    ways = ("clock of the host, first call", "do_bench, warm (warmup=100, rep=100)")
    return {"date": "2001-02-03", "machine": MACHINE,
            "clocks": {name: {way: 1.5 * i + 0.123 for i, way in enumerate(ways)}
                       for name in timed.WORKS},
            "choices": [{"warps": w, "stages": s, "rows": r, "registers": 168, "spills": 7,
                         "shared": 81920, "ms": 0.9876} for w, s, r in seen.CHOICES],
            "profile": timed.kernels(TREE)}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """page(found): the words of a site whose only page has the directives of the chapter, with
    `found` in timed.json, or without the file."""
    if any(find_spec(module) is None for module in ("sphinx", "furo", "myst_parser", "bs4")):
        pytest.skip("want pip install -e '.[guide]'")
    from bs4 import BeautifulSoup
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    text = TEXT.read_text(encoding="utf-8")
    asked = [block + "```\n" for block in text.split("```\n") if "{timed}" in block]
    (tmp_path / "index.md").write_text("# Title\n\n" + "\n\n".join(
        "```{timed}" + block.split("```{timed}")[1] for block in asked), encoding="utf-8")

    def built(found):
        monkeypatch.setattr(timed, "FILE", tmp_path / "timed.json")
        if found:
            timed.FILE.write_text(json.dumps(found), encoding="utf-8")
        timed.timed.cache_clear()
        with patch_docutils(), docutils_namespace():
            Sphinx(tmp_path, excerpts.ROOT / "guide", tmp_path / "out", tmp_path / "read", "html",
                   status=None, warningiserror=True, freshenv=True).build()
        soup = BeautifulSoup((tmp_path / "out" / "index.html").read_text("utf-8"), "html.parser")
        return soup.find("article")

    yield built
    timed.timed.cache_clear()


def test_the_page_s_tables_are_drawn_from_the_file(page):
    shown = page(made())
    tables = shown.select("table.numbers")
    assert len(tables) == len(measured.TIMED) == 3
    for table in tables:
        assert "NVIDIA of a test, driver 1.2, torch 3.4.5, Triton 6.7, 2001-02-03" in table.text
    cells = [[[cell.get_text() for cell in row.select("td")] for row in table.select("tbody tr")]
             for table in tables]
    assert cells[0][0] == ["64 x 64", "4", "1", "168", "7", "80", "2", "0.99"]
    assert len(cells[0]) == len(seen.CHOICES)
    assert cells[1] == [["clock of the host, first call", "0.123", "0.123"],
                        ["do_bench, warm (warmup=100, rep=100)", "1.62", "1.62"]]
    assert cells[2] == [["softmax", "40", "7.500"], ["_fwd_kernel", "20", "2.500"]]


def test_what_was_not_measured_is_not_on_the_page(page):
    assert page(None).h1.find_next_sibling() is None


def test_a_file_without_a_profile_leaves_that_table_out(page):
    assert len(page(made() | {"profile": []}).select("table.numbers")) == 2


@pytest.mark.parametrize("options, problem", [
    (["--out", "not/there/timed.json"], "want --out in a folder that is there; got"),
    (["--out", "timed.json"], "want an NVIDIA GPU; got none")])
def test_bad_input_writes_nothing(options, problem, tmp_path, monkeypatch, capsys):
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        timed.main(options)
    assert problem in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_an_h200_says_of_itself_what_the_guide_says():
    import torch

    card = torch.cuda.get_device_properties(0)
    if "H200" not in card.name:
        pytest.skip(f"want an H200; got {card.name}")
    assert measured.H200["l2"] == f"{card.L2_cache_size / 2**20:.0f} MiB"
    assert measured.H200["multiprocessors"] == str(card.multi_processor_count)
    assert measured.H200["registers"] == f"{card.regs_per_multiprocessor * 4 / 2**10:.0f} KiB"


@pytest.mark.gpu
def test_every_way_to_time_and_every_choice_has_a_number(tmp_path):
    assert timed.main(["--out", str(tmp_path / "timed.json")]) == 0
    found = json.loads((tmp_path / "timed.json").read_text(encoding="utf-8"))
    assert all(ms > 0 for ways in found["clocks"].values() for ms in ways.values())
    assert [(x["warps"], x["stages"], x["rows"]) for x in found["choices"]] == list(seen.CHOICES)
    assert all(x["ms"] > 0 < x["registers"] for x in found["choices"])
