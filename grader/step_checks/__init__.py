"""Runs each blank of a file on its own, and says what is wrong with it.

A worker runs the blank's text on names given to it (worker/run_step.py), and the values it leaves
are compared with a relation that every right answer meets.  No check gives points.

    blanks.py      makes a blank's text ready to run; tells whether the code around it was changed
    examples.py    one example: the names given, the values left, and how to compare them
    mistakes.py    the mistakes with a name, and their words, from mistakes.toml
    named.py       names a mistake: the variant of the step's formula that gives the same values
    phases.py      variants of a loop over tiles
    repair.py      finds its place: the one change of the text that makes the step right
    edits.py       the changes to try; sites.py: the text they are made in
    table.py       step -> its relation; what may be moved from one step to another
    checks.py      runs a file's checks in a worker of their own, beside the cases
    one_step.py    --step; warmups.py: --warmup, the exercises before problem 1; tiles.py: W.8
    loops.py, rows.py, masks.py, softmax.py, memory.py    the relations, by kind
    pytorch.py, row_sum.py, gradients.py    those of stages 1 and 2, and of the backward
"""
