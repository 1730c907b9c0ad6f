"""What all tests share: a cache folder of their own, so that no test sees another run's cached results."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep results that take long in a folder that only this test has."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(folder))
    return folder
