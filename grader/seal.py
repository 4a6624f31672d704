"""Notices that a submission has put something of its own in the place of the grader's.

Whoever runs in our process can change what it likes there; whoever changes what is sealed is seen.
Loaded by worker.py by path; imports nothing of the grader.
"""

import types


class Seal:
    """owners: modules and classes as they must stay; a class stands for all its methods."""

    def __init__(self, owners):
        self.kept = []
        for owner in owners:
            for name, value in list(vars(owner).items()):
                if callable(value) or isinstance(value, (set, dict, tuple, staticmethod, property)):
                    if not name.startswith("__") or callable(value):
                        self.kept.append((owner, name, value, _likeness(value)))

    def broken(self) -> list[str]:
        """Names of what is no longer what it was."""
        return sorted({
            f"{owner.__name__}.{name}" for owner, name, value, likeness in self.kept
            if vars(owner).get(name) is not value or _likeness(value) != likeness
        })


def _likeness(value):
    """What of a value can change while it stays the same object."""
    if isinstance(value, staticmethod):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return value.__code__, value.__defaults__, value.__kwdefaults__
    if isinstance(value, (set, tuple)):
        return frozenset(map(repr, value))
    return None
