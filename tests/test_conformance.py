"""The table of docs/measured/conformance.md is that of the JSON which the check writes."""

from grader.assignment.record import ROOT
from tools import conformance

ROW = {"case": "H=3, L=13", "says": "The sink logits have no effect.", "worst": "o[0] is 1"}


def found(file: str, function: str = "attention", **verdicts: str) -> dict:
    return {"file": f"examples/check/{file}", "function": function, "device": "cpu",
            "torch": "2.13.0", "triton": "3.7.1", "seed": 7,
            "features": [{"feature": feature, "verdict": verdict, **ROW}
                         for feature, verdict in verdicts.items()]}


def test_a_column_for_each_adapter_and_below_them_what_is_wrong():
    lines = conformance.table([
        found("sdpa.py", output="right", lse="not claimed"),
        found("hub.py", "eager", output="refused", lse="wrong")]).splitlines()
    assert lines[0] == "| | `sdpa.py` | `hub.py:eager` |"
    assert "| output | right | refused |" in lines and "| lse | - | **wrong** |" in lines
    assert lines[-1] == "- lse, H=3, L=13: The sink logits have no effect. o[0] is 1"


def test_every_adapter_of_the_table_is_there():
    assert all((ROOT / "examples/check" / one.partition(":")[0]).is_file()
               for one in conformance.HERE)


def test_every_feature_has_its_row_on_the_page():
    page = (ROOT / "docs/measured/conformance.md").read_text("utf-8")
    assert [words for words in conformance.FEATURES.values() if f"\n| {words} | " not in page] == []
