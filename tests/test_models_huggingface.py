"""Hugging Face models from a folder: classes, preprocessing, tokenizers, safety. Nothing is downloaded."""

import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from lisse.models import load_model
from lisse.models.huggingface import image_size, image_statistics
from lisse.networks.zoo.text import EncoderDecoder

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = {
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.25, 0.2], "image_processor_type": "ViTImageProcessor", "rescale_factor": 1 / 255,
        "size": {"height": 8, "width": 8},
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fish", "can", "not", "fly", "."]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32, vocab_size=len(words),
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def copy(tmp_path):
    def make(folder):
        return shutil.copytree(folder, tmp_path / "copy")

    return make


def test_an_image_model_takes_images_in_0_1_and_gives_logits(vit):
    model = load_model(f"hf:{vit}")
    theirs = transformers.ViTForImageClassification.from_pretrained(vit, attn_implementation="eager").eval()
    images = torch.rand(2, 3, 8, 8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.25, 0.2]).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(model(images), theirs((images - mean) / std).logits)
    assert (model.lisse.kind, model.lisse.input_size, model.lisse.classes) == ("image", (3, 8, 8), 3)
    assert model.lisse.mean == pytest.approx((0.5, 0.4, 0.3))
    assert model.lisse.spec == f"hf:{vit}"
    assert not model.training


def test_statistics_in_the_spec_win(vit):
    assert load_model(f"hf:{vit}?mean=imagenet").lisse.std == (0.229, 0.224, 0.225)


def test_a_text_model_brings_its_tokenizer(bert):
    model = load_model(f"hf:{bert}")
    assert type(model).__name__ == "BertForMaskedLM"
    batch = model.lisse.tokenizer(["a fish can fly .", "a fish can not fly ."], padding=True, return_tensors="pt")
    assert batch["input_ids"].shape == (2, 8)
    with torch.no_grad():
        assert model(**batch).logits.shape == (2, 8, 11)
    assert (model.lisse.kind, model.lisse.mean) == ("text", None)


def test_the_head_can_be_chosen(bert):
    with pytest.raises(ValueError, match=r"must hold all weights of BertForSequenceClassification, got \d missing \(b"):
        load_model(f"hf:{bert}?head=BertForSequenceClassification")
    with pytest.raises(ValueError, match=r"head must be a model class of transformers .*, got 'system'"):
        load_model(f"hf:{bert}?head=system")


def test_unused_weights_are_told(vit, copy):
    folder = copy(vit)
    state = load_file(folder / "model.safetensors")
    save_file({**state, "other.head": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"ViTForImageClassification does not use 1 weights of .*\(other.head\)"):
        load_model(f"hf:{folder}")


def test_the_architecture_decides_the_class_and_attention_can_be_read(bert):
    model = load_model(f"hf:{bert}")
    ids = torch.tensor([[2, 5, 6, 3]])
    assert model(input_ids=ids, output_attentions=True).attentions[0].shape == (1, 2, 4, 4)
    assert load_model(f"hf:{bert}?attention=sdpa").config._attn_implementation == "sdpa"


def test_an_encoder_decoder_runs_on_the_source_alone(tmp_path):
    config = transformers.T5Config(
        d_model=16, d_kv=8, num_heads=2, num_layers=1, num_decoder_layers=1, d_ff=32, vocab_size=20,
        decoder_start_token_id=0,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    assert isinstance(model, EncoderDecoder)
    assert model.lisse.tokenizer is None
    assert model(torch.tensor([[3, 4, 1]])).logits.shape == (1, 3, 20)


def test_weights_in_a_bin_file_are_read_safely(vit, copy):
    folder = copy(vit)
    state = transformers.ViTForImageClassification.from_pretrained(vit).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(load_model(f"hf:{folder}")(images), load_model(f"hf:{vit}")(images))


def test_a_bin_file_that_wants_to_run_code_is_refused(vit, copy):
    folder = copy(vit)
    (folder / "model.safetensors").unlink()

    class Call:
        def __reduce__(self):
            return os.mkdir, (str(folder / "ran"),)

    torch.save({"x": Call(), "y": torch.zeros(100_000)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin must hold tensors only, got a pickle that wants to call"):
        load_model(f"hf:{folder}")
    assert not (folder / "ran").exists()


def test_code_in_a_repository_is_never_run(bert, copy):
    folder = copy(bert)
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "architectures": ["EvilModel"],
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"must be a readable Hugging Face model"):
        load_model(f"hf:{folder}")
    assert not (folder / "ran").exists()


# --- damage ---------------------------------------------------------------------------------------------------------


def spoiled(folder, file, change):
    path = folder / file
    path.write_bytes(change(path.read_bytes()))
    return folder


@pytest.mark.parametrize(
    ("file", "change", "match"),
    [
        ("model.safetensors", lambda b: b[: len(b) // 2], r"readable Hugging Face model"),
        ("model.safetensors", lambda b: b[:5], r"model.safetensors must be a whole weights file"),
        ("model.safetensors", lambda b: b"", r"model.safetensors must be a whole weights file"),
        ("config.json", lambda b: b[:40], r"readable Hugging Face model"),
        ("config.json", lambda b: b"[]", r"readable Hugging Face model"),
        ("config.json", lambda b: b'{"model_type": "nothing"}', r"readable Hugging Face model"),
        (
            "config.json",
            lambda b: b.replace(b'"hidden_size": 16', b'"hidden_size": 32'),
            r"of another shape \(.*: \[16\] instead of \[32\]",
        ),
        (
            "config.json",
            lambda b: b.replace(b'"hidden_size": 16', b'"hidden_size": 1000000'),
            r"parameters of its config",
        ),
        ("config.json", lambda b: b.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 3'), r"missing"),
        ("preprocessor_config.json", lambda b: b[:10], r"preprocessor_config.json must be a readable"),
        ("preprocessor_config.json", lambda b: b"3", r"not an object"),
        (
            "preprocessor_config.json",
            lambda b: b.replace(b"[0.5, 0.4, 0.3]", b"[0.5, 0.4]"),
            r"must have 3 numbers each",
        ),
    ],
)
def test_damaged_folders_are_refused(vit, copy, file, change, match):
    with pytest.raises(ValueError, match=match):
        load_model(f"hf:{spoiled(copy(vit), file, change)}")


@pytest.mark.parametrize(
    ("file", "match"),
    [
        ("model.safetensors", r"must hold \*.safetensors or pytorch_model.bin, got neither"),
        ("config.json", r"must hold a config.json, got none"),
        ("preprocessor_config.json", r"must have a preprocessor_config.json, got none, .* Add \?mean=…&std=…"),
    ],
)
def test_missing_files_are_named(vit, copy, file, match):
    folder = copy(vit)
    (folder / file).unlink()
    with pytest.raises(ValueError, match=match):
        load_model(f"hf:{folder}")


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("hf:./nowhere/at/all", r"must name a directory or a repository, got './nowhere/at/all', which is not there"),
        (
            "hf:{bert}?classes=3",
            r"options of hf: must be among head, attention, size, mean, std, revision, weights, got c",
        ),
        ("hf:{bert}?mean=0.5&std=1", r"mean, std must be left out for BertForMaskedLM, which takes no images"),
    ],
)
def test_bad_specs_are_explained(bert, spec, match):
    with pytest.raises(ValueError, match=match):
        load_model(spec.format(bert=bert))


def test_a_missing_transformers_names_the_extra(monkeypatch, vit):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'load_model: transformers must .* pip install "lisse\[hf\]"'):
        load_model(f"hf:{vit}")


# --- preprocessing --------------------------------------------------------------------------------------------------


def processed(config, x):
    """What an image processor of transformers does with a value x of 0…255, step by step."""
    y = x
    if config.get("do_rescale", True):
        y = y * config.get("rescale_factor", 1 / 255) - (1 if config.get("rescale_offset") else 0)
    if config.get("do_normalize", True) and "image_mean" in config:
        y = (y - config["image_mean"][0]) / config["image_std"][0]
        if config.get("image_processor_type", "").startswith("EfficientNet") and config.get("include_top", True):
            y = y / config["image_std"][0]
    return y


@pytest.mark.parametrize(
    "config",
    [
        {"image_mean": [0.3], "image_std": [0.2]},
        {"image_mean": [0.3], "image_std": [0.2], "do_normalize": False},
        {"do_normalize": True},
        {"image_mean": [127.0], "image_std": [60.0], "do_rescale": False},
        {"image_mean": [0.3], "image_std": [0.2], "rescale_factor": 1 / 127.5},
        {"image_mean": [0.3], "image_std": [0.2], "rescale_factor": 1 / 127.5, "rescale_offset": True},
        {"image_mean": [0.485], "image_std": [0.4785], "image_processor_type": "EfficientNetImageProcessor"},
        {
            "image_mean": [0.4],
            "image_std": [0.5],
            "image_processor_type": "EfficientNetImageProcessor",
            "include_top": False,
        },
    ],
)
def test_statistics_are_those_of_the_image_processor(config):
    mean, std = image_statistics(config, {}, 1, "x")
    for x in (0.0, 51.0, 255.0):
        assert (x / 255 - mean[0]) / std[0] == pytest.approx(processed(config, x), abs=1e-12)


@pytest.mark.parametrize(
    ("config", "options", "size"),
    [
        ({"size": {"height": 20, "width": 30}}, {}, (20, 30)),
        ({"size": 20}, {}, (20, 20)),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            {},
            (224, 224),
        ),
        ({"size": {"shortest_edge": 256}, "do_center_crop": False, "crop_size": 224}, {}, (256, 256)),
        ({}, {}, (7, 7)),
        ({"size": 20}, {"size": 9}, (9, 9)),
        (None, {}, (7, 7)),
    ],
)
def test_the_size_of_images(config, options, size):
    assert image_size(config, options, transformers.ViTConfig(image_size=7)) == size


def test_an_unknown_size_is_asked_for():
    with pytest.raises(ValueError, match=r"the image size must be known, got None. Add \?size=224"):
        image_size({}, {}, object())
