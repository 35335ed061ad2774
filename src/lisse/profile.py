"""Row, Quantity, Chart, Part, Profile: what a measurement leaves behind, and the only thing a report reads.

A :class:`Profile` is a list of parts, one per instrument, and where they came from. It knows nothing about networks,
data sets or figures. :mod:`lisse.profile_file` gives it its file format.
"""

from __future__ import annotations

import dataclasses
import importlib
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
Reduction = Literal["mean", "median", "largest", "ratio of means", "ratio of medians"]
#: What a number may not see: a layer's activations turned, shifted, or multiplied by a constant, with the network's
#: function as it was; and a temperature of the logits, which changes no decision.
Change = Literal["rotation", "shift", "scale", "temperature"]
RIGID: tuple[Change, ...] = ("rotation", "shift")
LAYERS: tuple[Change, ...] = (*RIGID, "scale")
EVERYTHING: tuple[Change, ...] = (*LAYERS, "temperature")
#: Kinds of picture: of rows (lines, dots), and of arrays (all others).
Look = Literal["line", "bars", "floor"]
Form = Literal[
    "lines", "dots", "curves", "scatter", "matrices", "histograms", "diagrams", "barcodes", "measures", "images"
]


@dataclass(frozen=True, slots=True)
class Headline:
    """What makes a quantity one of the few numbers of a page's first screen.

    ``label`` is its short name there, ``says`` a clause that explains it, ``makes`` what a better value makes a model.
    Of the rows without a layer, or else of those of the last layer, the one whose coordinates come first in ``prefers``
    stands for all: ``{"p": (1, 2)}`` takes ``p=1`` where there is one; a page's menus begin with the same values.
    ``alone`` is what it says of a model without another beside it, with ``{value}`` and, where the quantity has a
    ``neutral`` value, ``{than}`` (``less strongly than``): ``answers {than} noise (R_f {value})``. ``ratio`` names
    the two quantities that it is the ratio of: where two models differ in it, a page says which of the two moved.
    ``evidence`` says in a sentence or two what a better value is good for, by what has been measured, or that nobody
    knows. ``amounts`` names the instrument's options that only make the number surer, such as how many samples are
    looked at: numbers of two networks compare where all other options agree. ``outcome`` is what an atlas calls the
    number where others are asked how well they predict it (with ``over_error``, less the test error); it is asked
    nothing itself then.
    """

    label: str
    says: str = ""
    makes: str = "smoother"
    prefers: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    alone: str = ""
    ratio: tuple[str, ...] = ()
    evidence: str = ""
    amounts: tuple[str, ...] = ()
    outcome: str = ""
    over_error: bool = False

    def __post_init__(self) -> None:
        for name in ("ratio", "amounts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a number means, in words that travel with it, so that a report can draw an instrument it has never met.

    ``name`` is the key rows refer to; ``label`` goes on an axis; ``says`` is one plain sentence; ``formula`` is LaTeX
    without dollar signs; ``reference`` a key of ``references.bib`` with an equation, e.g. ``[petrini2021] eq. 4``.
    With a ``headline`` (or its label alone) it stands on a page's first screen, and with ``lead`` its figure is open
    there, before those of quantities without. ``neutral`` is the value at which nothing is gained or lost, such as 1
    of a ratio: figures draw a line there.
    ``invariant`` names the changes of a network that do not change it: without all of them a headline shows a number
    as a paper defines it, and judges nothing (:attr:`judges`). ``statistic`` is how the number comes of its samples (or
    clouds): what is resampled where two models are compared on the same ones. Values of several layers ``[n, L]`` have
    their mean, or the ``largest`` of their means; a ratio is that of values ``[n, 2, …]``.
    """

    name: str
    label: str
    says: str
    formula: str = ""
    reference: str = ""
    scale: Scale = "linear"
    better: Better = "neither"
    unit: str = ""
    headline: Headline | str | None = None
    lead: bool = False
    neutral: float | None = None
    invariant: tuple[Change, ...] = ()
    statistic: Reduction = "mean"

    def __post_init__(self) -> None:
        if isinstance(self.headline, str):
            object.__setattr__(self, "headline", Headline(self.headline))
        object.__setattr__(self, "invariant", tuple(self.invariant))
        for change in self.invariant:
            _choice("Quantity", "invariant", change, get_args(Change))
        _choice("Quantity", "scale", self.scale, get_args(Scale))
        _choice("Quantity", "better", self.better, get_args(Better))
        _choice("Quantity", "statistic", self.statistic, get_args(Reduction))

    @property
    def judges(self) -> bool:
        """Whether a better value may call a network better: a headline that sees nothing but what matters."""
        return self.headline is not None and self.better != "neither" and set(EVERYTHING) <= set(self.invariant)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel: the rows of a ``quantity``, with a ``label`` that tells it from the panel's other lines.

    ``at`` keeps the rows at exactly these coordinates; without it there is a line for every set of them. ``mean``
    names a coordinate over which the mean is drawn, ``relative`` divides by the value at the first layer, ``band``
    ``(key, low, high)`` fills the room between the rows at two other values of a coordinate of ``at``. ``dots`` are
    names of arrays ``[layers, k]`` that follow each other along the line: their entries are dots around it.
    ``power``: the rows hold logarithms to base ten already. ``look``: a line; ``bars`` that stand on the axis, one at
    each place; or a ``floor``, the room below the line, shaded: what stays in it is nothing to speak of.
    """

    quantity: str
    label: str = ""
    at: Mapping[str, Value] | None = None
    mean: str = ""
    relative: bool = False
    band: tuple[Value, ...] = ()
    dots: tuple[str, ...] = ()
    power: bool = False
    look: Look = "line"

    def __post_init__(self) -> None:
        _choice("Line", "look", self.look, get_args(Look))


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a chart, or one for each layer, class or order where there are several.

    ``form`` says what is drawn: ``lines`` of rows over ``over`` (``depth``, or a coordinate), ``dots`` of rows, a line
    of the picture per value of the coordinate ``over``; or, of the arrays whose names begin with ``arrays``, ``curves``
    ``NAME/QUANTITY/p=1/…`` ``[clouds, points]`` over depth, a ``scatter`` of two arrays, ``matrices``, ``histograms``
    ``NAME/LAYER/GROUP/counts`` and ``…/edges``, ``diagrams`` or ``barcodes`` ``NAME/LAYER/H0``, pairs of ``measures``
    ``NAME/0/…``, ``images``. ``base`` is a quantity of the whole network, drawn as a dotted line. ``label`` goes on the
    axis below, ``powers`` draws powers of ten of what may be too large for a number.
    """

    title: str = ""
    lines: tuple[Line, ...] = ()
    form: Form = "lines"
    over: str = "depth"
    arrays: tuple[str, ...] = ()
    base: str = ""
    label: str = ""
    powers: bool = False

    def __post_init__(self) -> None:
        _choice("Panel", "form", self.form, get_args(Form))


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure as data: what ``lisse figure NAME`` draws, of any instrument, and a page with ``lead``.

    ``title`` and ``says`` stand above it. Of a coordinate in ``prefers`` one value is drawn, the first of these that
    there is. ``apart`` gives every model panels of its own, with a colour per line; otherwise a model is a colour.
    ``limits`` are those of the vertical axes, and ``beside`` is a quantity of the whole network, a share, that the
    legend writes where it is not 1.
    """

    name: str
    title: str
    says: str = ""
    panels: tuple[Panel, ...] = ()
    columns: int = 3
    prefers: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    apart: bool = False
    limits: tuple[float, ...] = ()
    beside: str = ""
    lead: bool = False


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
        return words_of(self.at)


@dataclass(frozen=True)
class Part:
    """What one instrument found: rows, what they mean, what was left out and why, and named arrays.

    ``notes`` are plain sentences for a person (a skipped layer and the reason, a solver that did not converge).
    ``arrays`` hold what is no table (diagrams, histograms, filmstrips), keyed by name; ``charts`` say how to draw all.
    A part of two networks names the one that this is ``beside``; ``finding`` is what it comes down to, in one sentence
    for the first lines of a page. A part that is not ``complete`` lacks what failed and may succeed another time: no
    cache keeps it.
    """

    instrument: str
    rows: tuple[Row, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    notes: tuple[str, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()
    beside: str = field(default="", kw_only=True)
    finding: str = field(default="", kw_only=True)
    complete: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for key in ("rows", "quantities", "notes", "charts"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        described = {quantity.name for quantity in self.quantities}
        for row in self.rows:
            if row.quantity not in described:
                raise ValueError(
                    f"Part: every row's quantity must be described, got {row.quantity!r}; "
                    f"described: {sorted(described)}."
                )

    def __eq__(self, other: object) -> bool:
        """Field by field; arrays number by number, where NaN equals NaN."""
        if not isinstance(other, Part):
            return NotImplemented
        names = [item.name for item in dataclasses.fields(self) if item.compare and item.name != "arrays"]
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            and self.arrays.keys() == other.arrays.keys()
            and all(_equal_arrays(array, other.arrays[name]) for name, array in self.arrays.items())
        )

    __hash__ = None  # type: ignore[assignment]  # arrays may change

    def __repr__(self) -> str:
        return f"Part({_short(self)})"

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
    def last_block(self) -> str | None:
        """The layer at which headlines stand (:func:`last_block`), where the provenance tells layers by their role."""
        layers = self.provenance.get("layers")
        return last_block({layer["name"]: layer["role"] for layer in layers}) if layers else None

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes of all parts, in order."""
        return tuple(note for part in self.parts for note in part.notes)

    def about(self, key: str) -> Mapping[str, Any]:
        """What the provenance says under ``key`` (``model``, ``data``, ``training``…); empty where that is no table."""
        card = self.provenance.get(key)
        return card if isinstance(card, Mapping) else {}

    @property
    def name(self) -> str:
        """The model's name, as a legend would show it."""
        return str(self.about("model").get("name", "model"))

    def __getitem__(self, instrument: str) -> Part:
        for part in self.parts:
            if part.instrument == instrument:
                return part
        raise KeyError(f"Profile: no part {instrument!r}; it has {[part.instrument for part in self.parts]}.")

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def __repr__(self) -> str:
        data = self.about("data")
        on = f" on {data.get('name')}" if data else ""
        return f"Profile({self.name!r}{on}: {', '.join(map(_short, self.parts)) or 'no parts'})"

    # -- where a person looks at it: doors to what stands above, opened when they are used ----------------------------

    def _repr_html_(self) -> str:
        text: str = importlib.import_module("lisse.reporting.inline").profile_html(self)
        return text

    def plot(self, name: str = "overview", **where: Value) -> Any:
        """A matplotlib figure, which a notebook shows: a quantity over depth, a chart by name, or all quantities.

        ``where`` chooses coordinates: ``profile.plot("diagram_distance", dim=1)``.
        """
        return importlib.import_module("lisse.reporting").named_figure(self, name, where=where or None)

    def log(self, target: Any = None, *, step: int | None = None, layers: bool = False, figure: bool = False) -> int:
        """Send the headline numbers to TensorBoard, W&B or MLflow; see :func:`lisse.reporting.loggers.log_profile`."""
        log_profile = importlib.import_module("lisse.reporting.loggers").log_profile
        count: int = log_profile(self, target, step=step, layers=layers, figure=figure)
        return count

    def frame(self) -> pd.DataFrame:
        """Every row as a tidy table: one line per number, one column per coordinate of ``at``.

        A coordinate that has the name of another column (``layer``, ``n``…) becomes ``at.layer``, ``at.n``….
        """
        import pandas as pd

        columns = ["instrument", "quantity", "layer", "depth", "value", "low", "high", "kind", "n"]
        records = [
            {
                "instrument": part.instrument,
                **{key: _written(getattr(row, key)) for key in columns[1:]},
                **{f"at.{key}" if key in columns else key: _written(value) for key, value in row.at.items()},
            }
            for part in self.parts
            for row in part.rows
        ]
        coordinates = [key for key in dict.fromkeys(key for record in records for key in record) if key not in columns]
        return pd.DataFrame.from_records(records, columns=columns + coordinates)

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
        order = {layer: index for index, layer in enumerate(layers)}
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
            name = " ".join(filter(None, (row.quantity, words_of(across))))
            columns.setdefault(name, {})[words_of(down)] = row.value
        lines = list(dict.fromkeys(line for column in columns.values() for line in column))
        table = pd.DataFrame({name: [column.get(line) for line in lines] for name, column in columns.items()})
        table.index = pd.Index(lines, name="where" if lines else "layer")
        return table

    def compare(self, other: Profile) -> pd.DataFrame:
        """Rows that both profiles have, side by side, with ``apart`` where the two intervals do not overlap.

        Rows are matched by instrument, quantity, layer and coordinates: layers by their place along depth, whatever
        they are called, where both have as many blocks, and the last block always is the last block, as on a page;
        other layers by name. ``apart`` is ``None`` where a row has no
        interval and is not ``exact`` (without an interval nothing can be said about a population), or is NaN.
        """
        import pandas as pd

        partners = _partners(self, other)
        opposite = {
            (instrument, quantity, partners.get(layer, layer), at): row
            for (instrument, quantity, layer, at), row in other._keyed()
        }
        records = []
        for key, a in self._keyed():
            b = opposite.get(key)
            if b is None:
                continue
            records.append(
                {
                    "instrument": key[0],
                    "quantity": a.quantity,
                    "layer": a.layer if a.layer == b.layer else f"{a.layer} / {b.layer}",
                    "where": a.where(),
                    "a": a.value,
                    "b": b.value,
                    "difference": b.value - a.value,
                    "apart": _apart(a, b),
                }
            )
        columns = ["instrument", "quantity", "layer", "where", "a", "b", "difference", "apart"]
        written = [{key: _written(value) for key, value in record.items()} for record in records]
        frame = pd.DataFrame.from_records(written, columns=columns)
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


def _short(part: Part) -> str:
    count = len(part.rows)
    notes = f" and {len(part.notes)} note{'s' * (len(part.notes) > 1)}" if part.notes else ""
    return f"{part.instrument} with {count:,} row{'s' * (count != 1)}{notes}"


def _partners(first: Profile, second: Profile) -> dict[str | None, str]:
    """The layer of ``first`` in whose place a block of ``second`` stands, by the latter's name; empty where that name
    is of a place that another one has."""
    roles = [
        {layer["name"]: layer["role"] for layer in profile.provenance.get("layers", ())} for profile in (first, second)
    ]
    ends = [last_block(layers) for layers in roles]
    blocks = [[name for name, role in layers.items() if role == "block"] for layers in roles]
    pairs = list(zip(*blocks, strict=True)) if len(blocks[0]) == len(blocks[1]) else []
    if not pairs and None not in ends and roles[0][ends[0]] == roles[1][ends[1]] == "block":
        pairs = [(ends[0], ends[1])]
    names = {second_name: name for name, second_name in pairs}
    return dict.fromkeys(names.values(), "") | names


def last_block(roles: Mapping[str, str]) -> str | None:
    """Of layers in order of depth, with their roles, the one at which headlines stand: the last block, never the head.

    Where no block was read, the last layer that a person chose by name; ``None`` where there is neither.
    """
    for role in ("block", "chosen"):
        layers = [layer for layer, value in roles.items() if value == role]
        if layers:
            return layers[-1]
    return None


def _equal_arrays(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def options_of(instrument: Any) -> dict[str, Any]:
    """A dataclass instance's fields as plain JSON values, for provenance and for the cache's key."""
    return {
        item.name: _plain(getattr(instrument, item.name)) for item in dataclasses.fields(instrument) if item.compare
    }


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


def order_of(profile: Profile) -> Mapping[str, Any]:
    """In which order a profile's samples were taken; those of before orders were drawn took them as they were given."""
    return profile.about("order") or {"by": "given"}


def version_of(profile: Profile) -> str:
    """The lisse that made a profile, with a hash of its code where it is known: development versions share a number."""
    lisse, code = (profile.about("versions").get(key) for key in ("lisse", "code"))
    return f"{lisse or '?'} ({code})" if code else str(lisse or "?")


def tokenizers_apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, str] | None:
    """The names of two profiles' tokenizers, by their ``provenance["data"]``, where they make other tokens of one text.

    ``None`` where tokens are the same, where there are none, and where the data differ altogether.
    """
    first, second = (value if isinstance(value := data.get("tokenizer"), Mapping) else {} for data in (a, b))
    if a.get("fingerprint") != b.get("fingerprint") or first.get("fingerprint") == second.get("fingerprint"):
        return None
    return str(first.get("name", "?")), str(second.get("name", "?"))


def words_of(at: Mapping[str, Value]) -> str:
    """Coordinates in one short string."""
    return " ".join(f"{key}={coordinate_text(value)}" for key, value in at.items())


def coordinate_text(value: Value) -> str:
    """A coordinate's value, as names of arrays, figures and the command line write it: 3 for 3.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choice(where: str, argument: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{where}: {argument} must be one of {', '.join(allowed)}, got {value!r}.")


def _written(value: Any) -> Any:
    """A value as pandas holds it: its words are UTF-8, which a name from a file need not be."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
