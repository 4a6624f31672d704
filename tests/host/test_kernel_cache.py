import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from grader.host import kernel_cache
from grader.host.accounts import find_user, ids_for_worker
from grader.host.processes import Confinement
from tests.sessions import double_call, open_session


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "flash-attention-course"
    let_go()


def let_go() -> None:
    """As the end of a grading does."""
    while kernel_cache._held:
        os.close(kernel_cache._held.popitem()[1])


def test_the_same_bytes_find_the_same_folder_and_others_another(home):
    first = kernel_cache.folder_for(b"a")
    assert first.is_dir() and kernel_cache.folder_for(b"a") == first
    assert kernel_cache.folder_for(b"b") != first


def test_a_file_is_known_once_something_was_compiled_from_it(home):
    assert not kernel_cache.knows(b"a")
    (kernel_cache.folder_for(b"a") / "kernel.cubin").write_text("x")
    assert kernel_cache.knows(b"a") and not kernel_cache.knows(b"b")


def test_a_folder_of_another_account_is_not_taken_for_ours(monkeypatch, tmp_path):
    base = tmp_path / f"flash-attention-course-{os.geteuid()}-shared"
    monkeypatch.setattr(kernel_cache, "Path", lambda path: tmp_path)
    assert kernel_cache._shared_base() == base and base.stat().st_mode & 0o777 == 0o711
    monkeypatch.setattr(kernel_cache.os, "geteuid", lambda: 12345)
    base.rename(tmp_path / "flash-attention-course-12345-shared")
    with pytest.raises(OSError, match="somebody else's folder"):
        kernel_cache._shared_base()


def test_the_files_not_used_for_longest_are_forgotten(home, monkeypatch):
    monkeypatch.setattr(kernel_cache, "KEPT", 2)
    folders = [kernel_cache.folder_for(bytes([i])) for i in range(2)]
    let_go()
    for age, folder in enumerate(folders):
        os.utime(folder, (age, age))
    kernel_cache.folder_for(bytes([0]))  # used again
    newest = kernel_cache.folder_for(b"new")
    assert sorted(home.iterdir()) == sorted([folders[0], newest])


def test_what_a_grading_still_uses_is_never_forgotten(home, monkeypatch):
    monkeypatch.setattr(kernel_cache, "KEPT", 2)
    folders = [kernel_cache.folder_for(bytes([i])) for i in range(5)]
    assert all(folder.is_dir() for folder in folders)
    let_go()
    kernel_cache.folder_for(b"new")
    assert len(list(home.iterdir())) == 2


def test_kernels_of_replaying_workers_stay_while_another_grading_may_read_them(home, monkeypatch):
    monkeypatch.setattr(kernel_cache, "REPLAYED_KEPT", 1)
    folder = kernel_cache.replaying_folder()
    for name in "ab":
        (folder / name).mkdir()
    other = os.open(folder, os.O_RDONLY)  # as another process would
    fcntl.flock(other, fcntl.LOCK_SH)
    let_go()
    assert kernel_cache.replaying_folder() == folder and len(list(folder.iterdir())) == 2
    os.close(other)
    let_go()
    assert kernel_cache.replaying_folder() == folder and len(list(folder.iterdir())) == 1


def test_replaying_workers_have_a_folder_of_their_own_that_forgets_old_kernels(home, monkeypatch):
    monkeypatch.setattr(kernel_cache, "REPLAYED_KEPT", 1)
    folder = kernel_cache.replaying_folder()
    for age in range(3):
        (folder / str(age)).mkdir()
        os.utime(folder / str(age), (age, age))
    let_go()
    assert kernel_cache.replaying_folder() == folder
    assert [path.name for path in folder.iterdir()] == ["2"]


def test_without_a_place_to_write_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernel_cache.folder_for(b"a") is None
    kernel_cache.keep_checked("problem_4.py", {"a": 1})
    assert kernel_cache.checked("problem_4.py") == {}


def test_the_newest_checked_variants_of_each_problem_are_kept(home, monkeypatch):
    monkeypatch.setattr(kernel_cache, "CHECKED_KEPT", 2)
    for variants in ({"a": 1, "b": 2}, {"a": 1, "c": 3}):
        kernel_cache.keep_checked("problem_4.py", variants)
    assert kernel_cache.checked("problem_4.py") == {"a": 1, "c": 3}
    assert kernel_cache.checked("problem_5.py") == {}


@pytest.mark.parametrize("change", ["another version", "half a file", "another shape"])
def test_checked_variants_of_another_version_or_file_count_as_none(home, monkeypatch, change):
    kernel_cache.keep_checked("problem_4.py", {"a": 1})
    (kept,) = (home / "checked").iterdir()
    if change == "another version":
        monkeypatch.setattr(kernel_cache, "_compiling", lambda: "another")
    else:
        kept.write_text(kept.read_text()[:20] if change == "half a file" else "[]")
    assert kernel_cache.checked("problem_4.py") == {}
    kernel_cache.keep_checked("problem_4.py", {"b": 2})
    assert kernel_cache.checked("problem_4.py") == {"b": 2}


def test_what_one_session_compiles_the_next_one_finds(tmp_path):
    def compiled() -> dict:
        with open_session("kernels.py", compile_for=90, cache=tmp_path) as session:
            session.load("differentiable", None, ("x",))
            session.compile(double_call())
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cubin")}

    first = compiled()
    assert first and compiled() == first  # nothing new, nothing written again
    assert tmp_path.is_dir()  # a session removes its own folder, not a cache it was given


def test_workers_under_own_ids_share_what_they_compiled_and_nobody_else(
        monkeypatch):
    if (user := find_user("auto")) is None or ids_for_worker(user) == user:
        pytest.skip("needs root, and a Python that the account nobody can read")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        os.chmod(base, 0o711)
        monkeypatch.setattr(kernel_cache, "_shared_base", lambda: Path(base))
        folder = kernel_cache.folder_for(b"a", user)
        owners, written = set(), []
        for _ in range(2):
            with open_session("kernels.py", compile_for=90, cache=folder,
                              confinement=Confinement(user)) as session:
                session.load("differentiable", None, ("x",))
                session.compile(double_call())
                owners.add(session.worker.folder.stat().st_uid)
            written.append({path: path.stat().st_mtime_ns for path in folder.rglob("*.cubin")})
        assert len(owners) == 2 and written[0] and written[0] == written[1]
        assert folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o7
        let_go()
