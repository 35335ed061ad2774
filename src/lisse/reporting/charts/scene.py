"""What the pictures of a chart share: the models, the coordinates that are drawn, colours, and the legend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes

from lisse.profile import Chart, Part, Profile, Quantity, Row, Value, coordinate_text
from lisse.reporting.figure import PALETTE
from lisse.reporting.series import Series, legend_names

#: Dashes of the lines of a panel, and of coordinates where the colours are those of models.
LINE_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
STYLE_WORDS = ("full", "dashed", "dotted", "dash-dotted")


@dataclass(frozen=True)
class Drawing:
    """One axes of a figure: its title, the coordinates that all of it shares, and what fills it.

    ``model`` is the place of the only one it shows; ``height`` in inches where its form's is not enough.
    """

    title: str
    fill: Callable[[Axes], None]
    at: Mapping[str, Value] = field(default_factory=dict)
    model: int = 0
    height: float = 0.0


@dataclass
class Scene:
    """A chart and the parts that it draws. Pictures add to the legend's ``handles`` and to ``remarks`` when made.

    ``looks`` numbers the sets of coordinates, so that all panels draw them alike; ``kinds`` has a line of every kind.
    """

    chart: Chart
    profiles: list[Profile]
    parts: list[Part]
    where: Mapping[str, Value]
    handles: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    looks: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, Series] = field(default_factory=dict)

    @property
    def models(self) -> list[tuple[str, Part, str]]:
        """Name, part and colour of every model."""
        names = legend_names(self.profiles)
        return [
            (name, part, PALETTE[index % len(PALETTE)])
            for index, (name, part) in enumerate(zip(names, self.parts, strict=True))
        ]

    def alone(self, form: str) -> tuple[str, Part]:
        """The only model; several are an error."""
        if len(self.parts) > 1:
            raise ValueError(
                f"chart_figure: {self.chart.name!r} draws one profile ({form} of one network), got {len(self.parts)}."
            )
        (model,) = self.models
        return model[0], model[1]

    def quantity(self, name: str) -> Quantity:
        """What a quantity means; one that no part describes is its name alone."""
        described = (quantity for part in self.parts for quantity in part.quantities if quantity.name == name)
        return next(described, Quantity(name, name, ""))

    def choices(self, ats: Iterable[Mapping[str, Value]]) -> dict[str, str]:
        """The coordinates that are drawn: those of ``where``, and the first of the chart's preferences there is."""
        values: dict[str, set[str]] = {}
        for at in ats:
            for key, value in at.items():
                values.setdefault(key, set()).add(coordinate_text(value))
        drawn = {key: coordinate_text(value) for key, value in self.where.items()}
        for key, order in self.chart.prefers.items():
            if key in values and key not in drawn:
                drawn[key] = next(
                    (coordinate_text(value) for value in order if coordinate_text(value) in values[key]),
                    min(values[key]),
                )
        return drawn

    def base(self, part: Part, quantity: str, at: Mapping[str, Value]) -> Row | None:
        """A quantity's row of the whole network at these coordinates (as far as it has them), of the largest cloud."""
        rows = [row for row in part.rows if row.quantity == quantity and row.layer is None and agrees(row.at, at)]
        return max(rows, key=lambda row: float(row.at.get("cloud", 0)), default=None)


def agrees(at: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    """Whether two sets of coordinates have the same values where both have the key."""
    return all(coordinate_text(at[key]) == coordinate_text(other[key]) for key in at.keys() & other.keys())
