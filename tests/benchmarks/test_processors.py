"""The comparison of processors: differences of two leaderboards, and the same processors as
``make test-portable``.
"""

import re
from pathlib import Path

import processors

HEAD = "data,partition,method,condition,status,zsl,zsl_half,gzsl_harmonic,gzsl_harmonic_half,settings\n"


def leaderboard(path, *rows):
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows), "utf-8")
    return path


def test_the_largest_difference_of_a_method_and_other_choices_are_named(tmp_path):
    printed = leaderboard(
        tmp_path / "printed.csv",
        "a,pccd,m,0,done,50.0,2.0,40.0,3.0,lr=1 rounds=5 evaluation.factor=0.25",
        "a,pccd,m,1,done,60.0,1.0,45.0,1.0,lr=1 rounds=5 evaluation.factor=0.25",
        "a,pccd,n,0,done,70.0,1.0,55.0,1.0,lr=1",
        "a,pccd,o,0,not run,,,,,",
    )
    ours = leaderboard(
        tmp_path / "ours.csv",
        # another offset is no other choice
        "a,pccd,m,0,done,50.5,2.0,40.0,3.0,lr=1 rounds=5 evaluation.factor=0.75",
        "a,pccd,m,1,done,58.0,1.0,45.25,1.0,lr=1 rounds=4 evaluation.factor=0.25",
        "a,pccd,n,0,not run,,,,,",
        "b,pccd,m,0,done,1.0,1.0,1.0,1.0,lr=1",
    )
    assert list(processors.compare(ours, printed)) == [
        ("a", "m", ["2", "2.00", "0.25", "2.0", "3.0", "lr=1 rounds=4"])
    ]


def test_they_are_the_processors_of_make_test_portable():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
    capabilities = {
        tuple(one.split(",")) for one in re.findall(r"\$\(call cpu,([^)]+)\)", makefile)
    }
    assert capabilities == set(processors.CAPABILITIES.values())
    assert re.findall(r"(\w+)=\$\(\d\)", makefile) == list(processors.VARIABLES)
