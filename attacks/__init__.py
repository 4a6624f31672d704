"""The catalogue of submissions the grader must see through, and of those it must let pass.

    mutants/stage_K.toml    wrong: the solved file with one mistake
    unfinished/             as students leave files in the middle of the work: never accused
    dishonest/*.py          right-looking answers by forbidden means, and attempts on the verdict
    destructive/*.py        loops, crashes, floods, processes and files left behind
    honest/*.py             right answers, written differently

`python -m attacks` runs them and prints the matrix; catalogue.py says how an entry is read.
"""
