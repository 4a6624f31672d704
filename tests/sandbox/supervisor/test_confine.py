"""What a worker may touch, seen from inside one."""

import pytest

from grader.course.calls import OutputSpec
from grader.host.accounts import find_user
from grader.host.processes import Confinement, Worker
from grader.host.session import Session
from grader.sandbox.supervisor import confine, supervisor  # noqa: F401 -- importing starts nothing
from tests.sessions import double_call

LANDLOCK = "the kernel has no Landlock, or an old one"


def ask(source: str, confinement=None) -> tuple[list[float], tuple[str, ...]]:
    """The numbers that a submission's double(x) returns, and what held it."""
    count = source.count("CHECK")
    spec = (OutputSpec("y", (count,), double_call().inputs["x"].storage.dtype),)
    lines = "\n".join("    " + line.replace("CHECK", "found +=") for line in source.splitlines())
    text = ("import os, signal, socket, torch\nfrom pathlib import Path\n"
            "def tried(act):\n    try:\n        act()\n        return [1.0]\n"
            "    except OSError:\n        return [0.0]\n"
            f"def double(x):\n    found = []\n{lines}\n    return torch.tensor(found)\n")
    with Session(Worker(text.encode(), "problem_2.py", device="cpu", interpret=False,
                        confinement=confinement), 60) as session:
        session.load("double", None, ("x",))
        return session.run(double_call(outputs=spec)).outputs[0]["y"].tolist(), session.confined


def test_a_worker_writes_into_its_own_folder_and_nowhere_else(tmp_path):
    found, held = ask(f"""
CHECK tried(lambda: Path('here').write_text('x'))
CHECK tried(lambda: Path(os.environ['TMPDIR'], 'here').write_text('x'))
CHECK tried(lambda: Path({str(tmp_path)!r}, 'left').write_text('x'))
CHECK tried(lambda: Path('/dev/shm/left').write_text('x'))""".strip())
    if "files" not in held:
        pytest.skip(LANDLOCK)
    assert found == [1.0, 1.0, 0.0, 0.0]
    assert not list(tmp_path.iterdir())


def test_a_worker_does_not_see_what_is_hidden(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "reference.py").write_text("x")
    (tmp_path / "open.txt").write_text("x")
    found, held = ask(f"""
CHECK tried(lambda: Path({str(tmp_path)!r}, 'secret', 'reference.py').read_text())
CHECK tried(lambda: os.listdir({str(tmp_path / "secret")!r}))
CHECK tried(lambda: Path({str(tmp_path)!r}, 'open.txt').read_text())""".strip(),
                      Confinement(hidden=(tmp_path / "secret",)))
    if "files" not in held:
        pytest.skip(LANDLOCK)
    assert found == [0.0, 0.0, 1.0]


def test_a_worker_signals_nobody_outside_and_has_no_network():
    found, held = ask("""
CHECK tried(lambda: os.kill(os.getppid(), 0))
CHECK tried(lambda: os.kill(os.getpid(), 0))
CHECK tried(lambda: socket.create_connection(('127.0.0.1', 9), 1))
CHECK tried(lambda: socket.socket().bind(('127.0.0.1', 0)))""".strip())
    if "signals" not in held:
        pytest.skip(LANDLOCK)
    assert found == [0.0, 1.0, 0.0, 0.0]


def test_all_but_the_hidden_is_open(tmp_path):
    for name in ("a", "b", "b/c", "b/d"):
        (tmp_path / name).mkdir()
    found = set(confine._all_but([tmp_path / "b" / "c"], tmp_path))
    assert found == {str(tmp_path / "a"), str(tmp_path / "b" / "d")}


# --------------------------------------------------------------------- accounts
def test_nobody_asked_for_is_nobody_taken():
    assert find_user("none") is None


@pytest.mark.parametrize(("name", "words"), [
    ("no-such-account", "want an account of this machine"),
    ("root", "want"),
])
def test_an_account_that_will_not_do_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        find_user(name)
