"""Which ids a worker gets."""

import pytest

from grader.host import accounts

IDS = range(1000, 1100)


@pytest.fixture(autouse=True)
def ids(monkeypatch):
    monkeypatch.setattr(accounts, "_nobody", lambda: 65534)
    monkeypatch.setattr(accounts, "unused_ids", lambda: IDS)


def test_a_worker_has_ids_of_its_own_and_no_group_is_shared():
    pairs = {accounts.ids_for_worker((65534, 65534)) for _ in range(50)}
    assert len(pairs) > 10 and all(uid == gid and uid in IDS for uid, gid in pairs)


def test_workers_of_a_group_share_its_id_and_no_other():
    one, again, other = (accounts.ids_for_worker((65534, 65534), name)[1]
                         for name in ("a", "a", "b"))
    assert one == again != other and {one, other} <= set(IDS)


def test_an_account_that_was_named_is_used_as_it_is(monkeypatch):
    assert accounts.ids_for_worker((1234, 5)) == (1234, 5)
    assert accounts.ids_for_worker(None) is None
    monkeypatch.setattr(accounts, "unused_ids", lambda: None)
    assert accounts.ids_for_worker((65534, 65534)) == (65534, 65534)
