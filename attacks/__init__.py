"""The catalogue of submissions that the grader must catch, and of those it must let pass.

    mutants/stage_K.toml    wrong: the solved file with one mistake
    unfinished/             files in the middle of a student's work: never rejected
    dishonest/*.py          right answers by forbidden means, and attempts to forge the verdict
    destructive/*.py        loops, crashes, floods, processes and files left behind
    honest/*.py             right answers, written differently

`python -m attacks` runs them and prints the results; catalogue.py describes an entry.
"""
