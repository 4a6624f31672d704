"""Grading where students hand in, one submission at a time.  `python -m classroom kit` packs it.

    one.py           grades a folder; what is known by then is written down after every stage
    gradescope.py    as results.json of Gradescope
    gradescope/      setup.sh and run_autograder of its zip
    classroom50.py   as result.json of Classroom 50, on GitHub
    classroom50/     its autograder.py, runtimes, and workflows for a repository of a student's own
"""
