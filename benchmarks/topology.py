"""Persistent homology and distances between diagrams, against GUDHI, ripser and giotto-ph, from the same points.

Bars of the issue: H0 + H1 of 1,000 points in R^50 no slower than the fastest engine; H0 of 10,000 points in R^512 at
least 15 times as fast as ripser; W1 and W2 of two H0 diagrams of 3,000 bars at least 50 times as fast as GUDHI, equal
to 1e-9; 20,000 bars in a second or so. Everything starts from points and ends with diagrams. GUDHI and lisse work in
float64, ripser and giotto-ph in float32 (giotto-ph is given float64 distances and rounds them itself).
"""

from __future__ import annotations

import math
import sys
import time

import gudhi.wasserstein
import numpy as np
import ripser
import torch
from gph import ripser_parallel
from gudhi.sklearn.rips_persistence import RipsPersistence
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import euclidean_distances
from threadpoolctl import threadpool_limits
from timing import RESULTS, arguments, clock, publish, race, table

from lisse.maths.homology import diagram_distance, distance_matrix, persistence

RIPS, TREE, DISTANCE = 1.0, 15.0, 50.0


def normal(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def once(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def fastest_other(timings) -> float:
    return min(timing.best for timing in timings[1:])


def rips(rounds: int, threads: int) -> tuple[str, float]:
    points = normal(1000, 50)

    def theirs():
        return RipsPersistence([0, 1], input_type="point cloud", num_collapses=0, homology_coeff_field=2).fit_transform(
            [points]
        )[0]

    ours, bars = persistence(points), theirs()[1]
    bars = bars[np.lexsort((bars[:, 1], bars[:, 0]))]
    assert ours[1].shape == bars.shape
    error = float(np.abs(ours[1].numpy() / bars - 1).max())
    assert error < 1e-9, "the two do not compute the same"
    timings = race(
        {
            "lisse, float64": lambda: persistence(points),
            "GUDHI RipsPersistence, float64": theirs,
            "ripser, float32": lambda: ripser.ripser(points, maxdim=1),
            f"giotto-ph, float32, {threads} threads": lambda: ripser_parallel(points, maxdim=1, n_threads=threads),
        },
        rounds=rounds,
    )
    ratio = fastest_other(timings) / timings[0].best
    text = f"## H0 + H1 of 1,000 points in R^50, {len(bars)} bars of H1\n\n{table(timings)}\n\n"
    text += f"{ratio:.2f}× the fastest other (bar: {RIPS:g}×); H1 equal to GUDHI's to {error:.1e}.\n"
    return text, ratio


def tree(threads: int, *, n: int = 10000) -> tuple[str, float]:
    points = normal(n, 512).astype(np.float32)
    ours = persistence(points, dims=(0,))[0][:, 1].numpy()
    timings = race({"lisse, float64": lambda: persistence(points, dims=(0,))}, rounds=3, warmup=0)
    kept: list[np.ndarray] = []
    seconds = once(lambda: kept.append(ripser.ripser(points, maxdim=0)["dgms"][0][:-1, 1]))
    error = float(np.abs(ours / np.sort(kept[0]) - 1).max())
    assert error < 1e-4, "the two do not compute the same"
    half = torch.from_numpy(points[: n // 2].astype(np.float64))
    # One triangle of the products is a half of the square: a quarter of the cloud's square is timed twice.
    floor = 2 * race({"product": lambda: half @ half.T}, rounds=2)[0].best
    ratio = seconds / timings[0].best
    text = f"## H0 of {n:,} points in R^512, {threads} threads\n\n{table(timings, ratio=False)}\n\n"
    text += f"ripser, maxdim=0 (once): {clock(seconds)}, {ratio:.1f}× (bar: {TREE:g}×); equal to {error:.1e}, its "
    text += f"float32. Floor, one triangle of the products (n² d = {n * n * 512 / 1e9:.0f} GFLOP): {clock(floor)}.\n"
    return text, ratio


def distances(rounds: int) -> tuple[str, float]:
    lines = ["| bars | scales | p | lisse | GUDHI | ratio |", "|---|---|---|---|---|---|"]
    worst = math.inf
    rng = np.random.default_rng(0)
    for n, scale in ((3000, 1.0), (3000, 1.5), (20000, 1.0), (20000, 1.5)):
        pair = [np.stack([np.zeros(n), rng.gamma(20, 0.3 * s, n)], 1) for s in (1.0, scale)]
        for p in (1.0, 2.0):
            mine = race({"": lambda: diagram_distance(*pair, dim=0, p=p)}, rounds=rounds)[0].best  # noqa: B023
            row = f"| {n:,} | 1, {scale:g} | {p:g} | {clock(mine)} |"
            if n <= 3000:
                kept: list[float] = []
                theirs = once(
                    lambda: kept.append(gudhi.wasserstein.wasserstein_distance(*pair, order=p, internal_p=math.inf))  # noqa: B023
                )
                assert math.isclose(kept[0], diagram_distance(*pair, dim=0, p=p), rel_tol=1e-9), "not equal"
                worst = min(worst, theirs / mine)
                row += f" {clock(theirs)} | {theirs / mine:.0f} |"
            else:
                row += " | |"
            lines.append(row)
    text = "## W_p of two H0 diagrams, ground ℓ∞, values equal to 1e-9\n\n" + "\n".join(lines)
    return text + f"\n\nWorst ratio {worst:.0f}× (bar: {DISTANCE:g}×). Memory: O(bars).\n", worst


def loops(rounds: int) -> str:
    pair = [persistence(normal(1000, 50, seed))[1].numpy() for seed in (0, 1)]
    parts = []
    for p in (1.0, 2.0):
        timings = race(
            {
                "lisse": lambda: diagram_distance(*pair, dim=1, p=p),  # noqa: B023
                "GUDHI": lambda: gudhi.wasserstein.wasserstein_distance(*pair, order=p, internal_p=math.inf),  # noqa: B023
            },
            rounds=rounds,
        )
        parts.append(f"W{p:g}:\n\n{table(timings)}\n")
    return f"## W_p of two H1 diagrams of {len(pair[0])} and {len(pair[1])} bars\n\n" + "\n".join(parts)


def metric(rounds: int) -> str:
    points = torch.from_numpy(normal(500, 65536).astype(np.float32))
    timings = race(
        {
            "lisse, centred float64 product": lambda: distance_matrix(points),
            "lisse, float32 product": lambda: distance_matrix(points, precision=torch.float32),
            "SciPy, direct differences": lambda: squareform(pdist(points.numpy())),
            "scikit-learn, float32": lambda: euclidean_distances(points.numpy()),
            "torch.cdist, direct differences": lambda: torch.cdist(
                points, points, compute_mode="donot_use_mm_for_euclid_dist"
            ),
        },
        rounds=min(rounds, 3),
    )
    return f"## Distances of 500 points in R^65536, given in float32\n\n{table(timings)}\n"


SIZES = (125, 250, 500, 1000, 2000)
WIDTHS = (8, 64, 512, 4096, 32768)


def growth(*, write: bool) -> str:
    """Against n in R^50 and against d with 500 points; with ``write`` also as a picture beside the table."""
    works = {
        "distances": distance_matrix,
        "H0": lambda points: persistence(points, dims=(0,)),
        "H0 + H1": persistence,
    }
    lines = ["| n | d | " + " | ".join(works) + " |", "|---|---|" + "---|" * len(works)]
    found: dict[tuple[int, int], list[float]] = {}
    for n, d in [*((n, 50) for n in SIZES), *((500, d) for d in WIDTHS)]:
        points = normal(n, d)
        found[n, d] = [race({"": lambda: work(points)}, rounds=3)[0].best for work in works.values()]  # noqa: B023
        lines.append(f"| {n} | {d} | " + " | ".join(clock(seconds) for seconds in found[n, d]) + " |")
    text = "## Growth with n and d, N(0, I) points\n\n" + "\n".join(lines) + "\n"
    if write:
        growth_picture(list(works), found)
        text += "\n![How the time grows with the number of points and with their dimension](topology-growth.svg)\n"
    return text


def growth_picture(names: list[str], found: dict[tuple[int, int], list[float]]) -> None:
    """Two panels on logarithmic axes, with the slopes of n², n³ and d for the eye."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    sweeps = (
        ("points n, in R^50", [(n, (n, 50)) for n in SIZES], ((2, "n²"), (3, "n³"))),
        ("dimension d, 500 points", [(d, (500, d)) for d in WIDTHS], ((1, "d"),)),
    )
    for ax, (label, places, slopes) in zip(panels, sweeps, strict=True):
        x = np.array([value for value, _ in places], dtype=float)
        for k, name in enumerate(names):
            ax.loglog(x, [found[place][k] for _, place in places], marker="o", ms=4, label=name)
        for power, name in slopes:
            last = found[places[-1][1]][-1 if power == 3 else 0]
            ax.loglog(x, last * (x / x[-1]) ** power, color="grey", lw=0.8, ls=":")
            ax.annotate(name, (x[-1], last), xytext=(4, 0), textcoords="offset points", color="grey", size=9)
        ax.set_xticks(x, [f"{value:g}" for value in x])
        ax.minorticks_off()
        ax.set_xlabel(label)
        ax.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[0].legend(frameon=False)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "topology-growth.svg", metadata={"Date": None})


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", nargs="*", default=["rips", "tree", "distances", "loops", "metric", "growth"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    threadpool_limits(options.threads)  # of NumPy's products, which PyTorch does not know of
    body, missed = [], []
    if "rips" in options.parts:
        text, ratio = rips(options.rounds, options.threads)
        body.append(text)
        missed += [f"H0 + H1: {ratio:.2f}× < {RIPS}×"] if ratio < RIPS else []
    if "tree" in options.parts:
        text, ratio = tree(options.threads)
        body.append(text)
        missed += [f"H0: {ratio:.1f}× < {TREE}×"] if ratio < TREE else []
    if "distances" in options.parts:
        text, ratio = distances(min(3, options.rounds))
        body.append(text)
        missed += [f"W_p: {ratio:.1f}× < {DISTANCE}×"] if ratio < DISTANCE else []
    if "loops" in options.parts:
        body.append(loops(min(3, options.rounds)))
    if "metric" in options.parts:
        body.append(metric(options.rounds))
    if "growth" in options.parts:
        body.append(growth(write=options.write))
    publish(
        "topology",
        "Persistent homology and distances between diagrams",
        "\n".join(body),
        write=options.write,
        packages=("gudhi", "ripser", "giotto-ph", "POT"),
    )
    if missed:
        sys.stderr.write("under the bar: " + "; ".join(missed) + "\n")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
