"""--watch: grade a stage again whenever its file is saved, up to the first case that is wrong."""

import time
from collections.abc import Callable
from pathlib import Path

INTERVAL = 0.2  # seconds between two looks at the file


def watch(paths: list[Path], grade: Callable[[int], None], say: Callable[[str], None],
          turns: int | None = None) -> None:
    """Call grade(i) at once and after every change of paths[i]; Ctrl-C ends it.

    turns: end after so many gradings, for a test.
    """
    seen: dict[int, tuple | None] = {}
    done = 0
    while turns is None or done < turns:
        for i, path in enumerate(paths):
            state = _state(path)
            if i in seen and seen[i] == state:
                continue
            if i in seen:
                say(f"{path.name} was saved.")
            seen[i] = state
            grade(i)
            done += 1
            say(f"Watching {', '.join(p.name for p in paths)}: save to grade again, Ctrl-C to end.")
        time.sleep(INTERVAL)


def _state(path: Path) -> tuple | None:
    """What changes when a file is saved; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
