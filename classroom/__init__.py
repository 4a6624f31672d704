"""A class of submissions: graded, resumed, put into tables.  `python -m classroom` is its program.

    gather.py    SUBMISSIONS: folders, zips, an index; only the problem files are taken
    store.py     RESULTS: what is graded is kept by the file's hash, and locked while it is graded
    machine.py   how many gradings this machine holds at once, and on which GPUs
    batch.py     runs the autograder over all files: at once, again alone, timed
    book.py      a JSON a student, grades.csv, junit.xml
    summary.py   summary.html

No submission is imported here: each is graded by the autograder's own program, in a process of its
own, whose JSON is all that comes back.
"""
