"""Grades single submissions on the platforms where students hand in; packed by `classroom kit`.

    one.py           grades a folder, and writes the results so far after every stage
    gradescope.py    as Gradescope's results.json
    gradescope/      setup.sh and run_autograder for its zip
    classroom50.py   as Classroom 50's result.json, on GitHub
    classroom50/     its autograder.py, runtimes, and workflows for a student's repository
"""
