"""A module here has a fixture `installed`: the folder of a platform in which a kit is set up."""

import json

import pytest


@pytest.fixture
def decided(installed):
    """decided(seconds): has that many for all stages."""
    (path,) = installed.rglob("course/kit.json")
    before = path.read_text()
    yield lambda seconds: path.write_text(json.dumps(json.loads(before) | {"seconds": seconds}))
    path.write_text(before)
