"""A class of submissions: graded, resumed, put into tables.  `python -m classroom` is its program.

    gather.py       SUBMISSIONS: folders, archives, downloads, an index; only problem files taken
    notebooks.py    a notebook as the problem file that its cells make
    roster.py       --roster: everyone who has a row, and whose a submission is
    settings.py     class.toml: the settings of a class, kept in RESULTS
    standing.py     the grades that stand, and what a run would change
    store.py        RESULTS: what is graded is kept by the file's hash; who is at it has a lock
    machine.py      how many gradings this machine holds at once, and on which GPUs
    batch.py        runs the autograder over all files: at once, again alone, timed
    child.py        one grading under way: the autograder in a process of its own
    slurm.py        the same command in tasks of an array job
    book.py         a JSON a student, grades.csv, junit.xml
    verdicts.py     a stage as a test, as every system lists them
    policy.py       policy.toml, overrides.csv: what all that is worth
    late.py         when it was handed in, and what that costs
    feedback.py     what goes back to each student
    gradebook.py    the grades for Canvas, Moodle, nbgrader, check50
    alike.py        groups of students whose own lines are alike
    summary.py      summary.html
    pages.py        makes pages of the templates here, and zips
    leaderboard.py  who is fast, under aliases; the first ones run again
    kit.py          packs the grader for places where students hand in
    platforms/      and what runs there: one submission, results written after every stage

No submission is imported here: each is graded by the autograder's own program, in a process of its
own, whose JSON is all that comes back.
"""

import grader  # noqa: F401  It refuses a Python that is too old, and comes first.
