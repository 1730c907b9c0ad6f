"""The columns of a table as an experiment states them."""

from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedunseen.core.errors import ExperimentError
from fedunseen.core.settings import Settings
from fedunseen.data.columns.treatment import as_days, as_number, text_of

Kind = Literal["number", "category", "boolean", "date", "text"]
KINDS: tuple[Kind, ...] = ("number", "category", "boolean", "date", "text")


def _written(value: Any) -> Any:
    """Return a date of TOML as text, as JSON has it."""
    return value.isoformat() if isinstance(value, date) else value


Stated = Annotated[float | str, BeforeValidator(_written)]
"""A number, or a date as ISO 8601 writes it."""


class Column(Settings):
    """A column that becomes features, and how."""

    name: str = Field(min_length=1)
    """In the table's header."""
    kind: Kind
    """What a cell is."""
    values: tuple[Annotated[str, BeforeValidator(text_of)], ...] = ()
    """The vocabulary of a `category`: each value is a feature. All others count as `other`."""
    bounds: tuple[Stated, Stated] | None = None
    """Lowest and highest `number` or `date`, which become 0 and 1. Beyond them a cell is
    clipped."""
    fill: Stated | None = None
    """What stands for a missing cell of a `number`, `boolean` or `date`. Unset: the middle."""
    indicator: bool = False
    """A feature more says that the cell is missing."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "category":
            self._check_values()
        elif self.kind == "text":
            self._check_text()
        else:
            self._check_numbers()
        return self

    def _check_values(self) -> None:
        count = Counter(self.values).most_common(1)
        if not count or count[0][1] > 1:
            what = f"names {count[0][0]!r} twice" if count else "names no value"
            raise self._wrong(f"values {what}", "name each category once")
        for key in ("bounds", "fill"):
            if getattr(self, key) is not None:
                raise self._wrong(f"{key} is for numbers and dates", "leave it out")

    def _check_text(self) -> None:
        for key in ("values", "bounds", "fill"):
            if getattr(self, key):
                raise self._wrong(f"{key} is not for a text", "leave it out")

    def _check_numbers(self) -> None:
        read = as_days if self.kind == "date" else as_number
        form = "dates as 2024-05-17" if self.kind == "date" else "numbers"
        if self.values:
            raise self._wrong("values are for a category", "leave them out")
        if self.kind == "boolean":
            if self.bounds is not None:
                raise self._wrong("bounds are for numbers and dates", "leave them out")
        elif self.bounds is None:
            raise self._wrong("bounds are missing", f"give the lowest and the highest: two {form}")
        ends = [read(end) for end in self.bounds or (0.0, 1.0)]
        if None in ends:
            raise self._wrong(f"bounds are {list(self.bounds or ())}", f"give two {form}")
        low, high = (float(end) for end in ends if end is not None)
        if not low < high:
            raise self._wrong("bounds are no range", "give the lowest, then a higher one")
        fill = read(self.fill) if self.fill is not None else low
        if fill is None or not low <= fill <= high:
            raise self._wrong(f"fill is {self.fill}", f"give one of the {form} within the bounds")

    def _wrong(self, problem: str, remedy: str) -> ExperimentError:
        return ExperimentError(
            f"data.columns: {self.name!r}: {problem}: {remedy}", "column-settings"
        )


def check_columns(columns: Sequence[Column]) -> None:
    """Refuse two columns of one name."""
    for name, count in Counter(column.name for column in columns).items():
        if count > 1:
            raise ExperimentError(
                f"data.columns names {name!r} twice: leave one out", "column-settings"
            )
