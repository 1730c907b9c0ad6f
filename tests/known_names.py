"""What several tests name: refusals, the end of an unknown name, an extra, and a few-shot
experiment of seconds.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedunseen.core.errors import ExperimentError, FedUnseenError

accounted = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="needs the extra privacy: dp-accounting"
)
DIGITS_MAML = str(Path(__file__).with_name("digits-maml.toml"))


def known(names: Iterable[str], wrong: str) -> str:
    """Return it: all names there are, or of more than twelve the three nearest to the wrong one."""
    if len(every := sorted(names)) <= 12:
        return f"(known: {', '.join(every)})"
    return f"(the nearest: {', '.join(difflib.get_close_matches(wrong, every, 3, 0.0))})"


@contextmanager
def refuses(sentence: str, error: type[FedUnseenError] = ExperimentError) -> Iterator[None]:
    """Expect an error whose message is exactly this sentence."""
    with pytest.raises(error) as refusal:
        yield
    assert str(refusal.value) == sentence
