"""What a whole class got wrong."""

from classroom import summary


def report(student: str, *steps: str) -> dict:
    """A stage of which these steps are red, each for the same reason."""
    return {"student": student, "stages": [{
        "stage": 4, "outcome": "wrong" if steps else "pass", "checks": [], "sentence": "",
        "steps": [{"id": id, "light": "wrong", "mistake": "strictly-causal", "text": "j < i",
                   "says": "a query does not see its own key"} for id in steps]}]}


def test_the_share_of_a_mistake_is_that_of_all_students():
    (found,) = summary.mistakes([report("anna", "4.6"), report("ben"), report("cleo"),
                                 report("dora")])
    assert (found["stage"], found["count"], found["share"]) == (4, 1, 0.25)


def test_the_most_common_mistake_comes_first_and_counts_once_a_student():
    found = summary.mistakes([report("anna", "4.6", "4.2"), report("ben", "4.6")])
    assert found[0]["count"] == 2 and found[0]["share"] == 1.0


def test_steps_are_in_the_order_of_their_numbers():
    found = summary.steps([report("anna", "8.10", "8.2", "4.6")])
    assert [step["id"] for step in found] == ["4.6", "8.2", "8.10"]
