"""Rows of an atlas: what of a profile is worth a line, keyed by all that its numbers depend on; and their file."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from lisse.data.bounded import read_all
from lisse.profile import Part, Profile, Quantity, Row, version_of
from lisse.profile_file import number_to_json, writing
from lisse.profile_file.container import MAX_JSON, excerpt, saying
from lisse.profile_file.document import free_from_json, free_to_json
from lisse.reporting.page.headline import Heading, headline_rows, profile_headings
from lisse.run.fingerprint import digest_of

#: What the headlines of an atlas mean, by label.
Words = Mapping[str, Mapping[str, str]]

FORMAT = "lisse atlas"
ATLAS_VERSION = 1


@dataclass(frozen=True)
class AtlasRow:
    """A network that was measured, or failed: a ``reason``, and no numbers.

    ``key`` is a hash of weights, data, instruments with their options, and versions; rows of one ``setting`` (all of
    that but the weights) can be compared. ``numbers`` are the headlines, by label: value, low, high, n, kind. ``unit``
    is what a sweep was asked for, from which the network can be made again; ``file`` the profile, where it is at hand.
    """

    key: str
    name: str
    family: str
    data: str
    setting: str = ""
    error: tuple[float, float, float, int] | None = None
    numbers: Mapping[str, tuple[float, float | None, float | None, int, str]] = field(default_factory=dict)
    weights: str = ""
    data_hash: str = ""
    version: str = ""
    date: str = ""
    seed: int = 0
    samples: int = 0
    parameters: int | None = None
    spec: str | None = None
    unit: Mapping[str, Any] | None = None
    reason: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        """Refuse what no page can show: rows come out of files that anybody may have written."""
        for name, hint in _hints().items():
            if not _fits(hint, value := getattr(self, name)):
                raise ValueError(f"AtlasRow: {name} must be {hint}, got {excerpt(value)}.")
        if not re.fullmatch("[0-9A-Za-z]{1,64}", self.key):  # a page is called by it
            raise ValueError(f"AtlasRow: key must be letters and digits, got {excerpt(self.key)}.")
        if self.unit is not None and not isinstance(self.unit.get("training") or {}, Mapping):
            raise ValueError(f"AtlasRow: unit must have a table as training, got {excerpt(self.unit['training'])}.")

    @property
    def group(self) -> str:
        """The same for networks that differ by their seeds alone."""
        if self.unit is None:
            return self.key
        training = self.unit.get("training")
        less = None if training is None else {key: value for key, value in training.items() if key != "seed"}
        return digest_of({**self.unit, "seed": 0, "training": less})


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(AtlasRow)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is what an annotation says, and whatever is inside it."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return any(_fits(kind, value) for kind in inside)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(inside) and all(map(_fits, inside, value))
    if origin is Mapping:
        key, item = inside
        return isinstance(value, Mapping) and all(_fits(key, k) and _fits(item, v) for k, v in value.items())
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return hint is Any or isinstance(value, hint) or (hint is float and _fits(int, value))


def atlas_row(profile: Profile, file: str = "") -> AtlasRow:
    """The row of a profile, whoever made it."""
    about = profile.provenance
    model, data, sweep = (profile.about(key) for key in ("model", "data", "sweep"))
    version = measured_by(profile)
    weights = str(model.get("weights") or model.get("fingerprint") or "")
    options = [(part.instrument, part.options) for part in profile.parts]
    settings = [about.get(key) for key in ("statistics", "readout", "batch")]
    origin = [data.get("fingerprint"), data.get("samples"), options, settings, version]
    score = profile.about("score")
    numbers = {label: (row.value, row.low, row.high, row.n, row.kind) for label, row in headline_rows(profile).items()}
    error = tuple(score.get(key) for key in ("error", "low", "high", "n"))
    complete = all(isinstance(value, (int, float)) for value in error)
    return AtlasRow(
        key=digest_of(weights, about.get("seed"), origin)[:16],
        name=profile.name,
        family=str(sweep.get("family") or profile.name),
        data=str(data.get("name", "?")),
        setting=digest_of(origin)[:8],
        error=error if complete else None,  # type: ignore[arg-type]
        numbers=numbers,
        weights=weights,
        data_hash=str(data.get("fingerprint", "")),
        version=version,
        date=str(about.get("date", ""))[:10],
        seed=int(about.get("seed", 0) or 0),
        samples=int(data.get("samples", 0) or 0),
        parameters=model.get("parameters"),
        spec=model.get("spec"),
        unit=sweep.get("unit"),
        file=file,
    )


def measured_by(profile: Profile) -> str:
    """The versions of lisse and of torch that made a profile."""
    return f"{version_of(profile)}, torch {profile.about('versions').get('torch', '?')}"


def headline_words(profiles: Iterable[Profile]) -> dict[str, dict[str, str]]:
    """What every headline means, by label: its sentence, which way is better, its scale, the outcome that it is."""
    return {heading.label: _meaning(heading) for profile in profiles for heading in profile_headings(profile)}


def _meaning(heading: Heading) -> dict[str, str]:
    quantity, headline = heading.quantity, heading.headline
    words: dict[str, str] = {"says": quantity.says, "better": quantity.better, "scale": quantity.scale}
    words |= {"outcome": headline.outcome} if headline.outcome else {}
    return words | ({"over": "error"} if headline.over_error else {})


def row_profile(row: AtlasRow, words: Words) -> Profile:
    """The headlines of a row as a profile of one part, to be compared with that of another row."""
    described = [words.get(label, {}) for label in row.numbers]
    quantities = [
        Quantity(label, label, about.get("says", ""), better=about.get("better", "neither"), headline=label)  # type: ignore[arg-type]
        for label, about in zip(row.numbers, described, strict=True)
    ]
    rows = [
        Row(label, value, kind, n, low=low, high=high)  # type: ignore[arg-type]
        for label, (value, low, high, n, kind) in row.numbers.items()
    ]
    about = {
        "model": {"name": row.name},
        "data": {"name": row.data, "fingerprint": row.data_hash},
        "seed": row.seed,
        "order": {"by": "of the atlas"},
        "setting": row.setting,
        "version": row.version,
    }
    return Profile((Part("headlines", tuple(rows), tuple(quantities)),), about)


def atlas_rows(sources: Sequence[str | Path]) -> tuple[list[AtlasRow], dict[str, dict[str, str]], list[str]]:
    """The rows of profiles, folders of them (with the failures of sweeps) and atlases; words on numbers; complaints."""
    rows: dict[str, AtlasRow] = {}
    words: dict[str, dict[str, str]] = {}
    complaints: list[str] = []
    for source in map(Path, sources):
        files = (
            sorted(source.rglob("*.profile")) + sorted(source.rglob("failures/*.json")) if source.is_dir() else [source]
        )
        for path in files:
            try:
                if path.suffix == ".profile":
                    profile = Profile.load(path)
                    with saying("atlas", f"sources must hold sound profiles, got {path}"):
                        row = atlas_row(profile, str(path))
                        words |= headline_words([profile])
                    rows[row.key] = row
                elif path.parent.name == "failures":
                    with saying("atlas", f"sources must hold sound reports of failures, got {path}"):
                        rows[path.stem] = _failure(path)
                else:
                    more, meanings = load_atlas(path)
                    rows |= {row.key: row for row in more if row.key not in rows}
                    words |= meanings
            except (ValueError, OSError) as error:
                if path is source and isinstance(error, FileNotFoundError):
                    raise
                complaints.append(str(error))
    return list(rows.values()), words, complaints


def save_atlas(rows: Iterable[AtlasRow], words: Mapping[str, Any], path: str | Path) -> Path:
    """Write rows as JSON, a line each; what units have in common stands once. Written atomically."""
    shared: list[str] = []
    lines = []
    for row in rows:
        record = {key: value for key, value in dataclasses.asdict(row).items() if value not in ("", None, {}, ())}
        record.pop("file", None)
        if row.unit is not None:
            common = json.dumps(row.unit["instruments"])
            if common not in shared:
                shared.append(common)
            record["unit"] = {**row.unit, "instruments": shared.index(common)}
        record["numbers"] = {
            label: [_rounded(value) if isinstance(value, float) else value for value in number]
            for label, number in row.numbers.items()
        }
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    head = {
        "format": FORMAT,
        "version": ATLAS_VERSION,
        "words": words,
        "instruments": [free_to_json(json.loads(text), "instruments") for text in shared],
    }
    text = json.dumps(head, ensure_ascii=False, allow_nan=False)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"
    with writing(Path(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return Path(path)


def load_atlas(path: str | Path) -> tuple[list[AtlasRow], dict[str, dict[str, str]]]:
    """Read what :func:`save_atlas` wrote; a ``ValueError`` names a file that is none."""
    content = read_all("load_atlas", Path(path), most=MAX_JSON)
    with saying("load_atlas", f"path must be an atlas that lisse wrote, got {path}"):
        document = json.loads(content)
        if document["format"] != FORMAT or document["version"] > ATLAS_VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']}")
        fields = {item.name for item in dataclasses.fields(AtlasRow)} - {"file"}  # where it is here, no file knows
        shared = free_from_json(document["instruments"], "instruments")
        rows = []
        for record in document["rows"]:
            unit = record.get("unit")
            if unit is not None:
                record["unit"] = {**unit, "instruments": shared[unit["instruments"]]}
            record["numbers"] = {
                str(label): tuple(float(value) if index < 3 and value is not None else value
                                  for index, value in enumerate(number))
                for label, number in record.get("numbers", {}).items()
            }  # fmt: skip
            record["error"] = tuple(record["error"]) if record.get("error") else None
            rows.append(AtlasRow(**{key: value for key, value in record.items() if key in fields}))
        words: dict[str, dict[str, str]] = document["words"]
        if not _fits(Words, words):
            raise ValueError("its words are none")
        return rows, words


def _failure(path: Path) -> AtlasRow:
    document = json.loads(read_all("atlas", path, most=MAX_JSON))
    unit = document["unit"]
    return AtlasRow(
        key=path.stem, name=document["name"], family=unit["family"], data=unit["data"], seed=unit["seed"], unit=unit,
        reason=document["reason"], spec=unit["model"],
    )  # fmt: skip


def _rounded(value: float) -> float | str:
    """Nine digits: more than any interval has, and enough to see that a number came out the same."""
    return float(f"{value:.9g}") if math.isfinite(value) else number_to_json(value)
