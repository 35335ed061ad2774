"""How to train, as frozen values: :class:`Recipe`, and the papers' recipes by name, each with its source.

A recipe says everything about the optimisation and nothing about the model, the data or the machine. Change one with
``dataclasses.replace(DIFFEOMORPHISMS, lr=0.05)``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from lisse.data.augmentation import CropFlip
from lisse.networks.attack import Adversary, Norm
from lisse.networks.augment import MaxEntropyDiffeo
from lisse.networks.augmix import AugMix
from lisse.training.penalty import penalty_of

Optimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "onecycle", "exponential"]
Opposition = Literal["none", "fgsm", "pgd", "trades"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """An optimisation: optimiser, rate and its schedule, batch, epochs, label smoothing, augmentation.

    ``lr`` is the peak rate of the schedule (:func:`~lisse.training.optimiser.rate_factor`). ``batch`` counts the
    samples of all processes together; ``None`` is the full batch, in the data's own order. With ``head_lr`` the
    classifier learns at that rate and the rest at ``lr`` (transfer). ``crop`` pads images with that many zeros on each
    side and cuts at a random place, ``flip`` mirrors half of them; both work on the device. ``clip`` bounds the
    gradient's norm.

    What makes a network smoother: an ``adversary`` within ``eps`` (:class:`~lisse.networks.attack.Adversary`), or the
    mixtures and consistency of ``augmix`` (:class:`~lisse.networks.augmix.AugMix`); smooth deformations by up to
    ``deform`` pixels (:class:`~lisse.networks.augment.MaxEntropyDiffeo`); and ``penalties``, as
    ``isometric=0.1@LAYER``, ``gradient=0.1`` or ``jacobian=0.01``. With ``lipschitz`` the network's proved Lipschitz
    constant is never above it (:class:`~lisse.networks.cap.Cap`), so that its margins are certificates.

    The default suits small networks: Adam in one cycle.
    """

    optimizer: Optimizer = field(default="adam", metadata={"help": "The optimiser."})
    lr: float = field(default=3e-3, metadata={"help": "Peak learning rate."})
    momentum: float = field(default=0.9, metadata={"help": "Of SGD."})
    nesterov: bool = field(default=False, metadata={"help": "Nesterov's momentum, of SGD."})
    weight_decay: float = field(
        default=0.0, metadata={"help": "Decoupled for AdamW, a penalty on the squared norm for the others."}
    )
    batch: int | None = field(
        default=128, metadata={"help": "Samples of a step, over all processes; none: all of them."}
    )
    epochs: int = field(default=10, metadata={"help": "Passes over the data."})
    schedule: Schedule = field(default="onecycle", metadata={"help": "How the rate changes over the steps."})
    warmup: float = field(default=0.3, metadata={"help": "Share of the steps in which the rate rises."})
    cosine_fraction: float = field(
        default=1.0, metadata={"help": "Share of the steps after which the cosine is at its lowest."}
    )
    gamma: float = field(default=0.975, metadata={"help": "Factor per epoch of the exponential schedule."})
    label_smoothing: float = field(default=0.0, metadata={"help": "Of the cross-entropy."})
    crop: int = field(default=0, metadata={"help": "Random crops of images padded by this many pixels."})
    flip: bool = field(default=False, metadata={"help": "Mirror half of the images."})
    head_lr: float | None = field(default=None, metadata={"help": "Learning rate of the classifier, where it differs."})
    clip: float | None = field(default=None, metadata={"help": "Largest norm of a gradient."})
    adversary: Opposition = field(default="none", metadata={"help": "Moves every batch to where the network fails."})
    eps: float = field(default=8 / 255, metadata={"help": "Radius of the adversary; for images in [0, 1], as 8/255."})
    norm: Norm = field(default="linf", metadata={"help": "Of the adversary's ball."})
    adversary_steps: int = field(default=10, metadata={"help": "Of pgd and trades."})
    beta: float = field(default=6.0, metadata={"help": "How much trades minds a turned answer."})
    augmix: float = field(default=0.0, metadata={"help": "Weight of AugMix's consistency loss; 0: no AugMix."})
    deform: float = field(default=0.0, metadata={"help": "Deform images smoothly, by up to this many pixels."})
    deform_cut: float = field(default=3.0, metadata={"help": "Cut-off of the deformations' frequencies."})
    lipschitz: float | None = field(
        default=None, metadata={"help": "Keep the network's proved Lipschitz constant at most this."}
    )
    penalties: tuple[str, ...] = field(default=(), metadata={"help": "NAME=WEIGHT or NAME=WEIGHT@LAYER."})

    def __post_init__(self) -> None:
        """Refuse what could not train, before anything is loaded."""
        _one_of("optimizer", self.optimizer, get_args(Optimizer))
        _one_of("schedule", self.schedule, get_args(Schedule))
        _number("lr", self.lr, above=0)
        _number("momentum", self.momentum, least=0, below=1)
        _number("weight_decay", self.weight_decay, least=0)
        _number("warmup", self.warmup, least=0, below=1)
        _number("cosine_fraction", self.cosine_fraction, above=0)
        _number("gamma", self.gamma, above=0)
        _number("label_smoothing", self.label_smoothing, least=0, below=1)
        for name, value in (("head_lr", self.head_lr), ("clip", self.clip), ("lipschitz", self.lipschitz)):
            if value is not None:
                _number(name, value, above=0)
        _one_of("adversary", self.adversary, get_args(Opposition))
        for name in ("eps", "beta", "augmix", "deform"):
            _number(name, getattr(self, name), least=0)
        _number("deform_cut", self.deform_cut, least=1)
        texts = (self.penalties,) if isinstance(self.penalties, str) else tuple(self.penalties)
        object.__setattr__(self, "penalties", texts)
        for text in texts:
            penalty_of(text)
        if self.adversary != "none" and self.augmix:
            raise ValueError("Recipe: augmix must be 0 with an adversary, got both. One of them changes the batch.")
        for name, least in (("epochs", 1), ("batch", 1), ("crop", 0), ("adversary_steps", 1)):
            value = getattr(self, name)
            if name == "batch" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"Recipe: {name} must be an integer of at least {least}, got {value!r}. Give {name}=…")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError(
                f"Recipe: nesterov must go with SGD and a momentum, got {self.optimizer} and {self.momentum}. Leave it "
                "out."
            )

    @property
    def augmentation(self) -> CropFlip | None:
        """The crops and flips, or ``None``."""
        return CropFlip(self.crop, self.flip) if self.crop or self.flip else None

    @property
    def deformation(self) -> MaxEntropyDiffeo | None:
        """The smooth deformations, or ``None``."""
        return MaxEntropyDiffeo(cut=self.deform_cut, delta=(0.0, self.deform)) if self.deform else None

    def lesson(self, bounds: tuple[float, float] | None) -> Adversary | AugMix | None:
        """What a batch becomes before the network learns from it, for inputs in ``bounds``."""
        if self.augmix:
            return AugMix(consistency=self.augmix)
        if self.adversary == "none":
            return None
        return Adversary(
            self.adversary, self.eps, self.norm, steps=self.adversary_steps, beta=self.beta, bounds=bounds
        )  # fmt: skip

    def short(self) -> Recipe:
        """A tenth of the epochs (at least one), in one cycle with the same peak rate."""
        return dataclasses.replace(self, epochs=max(1, round(self.epochs / 10)), schedule="onecycle", warmup=0.3)


def _one_of(name: str, value: object, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"Recipe: {name} must be one of {', '.join(values)}, got {value!r}. Choose one of these.")


def _number(
    name: str, value: float, *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf
) -> None:
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value <= above or value < least or value >= below:
        rules = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
        rules += [f"below {below:g}"] * (below < math.inf)
        raise ValueError(f"Recipe: {name} must be a number {' and '.join(rules)}, got {value!r}. Give {name}=…")


SGD = Recipe(
    optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, batch=128, epochs=250,
    schedule="cosine", warmup=0.0, cosine_fraction=0.8, crop=4, flip=True,
)  # fmt: skip
"""[petrini2021] app. E.1 and its public code: SGD 0.1, momentum 0.9, weight decay 5e-4, cosine over 0.8 of the epochs
(the rate rises again after that, as torch's ``CosineAnnealingLR`` does), batch 128, 250 to 350 epochs, crop and flip.
The code changes the rate once an epoch; here it changes every step."""

SGD_SHORT = dataclasses.replace(
    SGD.short(), lr=0.2, weight_decay=1e-3, batch=512, epochs=35, nesterov=True, warmup=0.25,
    label_smoothing=0.1,
)  # fmt: skip
"""The short form of :data:`SGD`: 35 epochs (a tenth of the paper's 350) of one cycle with four times the
batch. The decay is doubled: there are fewer steps to forget in. ResNet18 on CIFAR-10 has an error of 5.8 % with it; of
five settings tried with 25 epochs (6.1 to 6.7 %, one seed each) this one was the best."""

DIFFEOMORPHISMS = dataclasses.replace(SGD, deform=1.0)
"""As :data:`SGD`, on images that are deformed too: by maximum-entropy diffeomorphisms with cut-off 3 of up to one pixel
([petrini2021] sec. 2; the size is ours)."""

DIFFEOMORPHISMS_SHORT = dataclasses.replace(SGD_SHORT, deform=1.0)
"""The short form of :data:`DIFFEOMORPHISMS`."""

DIFFEOMORPHISMS_FC = Recipe(
    optimizer="adam", lr=1e-3, batch=128, epochs=250, schedule="constant", warmup=0.0, crop=4, flip=True,
)  # fmt: skip
"""[petrini2021] for its fully connected networks: Adam at a constant rate. The rate 1e-3 is our choice: neither the
paper nor its code names one for all of them."""

DIFFEOMORPHISMS_FC_SHORT = dataclasses.replace(DIFFEOMORPHISMS_FC.short(), lr=3e-3)
"""The short form of :data:`DIFFEOMORPHISMS_FC`: 25 epochs of one cycle up to 3e-3."""

DIFFEOMORPHISMS_TRANSFER = Recipe(
    optimizer="sgd", lr=1e-3, head_lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3, batch=128, epochs=100,
    schedule="exponential", warmup=0.0, gamma=0.975, crop=4, flip=True,
)  # fmt: skip
"""[petrini2021] app. E.1 and its public code, EfficientNets from ImageNet: the head at 0.01, the body at 0.001,
Nesterov, weight decay 1e-3, rate times 0.975 an epoch, 100 epochs."""

DIFFEOMORPHISMS_TRANSFER_SHORT = dataclasses.replace(DIFFEOMORPHISMS_TRANSFER.short(), lr=5e-3, head_lr=5e-2)
"""The short form of :data:`DIFFEOMORPHISMS_TRANSFER`: 10 epochs of one cycle, five times the rates."""

TOPOLIP_RESNET = dataclasses.replace(SGD, epochs=100, cosine_fraction=1.0)
"""[chen2024] sec. 5: ResNets for 100 epochs on CIFAR-10. The paper names the epochs only; the rest is our choice: that
of :data:`SGD` with a whole cosine."""

TOPOLIP_RESNET_SHORT = dataclasses.replace(SGD_SHORT, epochs=10)
"""The short form of :data:`TOPOLIP_RESNET`: 10 epochs, otherwise :data:`SGD_SHORT`."""

TOPOLIP_VIT = Recipe(
    optimizer="adamw", lr=1e-3, weight_decay=0.05, batch=512, epochs=200, schedule="cosine", warmup=0.05,
    label_smoothing=0.1, crop=4, flip=True, clip=1.0,
)  # fmt: skip
"""[chen2024] sec. 5: ViTs for 200 epochs. The paper names the epochs only; AdamW, rate, decay, warm-up, smoothing and
clipping are our choice."""

TOPOLIP_VIT_SHORT = TOPOLIP_VIT.short()
"""The short form of :data:`TOPOLIP_VIT`: 20 epochs of one cycle."""

TOPOLIP_ATTENTION = dataclasses.replace(TOPOLIP_VIT, lr=3e-4, epochs=100, label_smoothing=0.0)
"""[chen2024] sec. 5: Attns for 100 epochs. The paper names the epochs only; the rest is our choice: that of
:data:`TOPOLIP_VIT` with a smaller rate, as these networks have no normalisation."""

TOPOLIP_ATTENTION_SHORT = TOPOLIP_ATTENTION.short()
"""The short form of :data:`TOPOLIP_ATTENTION`: 10 epochs of one cycle."""

TOPOLIP_CONVOLUTION = dataclasses.replace(TOPOLIP_ATTENTION, epochs=200, weight_decay=5e-4)
"""[chen2024] sec. 5: Convs for 200 epochs. The paper names the epochs only; the rest is our choice: AdamW at 3e-4, as
these networks have no normalisation."""

TOPOLIP_CONVOLUTION_SHORT = TOPOLIP_CONVOLUTION.short()
"""The short form of :data:`TOPOLIP_CONVOLUTION`: 20 epochs of one cycle."""

ISOMETRY = Recipe(
    optimizer="adam",
    lr=1e-3,
    batch=100,
    epochs=5,
    schedule="constant",
    warmup=0.0,
    penalties=("isometric=0.1@head:in",),
)
"""[beshkov2022] sec. 2.3 and its public code, MNIST: Adam 1e-3, batches of 100, 5 epochs, and the isometric loss within
classes at what enters the classifier. The paper's weights are 0 to 10; 0.1 is the largest that costs no accuracy
there."""

ISOMETRY_SHORT = dataclasses.replace(ISOMETRY.short(), lr=3e-3)
"""The short form of :data:`ISOMETRY`: one epoch of one cycle up to 3e-3 (half an epoch would be a tenth)."""

ISOMETRY_FULL_BATCH = Recipe(
    optimizer="adam", lr=1e-3, batch=None, epochs=10_000, schedule="constant", warmup=0.0,
    penalties=("isometric=0.1@head:in",),
)  # fmt: skip
"""[beshkov2022] sec. 2.3, rings and torus: all points in one batch, 10,000 epochs. Rate and weight are our choice."""

ISOMETRY_FULL_BATCH_SHORT = dataclasses.replace(ISOMETRY_FULL_BATCH.short(), lr=1e-2)
"""The short form of :data:`ISOMETRY_FULL_BATCH`: 1,000 epochs of one cycle up to 1e-2."""

MASKED_AUTOENCODERS = Recipe(
    optimizer="adamw", lr=1.5e-3, weight_decay=0.05, batch=1024, epochs=400, schedule="cosine", warmup=0.05,
    flip=True, clip=1.0,
)  # fmt: skip
"""[he2022] app. A.1 for small images: AdamW, weight decay 0.05, a cosine after a warm-up, 400 epochs (theirs: 800). The
paper's rate is 1.5e-4 per 256 images of a batch; two and a half times that is our choice for a network of 3.5 million
parameters, and so is clipping. There are no crops of padded images: their black borders make a hidden patch at the edge
a guess, and on CIFAR-10 the error along the border of the picture was nearly twice as large with them."""

MASKED_AUTOENCODERS_SHORT = dataclasses.replace(MASKED_AUTOENCODERS.short(), batch=256, lr=1.5e-3)
"""The short form of :data:`MASKED_AUTOENCODERS`: 40 epochs of one cycle, smaller batches."""

ADVERSARIAL_FGSM = Recipe(
    optimizer="sgd", lr=0.2, weight_decay=5e-4, batch=128, epochs=15, warmup=0.5, crop=4, flip=True, adversary="fgsm",
)  # fmt: skip
"""[wong2020] and its public code: 15 epochs of one cycle under random-start FGSM, the peak in the middle, SGD with a
momentum of 0.9, batches of 128. Their cycle is a triangle; here two half cosines of the same mean."""

ADVERSARIAL_PGD = dataclasses.replace(ADVERSARIAL_FGSM, adversary="pgd", adversary_steps=7)
"""[madry2018] by PGD of 7 steps, in the one cycle of [wong2020]."""

ADVERSARIAL_TRADES = dataclasses.replace(ADVERSARIAL_PGD, adversary="trades")
"""[zhang2019] with their β = 6, by 7 steps (theirs: 10), in the one cycle of [wong2020]."""

GRADIENT_PENALTY = dataclasses.replace(SGD_SHORT, label_smoothing=0.0, epochs=15, penalties=("gradient=1.0",))
"""[drucker1992]: the square norm of the loss's gradient by the input. Weight and schedule are ours."""

AUGMIX = dataclasses.replace(SGD_SHORT, label_smoothing=0.0, epochs=15, augmix=12.0)
"""[hendrycks2020] with their λ = 12, in a short cycle of ours (theirs: 100 epochs and more)."""

AGAINST_ATTACKS = Recipe(lr=1e-3, epochs=5, adversary="pgd", adversary_steps=7)
"""What ``lisse improve --for attacks`` fine-tunes with: PGD of 7 steps ([madry2018]); rate and epochs are ours."""

AGAINST_CORRUPTIONS = Recipe(lr=1e-3, epochs=5, augmix=12.0)
"""What ``lisse improve --for corruptions`` fine-tunes with: AugMix ([hendrycks2020]); rate and epochs are ours."""

RECIPES: Mapping[str, Recipe] = {
    "default": Recipe(),
    "attacks": AGAINST_ATTACKS,
    "corruptions": AGAINST_CORRUPTIONS,
    "adversarial-fgsm": ADVERSARIAL_FGSM,
    "adversarial-pgd": ADVERSARIAL_PGD,
    "adversarial-trades": ADVERSARIAL_TRADES,
    "gradient-penalty": GRADIENT_PENALTY,
    "augmix": AUGMIX,
    "sgd": SGD,
    "sgd-short": SGD_SHORT,
    "diffeomorphisms": DIFFEOMORPHISMS,
    "diffeomorphisms-short": DIFFEOMORPHISMS_SHORT,
    "diffeomorphisms-fc": DIFFEOMORPHISMS_FC,
    "diffeomorphisms-fc-short": DIFFEOMORPHISMS_FC_SHORT,
    "diffeomorphisms-transfer": DIFFEOMORPHISMS_TRANSFER,
    "diffeomorphisms-transfer-short": DIFFEOMORPHISMS_TRANSFER_SHORT,
    "topolip-resnet": TOPOLIP_RESNET,
    "topolip-resnet-short": TOPOLIP_RESNET_SHORT,
    "topolip-vit": TOPOLIP_VIT,
    "topolip-vit-short": TOPOLIP_VIT_SHORT,
    "topolip-attention": TOPOLIP_ATTENTION,
    "topolip-attention-short": TOPOLIP_ATTENTION_SHORT,
    "topolip-convolution": TOPOLIP_CONVOLUTION,
    "topolip-convolution-short": TOPOLIP_CONVOLUTION_SHORT,
    "masked-autoencoders": MASKED_AUTOENCODERS,
    "masked-autoencoders-short": MASKED_AUTOENCODERS_SHORT,
    "isometry": ISOMETRY,
    "isometry-short": ISOMETRY_SHORT,
    "isometry-full-batch": ISOMETRY_FULL_BATCH,
    "isometry-full-batch-short": ISOMETRY_FULL_BATCH_SHORT,
}
"""Every recipe by the name that the command line takes."""
