"""Keys that are read from source are those that a class has once it is imported."""

import pytest

from fedunseen.core.registry import find, names, own
from fedunseen.experiment.parsing import NAMED
from fedunseen.experiment.settings_keys import own_keys


@pytest.mark.parametrize("section", NAMED)
def test_keys_are_those_of_the_settings(section):
    for name in names(section):
        if name in own(section):
            assert own_keys(section, name) == list(find(section, name).Settings.model_fields), name
