"""--watch: at once, and after every save, and only then."""

import threading
import time

from grader.watching import INTERVAL, watch


def test_a_saved_file_is_graded_again(tmp_path):
    path, graded, said = tmp_path / "problem_4.py", [], []
    path.write_text("one", "utf-8")

    def save():
        time.sleep(2 * INTERVAL)
        path.write_text("another", "utf-8")

    thread = threading.Thread(target=save)
    thread.start()
    watch([path], graded.append, said.append, turns=2)
    thread.join()
    assert graded == [0, 0]
    assert "problem_4.py was saved." in said
