"""The user's files are replaced whole, with their rights, and kept under names that are free."""

import os
import threading
from pathlib import Path

import pytest

from grader.host import files


def test_a_replaced_file_keeps_its_rights_unless_told_otherwise(tmp_path):
    path = tmp_path / "problem_4.py"
    path.write_bytes(b"old")
    path.chmod(0o640)
    files.replace(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640
    files.replace(path, b"newer", 0o644)
    assert path.stat().st_mode & 0o777 == 0o644 and list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "problem_4.py"
    path.write_bytes(b"old")

    def full(*paths):
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_ctrl_c_just_after_the_replacement_is_still_a_ctrl_c(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    replace = files.os.replace

    def interrupted(*paths):
        replace(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.replace(path, b"new", 0o644)
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_where_the_user_said_a_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("real")
    for text in (b"one", b"two"):
        files.write(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == text
        assert (tmp_path / "real").stat().st_mode & 0o777 == 0o644
    for one, other in ("ab", "ba"):
        (tmp_path / one).symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        files.write(tmp_path / "a", b"one")
    assert (tmp_path / "a").is_symlink()


def test_a_pipe_and_a_device_are_written_to_and_stay(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    files.write(pipe, b"one")
    reader.join(60)
    assert read == [b"one"] and files.is_stream(pipe)
    files.write(Path("/dev/null"), b"one")
    assert files.is_stream(Path("/dev/null")) and not files.is_stream(tmp_path / "nothing")


def test_what_is_kept_never_takes_the_name_of_what_was_kept_before(tmp_path):
    path = tmp_path / "a.py"
    for text in "123":
        path.write_text(text)
        kept = files.keep(path, tmp_path / "kept" / "here" / "a.py")
        assert kept.read_text() == text
    assert sorted(os.listdir(tmp_path / "kept/here")) == ["a.py", "a.py.2", "a.py.3"]
