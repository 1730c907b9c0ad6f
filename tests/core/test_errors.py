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


def test_of_many_names_only_the_nearest_three_are_told():
    fish = [
        "perch",
        "pike",
        "roach",
        "tench",
        "bream",
        "carp",
        "eel",
        "trout",
        "salmon",
        "char",
        "barbel",
        "chub",
        "dace",
    ]
    assert errors.unknown("fish", "breem", fish) == (
        "unknown fish 'breem': did you mean 'bream'? (the nearest: bream, barbel, eel)"
    )
    assert errors.unknown("fish", "xyz", fish).startswith("unknown fish 'xyz' (the nearest: ")
    assert errors.unknown("fish", "eal", fish[:12]).endswith(
        "'eel'? (known: barbel, bream, carp, char, chub, eel, perch, pike, roach, salmon, tench, trout)"
    )
