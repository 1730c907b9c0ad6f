import pytest

from fedunseen.core import errors


def test_every_error_is_one_that_the_command_reports():
    kinds = [errors.ExperimentError, errors.DataError, errors.RunDirectoryError, errors.MissingDependencyError]
    assert all(issubclass(kind, errors.FedUnseenError) for kind in kinds)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fedprx", "unknown strategy 'fedprx': did you mean 'fedprox'? (known: fedavg, fedprox)"),
        ("scaffold", "unknown strategy 'scaffold' (known: fedavg, fedprox)"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_known_one(name, sentence):
    assert errors.unknown("strategy", name, {"fedprox": 1, "fedavg": 2}) == sentence
