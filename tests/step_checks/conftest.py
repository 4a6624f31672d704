import pytest


@pytest.fixture
def no_search(monkeypatch):
    """No change of a step's text is tried: hundreds take seconds, and few tests are about them."""
    monkeypatch.setattr("grader.step_checks.checks.PLACED", 0)
