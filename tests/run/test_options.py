"""What an instrument declares of its options: checks, sizes, and the word that quick was."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from lisse import Instrument
from lisse.instruments import ALL
from lisse.run import level_option, option


@dataclass(frozen=True)
class Ruler(Instrument):
    """How long things are."""

    samples: int = option(500, "samples to look at", quick=60, usual=200, least=2)
    radii: tuple[float, ...] = option((0.5, 1.0), "how far", above=0, quick=(1.0,))
    side: int | None = option(None, "a side", least=1)
    unit: Literal["m", "inch"] | None = option("m", "of length")
    marks: tuple[Literal["fine", "coarse"], ...] = option(("fine",), "which marks")
    severity: int = option(3, "how much", choices=(1, 3, 5))
    level: float = level_option()

    QUANTITIES: ClassVar = ()

    def part(self, run):
        return self.part_of(())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 1}, "Ruler: samples must be a whole number of at least 2, got 1."),
        ({"samples": 2.5}, "Ruler: samples must be a whole number of at least 2, got 2.5."),
        ({"samples": True}, "Ruler: samples must be a whole number of at least 2, got True."),
        ({"samples": "many"}, "Ruler: samples must be a whole number of at least 2, got 'many'."),
        ({"radii": (1.0, 0.0)}, "Ruler: radii must be positive and finite, got (1.0, 0.0)."),
        ({"radii": (float("nan"),)}, "Ruler: radii must be positive and finite, got (nan,)."),
        ({"radii": (float("inf"),)}, "Ruler: radii must be positive and finite, got (inf,)."),
        ({"side": 0}, "Ruler: side must be a whole number of at least 1, got 0."),
        ({"unit": "yard"}, "Ruler: unit must be one of m, inch, got 'yard'."),
        ({"marks": ("fine", "odd")}, "Ruler: marks must be one of fine, coarse, got ('fine', 'odd')."),
        ({"severity": 2}, "Ruler: severity must be one of 1, 3, 5, got 2."),
        ({"level": 1.0}, "Ruler: level must lie in (0, 1), got 1.0."),
        ({"level": None}, None),
    ],
)
def test_an_option_outside_its_limits_is_named(options, message):
    if message is None:
        assert Ruler(**options).level is None  # None is the absence of an option, and has no limits
        return
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Ruler(**options)


def test_options_inside_their_limits_are_taken():
    ruler = Ruler(samples=2, radii=(3, 0.1), side=4, unit=None, marks=("coarse", "fine"), severity=5, level=0.5)
    assert (ruler.samples, ruler.radii, ruler.unit) == (2, (3, 0.1), None)


def test_sizes():
    assert (Ruler.sized("quick").samples, Ruler.sized("quick").radii) == (60, (1.0,))
    assert (Ruler.sized("usual").samples, Ruler.sized("usual").radii) == (200, (0.5, 1.0))
    assert Ruler.sized("full") == Ruler()
    assert Ruler.sized("quick", samples=7).samples == 7
    with pytest.raises(ValueError, match="size must be one of quick, usual, full, got 'huge'"):
        Ruler.sized("huge")


def test_quick_is_a_size_now():
    with pytest.warns(DeprecationWarning, match=r"Ruler: quick=True is now Ruler\.sized\('quick'\)"):
        ruler = Ruler(samples=80, quick=True)
    assert (ruler.samples, ruler.radii, ruler.quick) == (80, (1.0,), False)


@pytest.mark.parametrize("kind", ALL)
def test_every_instrument_has_every_size_and_help(kind):
    for size in ("quick", "usual", "full"):
        assert kind.sized(size).seconds(0.01, 5, 100) > 0
    assert kind.sized("quick").seconds(0.01, 5, 10_000) < kind.sized("full").seconds(0.01, 5, 10_000)
    assert set(kind.LEFT_OUT) <= {"quick", "usual"}
