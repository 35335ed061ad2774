"""``lisse demo``: train a small network twice on drawn figures, measure both, and write the page that compares them."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch import nn

    from lisse.data import Dataset
    from lisse.profile import Profile
    from lisse.progress import Bar, Event
    from lisse.run import Instrument


TRAINED_ON = 300  # images, so few that deformed copies of them matter
CHOSEN = (
    "This setting was chosen among about a dozen that were tried, so it shows that such a case exists, not that it is "
    "typical: in others R_f rose with training, or went either way."
)


@click.command()
@click.option("--out", default="lisse-demo", type=click.Path(file_okay=False), help="Folder.  [default: lisse-demo]")
@click.option("--epochs", default=40, type=click.IntRange(min=1), help="Rounds of training.  [default: 40]")
@click.option("--seed", default=0, type=int, help="Of everything random.  [default: 0]")
def command(out: str, epochs: int, seed: int) -> None:
    """Train one small network twice on drawn figures and write the page that compares the two: a first look.

    Once on the images as they are, once on copies that are smoothly deformed anew in every round. Writes report.html,
    plain.profile and deformed.profile into the folder and, where matplotlib is installed, figure.png.
    """
    import lisse
    from lisse.cli.report import print_verdict
    from lisse.networks.augment import MaxEntropyDiffeo
    from lisse.networks.zoo import seeded
    from lisse.progress import Bar
    from lisse.reporting.page.sentence import Sentence

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    train, test = lisse.load_data(f"shapes?n={TRAINED_ON}", split="train"), lisse.load_data("shapes", split="test")
    profiles, lines = [], []
    with Bar(memory=True, keep=False) as bar:
        for name, change in (("plain", None), ("deformed", MaxEntropyDiffeo(cut=3, delta=3.0, p=1.0))):
            network = trained(train, change, epochs=epochs, seed=seed, bar=bar, task=f"train {name}")
            with seeded(seed):
                start = network_of(train)
            profile, reference = _profiles(name, network, start, test, seed, bar)
            profiles += [profile, reference]
            lines.append(_line(name, profile, reference))
            profile.save(folder / f"{name}.profile")
    count = sum(weight.numel() for weight in network.parameters())
    print(f"One network of {count:,} weights, trained on {len(train):,} drawn images: as they are, and deformed.")
    print("\n".join(lines) + "\n")
    sentences = [*lisse.verdict(profiles), Sentence(CHOSEN, (), "caveat", (0, 1))]
    title = "One network trained on drawn figures, plain and deformed"
    page = lisse.report(profiles, folder / "report.html", title=title, sentences=sentences)
    print_verdict(sentences)
    print(CHOSEN)
    print(f"\nProfiles {folder / 'plain.profile'}, {folder / 'deformed.profile'}")
    try:
        from lisse.reporting import overview_figure, save_figure
    except ImportError as error:
        print(f"Figure   left out: {error}")
    else:
        print(f"Figure   {save_figure(overview_figure(profiles[0]), folder / 'figure.png')}")
    print(f"Page     {page}   (open it in a browser)")
    print("Next     lisse report zoo:resnet20 zoo:resnet56 --data cifar10   (lisse data lists the data you have)")
    sys.stdout.flush()


def _line(name: str, profile: Profile, start: Profile) -> str:
    """How often a network is right, and what training did to its answer to deformations."""
    from lisse.reporting.page.headline import headline_rows

    score = profile.provenance["score"]
    line = f"{name}: {1 - score['error']:.1%} of {score['n']:,} new images right"
    before, after = (headline_rows(measured).get("R_f") for measured in (start, profile))
    if before is not None and after is not None:
        line += f"; R_f {before.value:.2f} with random weights, {after.value:.2f} trained"
    return f"{line}."


def network_of(data: Dataset) -> nn.Module:
    """Three convolutions with batch norm and two linear layers, the norms set from data: as a training starts."""
    import torch
    from torch import nn

    def convolution(before: int, after: int) -> nn.Sequential:
        layers = (nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(*layers)

    layers = {f"conv{index}": convolution(*widths) for index, widths in enumerate(((1, 12), (12, 24), (24, 48)), 1)}
    layers["hidden"] = nn.Sequential(nn.Flatten(), nn.Linear(48 * 9, 64), nn.ReLU())
    network = nn.Sequential(OrderedDict(layers, scores=nn.Linear(64, 10)))
    with torch.no_grad():
        for _ in range(20):
            network(data.inputs)
    return network.eval()


def trained(
    data: Dataset, change: Callable[[Any], Any] | None, *, epochs: int, seed: int, bar: Bar, task: str
) -> nn.Module:
    """The network trained with Adam, on images that ``change`` has changed; the same seed gives the same network."""
    import torch
    from torch import nn

    from lisse.networks.zoo import seeded
    from lisse.progress import Event

    with seeded(seed):
        network = network_of(data).train()
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        batch = next(iter(data.batches(len(data))))
        steps = epochs * -(-len(data) // 64)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
        for epoch in range(epochs):
            for order in torch.randperm(len(data)).split(64):
                images = batch.inputs[order]
                loss = nn.functional.cross_entropy(
                    network(images if change is None else change(images)),
                    batch.targets[order],  # type: ignore[index]
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            bar(Event(task, epoch + 1, epochs, "epochs"))
    return network.eval()


def _instruments() -> list[Instrument]:
    """What a first look shows."""
    from lisse.instruments import ALL, Isometry, Robustness, Sensitivity, Stability

    # Networks as small as these answer to all images at once.
    more: dict[Any, dict[str, Any]] = {
        Isometry: {"points": 8},
        Robustness: {"clean": None, "samples": 200, "distances": 200},
        Stability: {"samples": 1000},
    }
    return [kind.sized("quick", **more.get(kind, {})) for kind in ALL if kind is not Sensitivity and kind.SIDES == 1]


def _profiles(name: str, network: nn.Module, start: nn.Module, data: Dataset, seed: int, bar: Bar) -> list[Profile]:
    """A network as it is, and before its training."""
    import lisse

    def listen(event: Event) -> None:
        if not event.say:  # what does not fit is on the page
            bar(event)

    instruments = _instruments()
    options: dict[str, Any] = {"size": "full", "seed": seed, "progress": listen}
    (profile,) = lisse.survey({name: network}, data, instruments=instruments, **options)
    instruments = [instrument for instrument in instruments if instrument.AT_START]
    (start_profile,) = lisse.survey({f"{name} with random weights": start}, data, instruments=instruments, **options)
    reference = {"kind": "initialisation", "model": profile.provenance["model"]["fingerprint"]}
    provenance = {**start_profile.provenance, "reference": reference}
    return [profile, dataclasses.replace(start_profile, provenance=provenance)]
