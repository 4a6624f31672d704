"""Whose a submission is, by what the roster and the learning system say."""

from classroom.roster import Person, match


def test_capitals_on_the_rosters_side_make_no_difference():
    anna = Person("Anna Anderson", "S101", "AAnderson", "Anna@X.org", also=("U7",))
    people = [anna, Person("Ben Braun", "S102", "BBraun", "Ben@X.org")]
    for number in ("s101", "anna@x.org", "u7"):
        assert match("Annie", people, number) == [anna]
    assert match("aanderson", people) == [anna]
