"""Row, Quantity, Part, Profile: what a measurement leaves behind, and the only thing a report reads.

A :class:`Profile` is a list of parts, one per instrument, and where they came from. It knows nothing about networks,
data sets or figures. :mod:`lisse.profile_file` gives it its file format.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["exact", "estimate", "lower", "upper", "heuristic"]
Scale = Literal["linear", "log"]
Better = Literal["lower", "higher", "neither"]
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a number means, in words that travel with it, so that a report can draw an instrument it has never met.

    ``name`` is the key rows refer to; ``label`` goes on an axis; ``says`` is one plain sentence; ``formula`` is LaTeX
    without dollar signs; ``reference`` a key of ``references.bib`` with an equation, e.g. ``[petrini2021] eq. 4``.
    """

    name: str
    label: str
    says: str
    formula: str = ""
    reference: str = ""
    scale: Scale = "linear"
    better: Better = "neither"
    unit: str = ""

    def __post_init__(self) -> None:
        _choice("Quantity", "scale", self.scale, get_args(Scale))
        _choice("Quantity", "better", self.better, get_args(Better))


@dataclass(frozen=True, slots=True)
class Row:
    """One number: what it is, how far it can be trusted, and where along the network it applies.

    ``kind`` says what the number is: ``exact`` (of this very sample or these very weights), ``estimate`` (of a
    population, with an interval), ``lower`` or ``upper`` (one side of the true value), or ``heuristic``. ``n`` counts
    the samples behind it, ``low`` and ``high`` bound its interval, ``depth`` runs from 0 (input) to 1 (output), and
    ``at`` holds every other coordinate (p, dim, cut, head, severity, the other layer…).
    """

    quantity: str
    value: float
    kind: Kind
    n: int
    layer: str | None = None
    depth: float | None = None
    low: float | None = None
    high: float | None = None
    at: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _choice("Row", "kind", self.kind, get_args(Kind))
        if (self.low is None) != (self.high is None):
            raise ValueError(f"Row: low and high must be given together, got low={self.low}, high={self.high}.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"Row: low must not exceed high, got {self.low} > {self.high}.")
        if self.depth is not None and not 0.0 <= self.depth <= 1.0:
            raise ValueError(f"Row: depth must lie in [0, 1], got {self.depth}.")
        if self.n < 0:
            raise ValueError(f"Row: n must not be negative, got {self.n}.")

    def where(self) -> str:
        """The other coordinates in one short string, e.g. ``p=2 dim=1``; empty when there are none."""
        return _where(self.at)


@dataclass(frozen=True)
class Part:
    """What one instrument found: rows, what they mean, what was left out and why, and named arrays.

    ``notes`` are plain sentences for a person (a skipped layer and the reason, a solver that did not converge).
    ``arrays`` hold what is no table (diagrams, histograms, filmstrips), keyed by name.
    """

    instrument: str
    rows: tuple[Row, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    notes: tuple[str, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "quantities", tuple(self.quantities))
        object.__setattr__(self, "notes", tuple(self.notes))
        known = {quantity.name for quantity in self.quantities}
        for row in self.rows:
            if row.quantity not in known:
                raise ValueError(
                    f"Part: every row's quantity must be described, got {row.quantity!r}; described: {sorted(known)}."
                )

    def table(self) -> pd.DataFrame:
        """What :meth:`Profile.table` shows of this instrument alone."""
        return Profile((self,)).table()


@dataclass(frozen=True)
class Profile:
    """One model on one data set, measured: parts and provenance.

    ``provenance`` is plain JSON: model, data, fingerprints, layers in order with shapes, seed, batch, versions,
    machine, date. Two profiles with the same fingerprints and seed were made from the same thing.
    """

    parts: tuple[Part, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows of all parts, in order."""
        return tuple(row for part in self.parts for row in part.rows)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Name to meaning, over all parts."""
        return {quantity.name: quantity for part in self.parts for quantity in part.quantities}

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes of all parts, in order."""
        return tuple(note for part in self.parts for note in part.notes)

    @property
    def name(self) -> str:
        """The model's name, as a legend would show it."""
        model = self.provenance.get("model")
        return str(model.get("name", "model")) if isinstance(model, Mapping) else "model"

    def __getitem__(self, instrument: str) -> Part:
        for part in self.parts:
            if part.instrument == instrument:
                return part
        raise KeyError(f"Profile: no part {instrument!r}; it has {[part.instrument for part in self.parts]}.")

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def frame(self) -> pd.DataFrame:
        """Every row as a tidy table: one line per number, one column per coordinate of ``at``.

        A coordinate that has the name of another column (``layer``, ``n``…) becomes ``at.layer``, ``at.n``….
        """
        import pandas as pd

        columns = ["instrument", "quantity", "layer", "depth", "value", "low", "high", "kind", "n"]
        records = [
            {
                "instrument": part.instrument,
                **{key: getattr(row, key) for key in columns[1:]},
                **{f"at.{key}" if key in columns else key: value for key, value in row.at.items()},
            }
            for part in self.parts
            for row in part.rows
        ]
        others = [key for key in dict.fromkeys(key for record in records for key in record) if key not in columns]
        return pd.DataFrame.from_records(records, columns=columns + others)

    def table(self) -> pd.DataFrame:
        """One line per layer, one column per quantity (and coordinate): the values alone, in order of depth.

        Where no number belongs to a layer (accuracies under corruptions, say), coordinates that are words name the
        lines (``corruption=fog``) and those that are numbers stay with the quantity (``corruption_accuracy
        severity=1``); without words the numbers name the lines. The index is then called ``where``. Beside layers,
        numbers of the whole network are left to :meth:`frame`, and to ``profile["robustness"].table()``.
        """
        import pandas as pd

        layers = [layer for layer in dict.fromkeys(row.layer for row in self.rows) if layer is not None]
        if not layers:
            return self._table_without_layers()
        depth = {row.layer: row.depth for row in self.rows if row.depth is not None}
        order = {layer: place for place, layer in enumerate(layers)}
        layers.sort(key=lambda layer: (depth.get(layer, math.inf), order[layer]))
        columns: dict[str, dict[str, float]] = {}
        for row in self.rows:
            if row.layer is not None:
                columns.setdefault(" ".join(filter(None, (row.quantity, row.where()))), {})[row.layer] = row.value
        table = pd.DataFrame({name: [column.get(layer) for layer in layers] for name, column in columns.items()})
        table.index = pd.Index(layers, name="layer")
        return table

    def _table_without_layers(self) -> pd.DataFrame:
        import pandas as pd

        words = any(isinstance(value, str) for row in self.rows for value in row.at.values())
        columns: dict[str, dict[str, float]] = {}
        for row in self.rows:
            down = {key: value for key, value in row.at.items() if isinstance(value, str) or not words}
            across = {key: value for key, value in row.at.items() if key not in down}
            name = " ".join(filter(None, (row.quantity, _where(across))))
            columns.setdefault(name, {})[_where(down)] = row.value
        lines = list(dict.fromkeys(line for column in columns.values() for line in column))
        table = pd.DataFrame({name: [column.get(line) for line in lines] for name, column in columns.items()})
        table.index = pd.Index(lines, name="where" if lines else "layer")
        return table

    def compare(self, other: Profile) -> pd.DataFrame:
        """Rows that both profiles have, side by side, with ``apart`` where the two intervals do not overlap.

        Rows are matched by instrument, quantity, layer and coordinates. ``apart`` is ``None`` where a row has no
        interval and is not ``exact`` (without an interval nothing can be said about a population), or is NaN.
        """
        import pandas as pd

        theirs = dict(other._keyed())
        records = []
        for key, mine in self._keyed():
            yours = theirs.get(key)
            if yours is None:
                continue
            records.append(
                {
                    "instrument": key[0],
                    "quantity": mine.quantity,
                    "layer": mine.layer,
                    "where": mine.where(),
                    "a": mine.value,
                    "b": yours.value,
                    "difference": yours.value - mine.value,
                    "apart": _apart(mine, yours),
                }
            )
        columns = ["instrument", "quantity", "layer", "where", "a", "b", "difference", "apart"]
        frame = pd.DataFrame.from_records(records, columns=columns)
        frame["apart"] = frame["apart"].astype(object)
        return frame

    def _keyed(self) -> Iterator[tuple[tuple[Any, ...], Row]]:
        for part in self.parts:
            for row in part.rows:
                yield (
                    (part.instrument, row.quantity, row.layer, tuple(sorted(row.at.items(), key=lambda item: item[0]))),
                    row,
                )

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one file (a zip of JSON and ``.npy``, no pickle), atomically. See :mod:`lisse.profile_file`."""
        from lisse import profile_file

        return profile_file.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a file that :meth:`save` wrote; a damaged, foreign or hostile one is a clear ``ValueError``."""
        from lisse import profile_file

        return profile_file.load(Path(path))


def options_of(instrument: Any) -> dict[str, Any]:
    """A dataclass instance's fields as plain JSON values, for provenance and for the cache's key."""
    return {item.name: _plain(getattr(instrument, item.name)) for item in dataclasses.fields(instrument)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return repr(value)


def _apart(a: Row, b: Row) -> bool | None:
    if math.isnan(a.value) or math.isnan(b.value):
        return None
    if a.low is not None and a.high is not None and b.low is not None and b.high is not None:
        return a.high < b.low or b.high < a.low
    if a.kind == b.kind == "exact":
        return a.value != b.value
    return None


def _where(at: Mapping[str, Value]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in at.items())


def _short(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choice(where: str, argument: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{where}: {argument} must be one of {', '.join(allowed)}, got {value!r}.")
