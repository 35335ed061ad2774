"""What the page says of networks that differ in nothing, or in what a reader may take for something else.

The cases by which the page's verdict was first found wanting, each measured again beside what the page said then and
what is true. Small networks made here for functions that are the same, and Transformers with tokenizers fitted here; in
the folder `LISSE_DATA` MNIST, CIFAR-10, and in `checkpoints` the published ResNets (`resnet20-….th` to `resnet56-….th`
of akamaster/pytorch_resnet_cifar10). A case whose data are missing says so.

    LISSE_DATA=FOLDER python benchmarks/verdict_cases.py [--write] [GROUP …]

A group is one of the functions below; without one all of them, about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from timing import publish
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Isometry, Robustness, Sensitivity, Stability, Topology
from lisse.networks.attack import attack
from lisse.profile import Profile
from lisse.reporting.page.headline import headline_rows

Function = Callable[[torch.Tensor], torch.Tensor]


class Case(NamedTuple):
    """A row of the table."""

    done: str
    before: str
    truth: str
    now: str


SAME = "nothing differs"
SMALL = (
    Topology(samples=16, clouds=12, dims=(0,), p=(1,)),
    Isometry(samples=60, clouds=3, points=0, holes=False),
    Sensitivity(samples=60, points=4, draws=60, max_iter=8, margins=200),
    Stability(samples=200),
    Robustness(samples=150, corruptions=("gaussian_noise",), severities=(3,), attacks=("fgsm",), eps=(0.1,), sigma=(),
               delta=(), distances=60, clean=None),
)  # fmt: skip


def blobs(n: int = 240) -> Dataset:
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(10, (n,), generator=generator)
    centres = torch.rand(10, 1, 8, 8, generator=generator)
    return Dataset("blobs", (centres[labels] + 0.2 * torch.rand(n, 1, 8, 8, generator=generator)).clamp(0, 1), labels)


def fitted(model: nn.Module, data: Dataset, *, epochs: int = 30, epsilon: float = 0.0, noise: float = 0.0) -> nn.Module:
    """Adam on all of the data; with ``epsilon``, on what five steps of PGD make of it, with ``noise``, under noise."""
    inputs = data.inputs.float() / 255 if data.inputs.dtype == torch.uint8 else data.inputs
    generator, adam = torch.Generator().manual_seed(0), torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs):
        reach = epsilon * min(1.0, (epoch + 1) / (epochs / 2))
        for rows in torch.randperm(len(inputs), generator=generator).split(100):
            x, y = inputs[rows], data.targets[rows]
            if noise:
                x = (x + noise * torch.randn(x.shape, generator=generator)).clamp(0, 1)
            if reach:
                x = attack(
                    model, x, y, method="pgd", norm="linf", eps=reach, steps=5, loss="cross-entropy", keep="last"
                )
            adam.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            adam.step()
    return model.eval()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Encoder(nn.Module):
    """A stem, blocks, and a head or none: the shape of a Transformer's."""

    def __init__(self, head: bool = True) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 24)
        self.blocks = nn.ModuleList(Block(24) for _ in range(5))
        self.head = nn.Linear(24, 10) if head else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def said(first: Profile, second: Profile) -> str:
    lines = [sentence.text for sentence in lisse.verdict([first, second]) if sentence.topic == "overall"]
    return " ".join(lines)


def measured(model: nn.Module, name: str, data: Dataset, **options: object) -> Profile:
    return lisse.measure(model, data, SMALL, name=name, **options)


def another(profile: Profile) -> Profile:
    """The profile as of another network, else the page says that it is the same one and compares nothing."""
    return Profile(
        profile.parts, {**profile.provenance, "model": {**profile.provenance["model"], "fingerprint": "another"}}
    )


def number(profile: Profile, label: str) -> str:
    row = headline_rows(profile)[label]
    return f"{row.value:.3g}" + ("" if row.low is None else f" [{row.low:.3g}, {row.high:.3g}]")


def perceptron(data: Dataset) -> nn.Module:
    """Three hidden layers of 32 units, fitted."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    return fitted(nn.Sequential(*layers, nn.Linear(32, 10)), data)


def same_functions() -> Iterator[Case]:
    data = blobs()
    plain = perceptron(data)
    base = measured(plain, "plain", data)
    rescaled, half = copy.deepcopy(plain), copy.deepcopy(plain)
    with torch.no_grad():
        for parameter in rescaled[3].parameters():
            parameter *= 30
        rescaled[5].weight /= 30
        for parameter in half[7].parameters():
            parameter *= 0.5
    yield Case(
        "ReLU MLP, one layer × 30, the next ÷ 30: the same function",
        "TopoLip 1.85 → 111: plain is smoother",
        SAME,
        said(base, measured(rescaled, "rescaled", data)),
    )
    yield Case(
        "logits × 0.5: every decision the same",
        "half is smoother than plain by stretch (48.8 → 24.4)",
        SAME,
        said(base, measured(half, "half", data)),
    )
    torch.manual_seed(1)
    whole = fitted(Encoder(), data)
    bare = copy.deepcopy(whole)
    bare.head = None
    everything = measured(whole, "with head", data)
    yield Case(
        "one encoder with and without its head (BERT then; here five residual blocks, trained on blobs)",
        "the one without is smoother by TopoLip, distortion and stretch",
        "all shared blocks agree digit by digit",
        said(everything, measured(bare, "without head", data)),
    )
    names = [layer["name"] for layer in everything.provenance["layers"] if layer["role"] == "block"]
    few = another(measured(whole, "second", data, layers=["input", *names[::2]]))
    yield Case("the same encoder read at every second block", "", SAME, said(everything, few))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fresh = lisse.load_model("zoo:resnet20?in_channels=1&size=8")
        notes = lisse.measure(fresh, data, Stability(samples=60)).notes
    yield Case(
        "ResNet-20, random weights, running statistics of batch norms that never saw data",
        "R from 0.36 to 1.90, no note",
        "meaningless",
        next(note for note in notes if "never seen data" in note),
    )


class Written(nn.Module):
    """A network, with something done to what enters it and to what leaves it, by no module."""

    def __init__(self, network: nn.Module, *, before: Function = lambda x: x, after: Function = lambda x: x) -> None:
        super().__init__()
        self.network, self.before, self.after = copy.deepcopy(network), before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.network(self.before(x)))


class Functional(nn.Module):
    """The matrices of a network, with `torch.relu` between them in place of modules."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.matrices = nn.ModuleList(module for module in copy.deepcopy(network) if isinstance(module, nn.Linear))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for matrix in self.matrices[:-1]:
            x = torch.relu(matrix(x))
        return self.matrices[-1](x)


def written_otherwise() -> Iterator[Case]:
    """One function written in two ways, and data that cannot tell networks apart; none of these was in the issue."""
    data = blobs()
    plain = perceptron(data)
    base = measured(plain, "plain", data)

    def beside(done: str, before: str, network: nn.Module, first: Profile = base) -> Case:
        return Case(done, before, SAME, said(first, measured(network.eval(), "other", data)))

    gentler = "plain is gentler to the shape of its data than other"
    harder = f"other is harder to move across a boundary (judged by its gradient) than plain; {gentler}"
    yield beside("`return net(x) / 2`", gentler, Written(plain, after=lambda x: x / 2))
    yield beside("`return F.log_softmax(net(x), 1)`", gentler, Written(plain, after=lambda x: x.log_softmax(1)))
    yield beside("`return net(x).softmax(1)`", harder, Written(plain, after=lambda x: x.softmax(1)))
    half = Written(copy.deepcopy(plain).bfloat16(), before=lambda x: x.bfloat16(), after=lambda x: x.float())
    yield beside("weights and activations in bfloat16", gentler, half)
    yield beside("weights rounded to bfloat16", "no difference", copy.deepcopy(plain).bfloat16().float())
    yield beside(
        "`torch.relu` in place of `nn.ReLU`", "chance explains the difference in shape, R_f, …", Functional(plain)
    )
    channels, folded = copy.deepcopy(plain), copy.deepcopy(plain)
    with torch.no_grad():
        factors = torch.logspace(-1, 1, 32)
        channels[5].weight *= factors[:, None]
        channels[5].bias *= factors
        channels[7].weight /= factors
        folded[1].bias += folded[1].weight.sum(1) * 0.5
        folded[1].weight *= 0.25
    yield beside(
        "one constant per channel of the last hidden layer", "chance explains the difference in shape, R_f, …", channels
    )
    outside = measured(Written(folded, before=lambda x: (x - 0.5) / 0.25), "plain", data)
    yield Case("a normalisation folded into the first layer", "no difference", SAME, said(base, outside))
    torch.manual_seed(2)
    parts = [[nn.Conv2d(a, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()] for a in (1, 8, 8)]
    end = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)]
    normed = fitted(nn.Sequential(*itertools.chain(*parts), *end), data, epochs=10)
    fused = [
        part
        for conv, norm, relu in zip(normed[:9:3], normed[1:9:3], normed[2:9:3], strict=True)
        for part in (torch.nn.utils.fuse_conv_bn_eval(conv, norm), relu)
    ]
    both = measured(normed, "plain", data), nn.Sequential(*fused, *copy.deepcopy(list(normed[9:])))
    yield beside("batch norms folded into their convolutions", "no difference", both[1], both[0])
    torch.manual_seed(1)
    residual = fitted(Encoder(), data)
    longer = copy.deepcopy(residual)
    longer.blocks.append(Block(24))
    for parameter in longer.blocks[-1].second.parameters():
        nn.init.zeros_(parameter)
    yield beside("a residual block that adds 0 behind the last one", "no difference", longer,
                 measured(residual, "plain", data))  # fmt: skip
    yield beside("the same network inside another module", "no difference", Written(plain))
    torch.manual_seed(4)
    second = fitted(nn.Sequential(*copy.deepcopy(plain[:-1]), nn.Linear(32, 10)), data)
    constant = copy.deepcopy(plain)
    constant[-1].bias.data[3] += 100
    one = dataclasses.replace(data, targets=torch.full((len(data),), 3))
    fourfold = Dataset("fourfold", torch.cat([data.inputs[:60]] * 4), torch.cat([data.targets[:60]] * 4))
    yield Case(
        "a network, and one that always answers class 3, on samples of class 3",
        "constant is more accurate and more robust to corruptions than plain",
        "it answers nothing else",
        said(*(measured(network, name, one) for name, network in (("plain", plain), ("constant", constant)))),
    )
    yield Case(
        "two networks on 60 samples, each of them four times in the data",
        "other is smoother than plain by relative stretch, harder to move across a boundary (judged by its gradient), "
        "more accurate, more robust to a screening gradient attack and more robust to corruptions",
        "there are 60",
        said(*(measured(network, name, fourfold) for name, network in (("plain", plain), ("other", second)))),
    )
    enclosed = [enclosing(activation) for activation in (torch.relu, torch.tanh)]
    yield Case(
        "two networks of equal weights and one class made by a function, which encloses another activation in each",
        "they are the same network, weight for weight",
        "they are two functions",
        said(*(measured(network, name, data) for name, network in zip(("relu", "tanh"), enclosed, strict=True))),
    )


def enclosing(activation: Function) -> nn.Module:
    """A network whose activation is no part of it, but of the function that made its class."""
    torch.manual_seed(3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(activation(self.second(activation(self.first(x.flatten(1))))))

    return Net().eval()


def published(depth: int) -> nn.Module:
    """A trained ResNet of `LISSE_DATA`."""
    folder = Path(os.environ.get("LISSE_DATA", "")) / "checkpoints"
    file = next(iter(sorted(folder.glob(f"resnet{depth}-*.th"))), None)
    if file is None:
        raise FileNotFoundError(f"checkpoints/resnet{depth}-….th")
    return lisse.load_model(f"zoo:resnet{depth}?weights={file}")


def published_resnets() -> Iterator[Case]:
    """Which layers are read, and what the input is: published networks on CIFAR-10."""
    data = lisse.load_data("cifar10", limit=500)
    shape = (Topology(samples=40, clouds=12, dims=(0, 1), p=(1,)),)
    networks = {f"ResNet-{depth}": published(depth) for depth in (20, 32, 44, 56)}
    whole, headless = [], []
    for name, network in networks.items():
        whole.append(lisse.measure(network, data, shape, name=name))
        names = [layer["name"] for layer in whole[-1].provenance["layers"]]
        headless.append(lisse.measure(network, data, shape, name=name, layers=names[:-1]))

    def numbers(profiles: Sequence[Profile], label: str) -> str:
        return "/".join(number(profile, label).split()[0] for profile in profiles)

    yield Case(
        "ResNet-20/32/44/56 with and without the logits as a layer (ten networks of the TopoLip experiment then)",
        "rank correlation of TopoLip with the drop of accuracy +0.36 or −0.49",
        "the head decides the claim",
        f"TopoLip, which judges nothing, is {numbers(whole, 'TopoLip')} or {numbers(headless, 'TopoLip')}; shape is "
        f"{numbers(whole, 'shape')} or {numbers(headless, 'shape')}. 20 and 56, both with the logits: "
        f"{said(whole[0], whole[-1])} Both without: {said(headless[0], headless[-1])} One network with and without: "
        f"{said(whole[0], another(headless[0]))}",
    )
    blocks = [layer["name"] for layer in whole[0].provenance["layers"] if layer["role"] == "block"]
    ends = {name: networks[name] for name in ("ResNet-20", "ResNet-56")}
    few = [lisse.measure(m, data, shape, name=n, layers=["input", blocks[0], blocks[2]]) for n, m in ends.items()]
    yield Case(
        "ResNet-20 and ResNet-56 read at all blocks, or at blocks 0 and 2",
        "TopoLip 16.9 or 1.3; ResNet-56 8.7, 17.7 or 5.7",
        "the set of layers decides TopoLip; the network is the same",
        f"TopoLip, which judges nothing, {numbers(whole[:1], 'TopoLip')} or {numbers(few[:1], 'TopoLip')}; ResNet-56 "
        f"{numbers(whole[-1:], 'TopoLip')} or {numbers(few[1:], 'TopoLip')}. ResNet-20 at all blocks and at two: "
        f"{said(whole[0], another(few[0]))} Both at two: {said(*few)}",
    )
    network, mean, std = bare_of(networks["ResNet-20"])
    normalised = Dataset("normalised", (data.inputs.float() / 255 - mean) / std, data.targets)
    inside = lisse.measure(network, normalised, shape, name="normalised input")
    rates = [next(r.value for r in p.parts[0].rows if r.quantity == "change_rate") for p in (whole[0], inside)]
    yield Case(
        "ResNet-20, raw [0, 1] pixels as layer 0, or the normalised ones that the network receives",
        "r₁ 0.46 or 5.72",
        "an undocumented choice; the function is the same",
        f"layer 0 is the image in [0, 1] (stated). r₁, which judges nothing, is {rates[0]:.3g} or {rates[1]:.3g}; "
        f"shape {number(whole[0], 'shape')} or {number(inside, 'shape')}. {said(whole[0], another(inside))}",
    )


def bare_of(model: nn.Module) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network of the zoo without its normalisation, and that normalisation."""
    return model.network, *(torch.as_tensor(side).reshape(1, -1, 1, 1) for side in (model.mean, model.std))


def demo() -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lisse", "demo", "--out", folder]
        subprocess.run(command, check=True, capture_output=True)
        profiles = [Profile.load(Path(folder) / f"{name}.profile") for name in ("plain", "deformed")]
    counts = [profile.provenance["score"] for profile in profiles]
    shares = " and ".join(f"{1 - score['error']:.1%} of {score['n']:,}" for score in counts)
    yield Case(
        "`make demo`",
        "“accuracy does not tell them apart” under 98.1 % and 87.1 % of 364",
        "samples are paired, and one page has one n",
        f"{shares}. {said(*profiles)}",
    )


SENTENCES = [
    f"the {size} {animal} {verb} {adverb} over the {place} {day} while {count} {colour} birds watch it from far away"
    for size in ("small", "tall", "old")
    for animal in ("fox", "horse", "cat")
    for verb, adverb in (("jumps", "quickly"), ("walks", "slowly"), ("runs", "barely"))
    for day in ("on sunday", "in the rain", "before noon")
    for place, count, colour in (("river", "two", "red"), ("wall", "nine", "white"), ("field", "six", "grey"))
]


def text_models() -> Iterator[Case]:
    """Two random encoders, each with a tokenizer fitted here, on one text file; one of them at two lengths."""
    import transformers
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    pieces, pairs = BertWordPieceTokenizer(), ByteLevelBPETokenizer()
    pieces.train_from_iterator(SENTENCES, vocab_size=120)
    pairs.train_from_iterator(SENTENCES, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizers = {
        "BERT": transformers.PreTrainedTokenizerFast(
            tokenizer_object=pieces._tokenizer,
            name_or_path="WordPiece",
            pad_token="[PAD]",
            cls_token="[CLS]",
            sep_token="[SEP]",
        ),
        "RoBERTa": transformers.PreTrainedTokenizerFast(
            tokenizer_object=pairs._tokenizer, name_or_path="BPE", pad_token="<pad>", cls_token="<s>", sep_token="</s>"
        ),
    }
    models = {
        "BERT": transformers.BertModel(transformers.BertConfig(vocab_size=300, **size)),
        "RoBERTa": transformers.RobertaModel(transformers.RobertaConfig(vocab_size=400, pad_token_id=1, **size)),
    }
    instruments = (SMALL[0], Isometry(samples=60, clouds=3, points=0, holes=False), SMALL[2])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sentences.txt"
        file.write_text("\n".join(SENTENCES))

        def profile_of(name: str, length: int) -> Profile:
            model = lisse.models.declare(
                copy.deepcopy(models[name]).eval(), kind="text", tokenizer=tokenizers[name], name=name
            )
            data = lisse.load_data(f"text:{file}?length={length}", tokenizer=tokenizers[name])
            return lisse.measure(model, data, instruments, name=f"{name}, {length}")

        short, long, other = profile_of("BERT", 8), profile_of("BERT", 64), profile_of("RoBERTa", 64)

    def said_of_tokens(*pair: Profile) -> str:
        notes = [sentence.text for sentence in lisse.verdict(list(pair)) if "tokenizers differ" in sentence.text]
        return " ".join([said(*pair), *notes])

    yield Case(
        "BERT and RoBERTa on one text file (here with random weights, tokenizers fitted to the texts)",
        "“measured on different data (sentences, sentences): they are not compared”",
        "the texts are the same, the tokenizers differ",
        said_of_tokens(long, other),
    )
    yield Case(
        "one BERT, `?length=8` or `?length=64`",
        "norm 32 or 6.9, silently another readout",
        "one network; with length 8 it reads the beginning of every text",
        said_of_tokens(short, long),
    )


def robust_pair(images: int = 2000, epochs: int = 20) -> Iterator[Case]:
    train, test = lisse.load_data("mnist", split="train", limit=images), lisse.load_data("mnist", limit=2000)
    models, profiles = {}, []
    recipes = {"plain": {}, "under attack": {"epsilon": 0.2}, "under noise": {"noise": 0.3}}
    for name, recipe in recipes.items():
        model = lisse.load_model("zoo:lenet?in_channels=1&size=28&mean=none&seed=0")
        models[name] = fitted(model, train, epochs=epochs, **recipe)
        profiles.append(measured(model, name, test))
    pair, noisy = profiles[:2], profiles[2]
    sentences = [s.text for s in lisse.verdict(pair) if s.topic == "comparison"]
    of = {label: next((t for t in sentences if t.startswith(label)), "") for label in ("R_f", "attack")}
    yield Case(
        f"a LeNet on MNIST trained adversarially beside its plain twin (by others then, no longer at hand; here "
        f"{images:,} images, PGD-5 up to ε = 0.2)",
        "a draw: clean is smoother by TopoLip and R_f, robust by distortion and stretch; mCE and accuracy open",
        "one is robust, the other is not",
        f"{said(*pair)} {of['attack']}",
    )
    yield Case(
        "two robust networks (then by others; here trained under noise, and under attack)",
        "“more accurate and more robust”, of the one that falls to 0 under PGD",
        "one withstands an attack, whatever its corruptions: “robust” has to say to what",
        said(noisy, pair[1]),
    )
    yield Case(
        "R_f of the robust twin",
        "5.07 against 1.82: “clean is smoother by R_f”",
        "the answer to deformations is equal, that to noise smaller",
        of["R_f"],
    )
    stretches = []
    for samples in (8, 64, 640):
        few = (dataclasses.replace(SMALL[2], samples=samples, clouds=1, points=2, draws=samples, margins=20),)
        both = [lisse.measure(models[name], test, few, name=name) for name in ("plain", "under attack")]
        values = " and ".join(number(profile, "relative stretch") for profile in both)
        stretches.append(f"{samples} samples, drawn at random: {values}. {said(*both)}")
    yield Case(
        "stretch of the two from 8 samples, or from many",
        "[6.6, 8.1] and [4.2, 5.6]: “robust is smoother by stretch”, from the first 8",
        "1,600 samples then gave 7.9 and 6.8, over the spread of the logits .265 and .274",
        " ".join(stretches),
    )


GROUPS = {
    group.__name__: group
    for group in (same_functions, written_otherwise, published_resnets, demo, text_models, robust_pair)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = [
        "| what was done | what the page said before | what is true | what the page says now |",
        "|---|---|---|---|",
    ]
    for name in given.groups or GROUPS:
        try:
            for case in GROUPS[name]():
                lines.append(f"| {' | '.join(' '.join(cell.split()) for cell in case)} |")
                print(lines[-1], flush=True)
        except (FileNotFoundError, ImportError) as error:
            lines.append(f"| {name.replace('_', ' ')} | | | not run: needs {error} |")
    publish("verdict-cases", "What the page says", "\n".join(lines), write=given.write and not given.groups)


if __name__ == "__main__":
    main()
