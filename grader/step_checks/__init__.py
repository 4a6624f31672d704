"""Step checks: each blank of a file run on its own.

A worker runs a blank's own text on names given to it (worker/run_step.py), and what it leaves is
held against a relation that every right answer meets.  No check gives points.

    blanks.py      the text of a blank, made ready to run; whether what surrounds it is as it was
    examples.py    one example: what is given, what was left, how the two are compared
    mistakes.py    the mistakes that have a name: what is said of them, from mistakes.toml
    named.py       a mistake's name: the variant of the step's formula that leaves the same
    phases.py      variants of a loop over tiles
    repair.py      or the place: the one change of its text that makes a step right
    edits.py       which changes are tried; sites.py: the text that they are made in
    table.py       step -> what is asked of it; what may be moved from one step to another
    checks.py      a file's checks, run in a worker of their own beside the cases
    one_step.py    --step: one of them; warmups.py: --warmup: the five exercises
    loops.py, rows.py, masks.py, softmax.py, memory.py    the relations, by their kind
    pytorch.py, row_sum.py, gradients.py    those of stages 1 and 2, and of the backward
"""
