"""The message with which something is refused."""

import pytest

from fedunseen.core.errors import DataError


def message_of(call, *args, error=DataError, **settings):
    """Return the message of the error that the call must raise."""
    with pytest.raises(error) as caught:
        call(*args, **settings)
    return str(caught.value)
