"""A party, or samples of it, are subtracted from statistics, exactly.

Quantized statistics are whole numbers, so nothing of what was removed remains. What was fitted to
samples beside the statistics stays: scalings, quantization, calibration.
"""

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.data import Quantization
from fedunseen.methods.base import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.statistics import subtract, validate_statistics
from fedunseen.strategies.summed import forget as without_party


def quantization_of(method: Method) -> Quantization:
    """Return how features became whole numbers, from whose sums samples are removed exactly."""
    if not isinstance(method, ClosedForm) or method.quantization is None:
        raise ExperimentError(
            "data.quantization = 'none' has summed float64 numbers, from which nothing is removed "
            "exactly: run it again"
        )
    return method.quantization


def without(
    method: Method, server: Params, total: Params, client: int, part: Params | None = None
) -> tuple[Params, Params]:
    """Return the server's state and the total of all parties without samples of one party.

    Args:
        method: made for the classes of the statistics.
        server: each party's statistics, under ``client/K/``, where they are kept.
        total: of all parties.
        client: the party, K.
        part: the statistics of some of its samples; None: all of them.

    Raises:
        FedUnseenError: the party's statistics are not kept, or it is the only one.
        DataError: no samples can have what would be left.
        ExperimentError: the statistics are not whole numbers, and ``part`` is given.
    """
    if part is None:
        return without_party(server, client)
    quantization = quantization_of(method)
    part = {**part, "space": total["space"]}
    remaining = subtract(total, part, method.space, quantization)
    if why := validate_statistics(remaining, None, quantization):
        raise DataError(f"what is to be removed was never a part of the sums: without it {why}")
    kept = of_each_client(server)
    if client in kept:
        rest = subtract(kept[client], part, method.space, quantization)
        if not bool(rest["count"].any()):
            return without_party(server, client)
        server = server | {f"client/{client}/{name}": value for name, value in rest.items()}
    return server, remaining
