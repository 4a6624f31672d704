import os

import pytest

from grader import kernel_cache
from tests.sessions import double_call, open_session, run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flash-attention-course"


def test_the_same_bytes_find_the_same_folder_and_others_another(home):
    first = kernel_cache.folder_for(b"a")
    assert first.is_dir() and kernel_cache.folder_for(b"a") == first
    assert kernel_cache.folder_for(b"b") != first


def test_the_files_not_used_for_longest_are_forgotten(home, monkeypatch):
    monkeypatch.setattr(kernel_cache, "KEPT", 2)
    folders = [kernel_cache.folder_for(bytes([i])) for i in range(2)]
    for age, folder in enumerate(folders):
        os.utime(folder, (age, age))
    kernel_cache.folder_for(bytes([0]))  # used again
    newest = kernel_cache.folder_for(b"new")
    assert sorted(home.iterdir()) == sorted([folders[0], newest])


def test_without_a_place_to_write_there_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernel_cache.folder_for(b"a") is None


@pytest.mark.parametrize("given", [True, False])
def test_a_session_tells_its_worker_where_the_cache_is(given, tmp_path):
    with open_session("answers.py", cache=tmp_path if given else None) as session:
        found = session._environment("cpu", True)["TRITON_CACHE_DIR"]
        assert found == str(tmp_path if given else session.folder / "cache")
        run(session, "double", double_call())
