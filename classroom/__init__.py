"""Grades a class of submissions: `python -m classroom`.

    gather.py       reads SUBMISSIONS: folders, archives, downloads, an index; only problem files
    notebooks.py    turns a notebook into the problem file that its cells make
    roster.py       --roster: who is in the class, and whose a submission is
    settings.py     class.toml: the settings of a class, kept in RESULTS
    standing.py     the grades given so far, and what a run would change
    audit.py        RESULTS/audit: runs, the history of every grade, the tables that decided
    store.py        RESULTS: records by the file's hash, and locks on what is being graded
    machine.py      how many gradings this machine can run at once, and on which GPUs
    batch.py        runs the autograder over all files: side by side, alone, timed
    child.py        one run of the autograder, in a process of its own
    slurm.py        the same command in tasks of an array job
    book.py         one JSON per student, grades.csv, junit.xml
    verdicts.py     each stage as a test, for systems that list tests
    policy.py       policy.toml, overrides.csv: the points
    late.py         when work was handed in, and what lateness costs
    feedback.py     the page that goes back to each student
    gradebook.py    grades for Canvas, Moodle, nbgrader, check50
    alike.py        groups of students with the same code
    summary.py      summary.html
    pages.py        renders the templates here, and makes zips
    leaderboard.py  the fastest, under aliases; the leaders are run again
    kit.py          packs the grader for the platforms where students hand in
    platforms/      runs there: one submission, with results written after every stage

No submission is imported here.  Each is graded by the autograder in a process of its own, and only
its JSON comes back.
"""

import grader  # noqa: F401  First, because it rejects a Python that is too old.
