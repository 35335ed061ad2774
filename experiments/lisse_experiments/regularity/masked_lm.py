"""A small masked language model, trained here: the negation experiment needs one, and a published one needs a hub.

Command   python3 -m lisse_experiments.regularity.masked_lm --out FOLDER [--device cuda] [--start ENCODER]
Data      LISSE_DATA/text/wikipedia_sentences.txt.xz: 87,523 sentences of Wikipedia, 3.8 MB
Model     BERT, 6 layers of width 384 with a WordPiece vocabulary of these sentences; or, with --start, the encoder and
          tokenizer of a folder in Hugging Face's format, to which a head tied to its embeddings is added
Time      from scratch about 5 minutes on an H200; --start with --minutes 35, 35 minutes on one CPU thread; it resumes
Leaves    FOLDER/model: config, tokenizer and half-precision safetensors, which hf:FOLDER/model loads;
          FOLDER/result.json: masked accuracy and loss on held-out sentences, with intervals

Masking and recipe are BERT's [devlin2019]: 15 % of the tokens, of which 80 % become [MASK] and 10 % another word;
AdamW, warm-up, cosine, bf16 autocast.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lisse.data.places import resolve
from lisse.data.text import read_text
from lisse.libraries import pretrained, pretrained_tokenizer, transformers_library
from lisse.maths.intervals import Interval
from lisse.maths.relative_stability import ratio_interval
from lisse.networks.zoo import seeded
from lisse.profile_file import writing
from lisse.progress import Event, Listener
from lisse.training.folder import read_checkpoint, write_checkpoint
from lisse_experiments.regularity.wordpiece import trained_tokenizer

TEXT = "text/wikipedia_sentences.txt.xz"
IGNORED = -100
SAVE_EVERY = 120.0  # seconds


@dataclass(frozen=True)
class Recipe:
    """How a masked language model is made.

    ``start`` is the folder of an encoder to begin from; where it is given, ``layers``, ``width``, ``heads`` and
    ``vocabulary`` are its own (and ``length`` must not be more than it has positions for), and
    ``name`` is what to call it. A batch holds ``tokens`` tokens, padding included. The rate falls with the share of
    ``steps`` that is done, or of ``minutes`` where they are given and run out first. ``precision`` is
    ``bf16``, ``32`` or ``64``: in ``64`` two machines come to the same model but for the last digits.
    """

    start: str = ""
    name: str = ""
    layers: int = 6
    width: int = 384
    heads: int = 12
    vocabulary: int = 16_000
    length: int = 64
    tokens: int = 32_768
    steps: int = 8_000
    minutes: float = math.inf
    lr: float = 1e-3
    warmup: float = 0.06
    weight_decay: float = 0.01
    dropout: float = 0.1
    masked: float = 0.15
    held_out: int = 1_000
    precision: str = "bf16"
    seed: int = 0


@dataclass(frozen=True)
class Quality:
    """On held-out sentences: the share of masked tokens found, and the mean loss in nats, each with its interval.

    Both are ratios over sentences, which are what is resampled; ``n`` counts sentences, ``masked`` tokens.
    """

    accuracy: Interval
    loss: Interval
    n: int
    masked: int


def trained_quality(
    texts: Sequence[str], recipe: Recipe, out: Path, *, device: str = "cpu", progress: Listener | None = None
) -> Quality:
    """Train on ``texts``, keep the model in ``out/model`` and what it can do in ``out/result.json``; resumes."""
    if recipe.precision not in ("bf16", "32", "64"):
        raise ValueError(f"masked_lm: precision must be bf16, 32 or 64, got {recipe.precision!r}.")
    result_file = out / "result.json"
    if result_file.is_file():
        document = json.loads(result_file.read_text(encoding="utf-8"))
        if document["recipe"] == _plain(recipe):
            return quality_of(result_file)
        raise ValueError(f"masked_lm: out must be empty or of the same recipe, got {out} of another. Choose another.")
    out.mkdir(parents=True, exist_ok=True)
    shuffled = torch.randperm(len(texts), generator=_generator(recipe.seed, "split")).tolist()
    if not 0 < recipe.held_out < len(texts):
        raise ValueError(f"masked_lm: held_out must lie in 1 … {len(texts) - 1}, got {recipe.held_out}.")
    judged_texts, training_texts = shuffled[: recipe.held_out], shuffled[recipe.held_out :]
    tokenizer = _tokenizer([texts[index] for index in training_texts], recipe, out)
    ids = tokenizer(list(texts), truncation=True, max_length=recipe.length)["input_ids"]
    model = network(recipe, tokenizer).to(device, torch.float64 if recipe.precision == "64" else torch.float32)
    steps, seconds, tokens = _train(
        model, [ids[index] for index in training_texts], tokenizer, recipe, out, device, progress
    )
    model.half().float()  # what is kept is what is judged
    quality = judged(model, [ids[index] for index in judged_texts], tokenizer, recipe, device)
    model.half().save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    result = {
        "recipe": _plain(recipe),
        "steps": steps,
        "seconds": round(seconds),
        "tokens": tokens,
        "texts": len(training_texts),
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": device,
        "n": quality.n,
        "masked": quality.masked,
        **{
            name: [float(end) for end in (interval.value, interval.low, interval.high)]
            for name, interval in (("accuracy", quality.accuracy), ("loss", quality.loss))
        },
    }
    with writing(result_file) as file:
        file.write((json.dumps(result, indent=1) + "\n").encode())
    (out / "checkpoint.safetensors").unlink(missing_ok=True)
    return quality


def network(recipe: Recipe, tokenizer: Any) -> Any:
    """``BertForMaskedLM``, from scratch or around the encoder in ``recipe.start``, its head tied to the embeddings."""
    transformers = transformers_library("masked_lm")
    with seeded(recipe.seed):
        if not recipe.start:
            config = transformers.BertConfig(
                vocab_size=len(tokenizer), hidden_size=recipe.width, num_hidden_layers=recipe.layers,
                num_attention_heads=recipe.heads, intermediate_size=4 * recipe.width,
                max_position_embeddings=max(recipe.length, 128), hidden_dropout_prob=recipe.dropout,
                attention_probs_dropout_prob=recipe.dropout, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
            return transformers.BertForMaskedLM(config)
        encoder = pretrained(
            transformers.BertModel, recipe.start, add_pooling_layer=False, use_safetensors=True, dtype=torch.float32
        )
        encoder.config.architectures = ["BertForMaskedLM"]
        encoder.config.hidden_dropout_prob = encoder.config.attention_probs_dropout_prob = recipe.dropout
        model = transformers.BertForMaskedLM(encoder.config)
    model.bert.load_state_dict(encoder.state_dict())
    # The head sees the encoder's own coordinates at first, in which the embeddings it is tied to live.
    torch.nn.init.eye_(model.cls.predictions.transform.dense.weight)
    return model


def judged(model: Any, ids: Sequence[Sequence[int]], tokenizer: Any, recipe: Recipe, device: str = "cpu") -> Quality:
    """Masked accuracy and loss over texts, each masked once, the same way for the same seed."""
    right: list[Tensor] = []
    losses: list[Tensor] = []
    counts: list[Tensor] = []
    source = _generator(recipe.seed, "held out")
    model.eval()
    with torch.no_grad():
        for start in range(0, len(ids), 64):
            inputs, mask = _padded(ids[start : start + 64], tokenizer.pad_token_id)
            noisy, labels = corrupted(inputs, tokenizer, recipe.masked, source)
            hidden = model.bert(noisy.to(device), attention_mask=mask.to(device)).last_hidden_state
            masked = labels != IGNORED
            scores = model.cls(hidden[masked.to(device)]).float().cpu()
            loss = torch.nn.functional.cross_entropy(scores, labels[masked], reduction="none").double()
            hits = (scores.argmax(-1) == labels[masked]).double()
            rows = torch.arange(len(inputs))[:, None].expand_as(masked)[masked]
            for sums, value in ((right, hits), (losses, loss), (counts, torch.ones_like(loss))):
                sums.append(torch.zeros(len(inputs), dtype=torch.float64).index_add_(0, rows, value))
    number = torch.cat(counts)
    # Texts too short for a masked token say nothing.
    nonempty = number > 0
    accuracy, nats = (
        ratio_interval(
            torch.cat(of)[nonempty], number[nonempty], statistic="mean", generator=_generator(recipe.seed, "interval")
        )
        for of in (right, losses)
    )
    return Quality(accuracy, nats, int(nonempty.sum()), int(number.sum()))


def corrupted(ids: Tensor, tokenizer: Any, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """BERT's task on ``ids`` ``[b, t]``: what the model sees, and the tokens to find, -100 where there is none.

    Each token but the special ones is chosen with probability ``share``; of the chosen 80 % become [MASK], 10 % a
    random token, 10 % stay.
    """
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    draw, kind = torch.rand(2, *ids.shape, generator=generator)
    masked = (draw < share) & ~special
    other = torch.randint(len(tokenizer), ids.shape, generator=generator)
    inputs = torch.where(masked & (kind < 0.8), tokenizer.mask_token_id, ids)
    inputs = torch.where(masked & (kind >= 0.9), other, inputs)
    return inputs, torch.where(masked, ids, IGNORED)


def batches(lengths: Sequence[int], tokens: int, seed: int) -> Iterator[list[int]]:
    """Batches of indices for ever: texts of like length together, at most ``tokens`` with padding, in random order."""
    epoch = 0
    while True:
        source = _generator(seed, f"epoch {epoch}")
        jitter = torch.rand(len(lengths), generator=source).tolist()
        order = sorted(range(len(lengths)), key=lambda index: lengths[index] + jitter[index])
        groups: list[list[int]] = [[]]
        for index in order:  # ascending, so the last is the longest
            if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > tokens:
                groups.append([])
            groups[-1].append(index)
        for group in torch.randperm(len(groups), generator=source).tolist():
            yield groups[group]
        epoch += 1


def _train(
    model: Any, ids: list[list[int]], tokenizer: Any, recipe: Recipe, out: Path, device: str, progress: Listener | None
) -> tuple[int, float, int]:
    """Train in place; the steps, seconds and tokens it took. Every batch and mask is a function of seed and step."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    flat = [p for p in parameters.values() if p.ndim < 2]
    deep = [p for p in parameters.values() if p.ndim >= 2]
    groups: list[dict[str, Any]] = [{"params": deep, "weight_decay": recipe.weight_decay}, {"params": flat}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=0.0, betas=(0.9, 0.98), eps=1e-6, fused=True)
    file = out / "checkpoint.safetensors"
    first, before, tokens = _resumed(file, parameters, optimiser, recipe) if file.is_file() else (0, 0.0, 0)
    start = saved = time.monotonic()
    step, smooth = first, math.nan
    for number, batch in enumerate(batches([len(row) for row in ids], recipe.tokens, recipe.seed)):
        if number < first:
            continue
        spent = before + time.monotonic() - start
        share = max(step / recipe.steps, spent / 60 / recipe.minutes)
        if share >= 1:
            break
        factor = min(1.0, (share + 1 / recipe.steps) / recipe.warmup) * (1 + math.cos(math.pi * share)) / 2
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * factor
        loss = _step(model, [ids[index] for index in batch], tokenizer, recipe, step, device)
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        tokens += sum(len(ids[index]) for index in batch)
        step += 1
        if step % 20 == 0:
            value = float(loss)
            if not math.isfinite(value):
                raise ValueError(f"masked_lm: lr must let the loss stay finite, got {value} at step {step}. Lower it.")
            smooth = value if math.isnan(smooth) else 0.8 * smooth + 0.2 * value
            if progress is not None:
                progress(Event(f"masked language model, loss {smooth:.2f}", share * 100, 100, "%"))
        if time.monotonic() - saved > SAVE_EVERY:
            _keep(file, parameters, optimiser, recipe, (step, before + time.monotonic() - start, tokens))
            saved = time.monotonic()
    return step, before + time.monotonic() - start, tokens


def _step(model: Any, rows: list[list[int]], tokenizer: Any, recipe: Recipe, step: int, device: str) -> Tensor:
    """Gradients of the loss of one batch."""
    inputs, mask = _padded(rows, tokenizer.pad_token_id)
    noisy, labels = corrupted(inputs, tokenizer, recipe.masked, _generator(recipe.seed, f"step {step}"))
    masked = (labels != IGNORED).to(device)
    model.train()
    with seeded(recipe.seed * 1_000_003 + step), _autocast(device, recipe):
        hidden = model.bert(noisy.to(device), attention_mask=mask.to(device)).last_hidden_state
        # Scores of the masked places only: the head is as large as half of the encoder.
        scores = model.cls(hidden[masked])
    exact = scores.float() if scores.dtype == torch.bfloat16 else scores
    loss = torch.nn.functional.cross_entropy(exact, labels.to(device)[masked])
    loss.backward()
    return loss.detach()


def _autocast(device: str, recipe: Recipe) -> torch.autocast:
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bf16")


def _padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, (torch.arange(longest) < lengths[:, None]).long()


def _tokenizer(texts: Sequence[str], recipe: Recipe, out: Path) -> Any:
    if recipe.start:
        return pretrained_tokenizer(recipe.start, "masked_lm")
    folder = out / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        trained_tokenizer(texts, recipe.vocabulary).save_pretrained(folder)
    return pretrained_tokenizer(folder, "masked_lm")


def _keep(
    file: Path, parameters: dict[str, Tensor], optimiser: Any, recipe: Recipe, where: tuple[int, float, int]
) -> None:
    tensors = {f"weight.{name}": p for name, p in parameters.items()}
    for name, p in parameters.items():
        tensors |= {f"{key}.{name}": optimiser.state[p][key] for key in ("exp_avg", "exp_avg_sq", "step")}
    write_checkpoint(file, tensors, {"recipe": _plain(recipe), "where": list(where)})


def _resumed(file: Path, parameters: dict[str, Tensor], optimiser: Any, recipe: Recipe) -> tuple[int, float, int]:
    tensors, document = read_checkpoint(file)
    if document["recipe"] != _plain(recipe):
        raise ValueError(f"masked_lm: out must hold a training of this recipe, got {file} of another. Choose another.")
    for name, p in parameters.items():
        with torch.no_grad():
            p.copy_(tensors[f"weight.{name}"])
        state = {key: tensors[f"{key}.{name}"] for key in ("exp_avg", "exp_avg_sq", "step")}
        optimiser.state[p] = {key: value.to(p.device) for key, value in state.items()}
    step, seconds, tokens = document["where"]
    return int(step), float(seconds), int(tokens)


def _generator(seed: int, purpose: str) -> torch.Generator:
    from lisse.data.generators import generator

    return generator("masked lm", purpose, seed)


def _plain(recipe: Recipe) -> dict[str, Any]:
    fields = asdict(recipe)
    # JSON has no infinity; and where the encoder lies is no part of what is made of it.
    fields["minutes"] = None if math.isinf(recipe.minutes) else recipe.minutes
    fields["start"] = recipe.name or Path(recipe.start).name
    return fields


def quality_of(result: Path) -> Quality:
    """What a ``result.json`` says."""
    document = json.loads(result.read_text(encoding="utf-8"))

    def interval(name: str) -> Interval:
        value, low, high = (torch.tensor(end, dtype=torch.float64) for end in document[name])
        return Interval(value, low, high, document["n"], 0.95)

    return Quality(interval("accuracy"), interval("loss"), document["n"], document["masked"])


def description(result: Path) -> str:
    """A ``result.json`` in one line."""
    document = json.loads(result.read_text(encoding="utf-8"))
    start = document["recipe"]["start"]
    origin = f"begun from {start}" if start else "from scratch"
    size = f"{document['parameters'] / 1e6:.1f} million parameters"
    amount = f"{document['tokens'] / 1e6:.2g} million tokens of {document['texts']:,} sentences"
    return f"a small BERT masked language model trained here ({size}, {origin}, {document['steps']:,} steps, {amount})"


def texts_of(path: str) -> list[str]:
    """The lines of a text file."""
    return [line.strip() for line in read_text(resolve(path)).split("\n") if line.strip()]


def _main() -> None:
    from lisse.progress import Bar

    standard = Recipe()
    parser = argparse.ArgumentParser(prog="python3 -m lisse_experiments.regularity.masked_lm", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--text", default=TEXT, help="a file of one sentence a line, plain, .gz or .xz")
    parser.add_argument("--limit", type=int, help="only the first so many sentences")
    for name, value in asdict(standard).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args())
    recipe = Recipe(**{name: options[name] for name in asdict(standard)})
    texts = texts_of(options["text"])[: options["limit"]]
    with Bar() as bar:
        quality = trained_quality(texts, recipe, options["out"], device=options["device"], progress=bar)
    for name, unit, interval in (("accuracy", "", quality.accuracy), ("loss", " nats", quality.loss)):
        ends = f"[{float(interval.low):.4f}, {float(interval.high):.4f}]"
        size = f"{quality.masked} tokens of {quality.n} texts"
        print(f"held-out masked {name}: {float(interval.value):.4f}{unit} {ends}, {size}")


if __name__ == "__main__":
    _main()
