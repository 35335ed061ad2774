"""Hugging Face models from a folder: classes, preprocessing, tokenizers, safety. Nothing is downloaded."""

import json
import os
import shutil
import socket
import sys
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import lisse
from lisse.models import load_model
from lisse.models.processors import image_size, image_statistics
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
    with pytest.warns(UserWarning, match=r"must bring its tokenizer to read text, got none of"):
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
            r"options of hf: must be among head, attention, attn, dtype, device_map, size, mean, .* got c",
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


# As little as a file can say; what it leaves out is the default of the class.
PROCESSORS = [
    {"image_processor_type": "ViTImageProcessor"},
    {"feature_extractor_type": "ViTFeatureExtractor"},
    {"image_processor_type": "ViTImageProcessorFast"},
    {"image_processor_type": "ConvNextImageProcessor"},
    {"image_processor_type": "CLIPImageProcessor"},
    {"image_processor_type": "BitImageProcessor"},
    {"image_processor_type": "DeiTImageProcessor"},
    {"image_processor_type": "ViTImageProcessor", "image_mean": [0.3, 0.2, 0.1], "image_std": [0.2, 0.3, 0.4]},
    {"image_processor_type": "ViTImageProcessor", "image_mean": [0.3, 0.2, 0.1], "do_normalize": False},
    {
        "image_processor_type": "ViTImageProcessor", "do_rescale": False, "image_mean": [127.0, 120.0, 99.0],
        "image_std": [60.0, 50.0, 40.0],
    },
    {"image_processor_type": "ViTImageProcessor", "rescale_factor": 1 / 127.5},
    {"image_processor_type": "ViTImageProcessor", "rescale_offset": True},
    {"image_processor_type": "EfficientNetImageProcessor", "image_mean": [0.485, 0.456, 0.406], "image_std": [0.4] * 3},
    {"image_processor_type": "EfficientNetImageProcessor"},
    {"image_processor_type": "EfficientNetImageProcessor", "include_top": False},
    {"image_processor_type": "EfficientNetImageProcessor", "do_normalize": False},
    {"image_processor_type": "EfficientNetImageProcessor", "rescale_factor": 1 / 127.5, "rescale_offset": True},
]  # fmt: skip


def real_processor(config):
    legacy = config.get("feature_extractor_type", "").replace("FeatureExtractor", "ImageProcessor")
    kind = config.get("image_processor_type", legacy).removesuffix("Fast")
    return getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind)


@pytest.mark.parametrize("config", PROCESSORS)
def test_statistics_are_those_of_the_real_image_processor(config, monkeypatch):
    """The processor itself, made by transformers from the same file, gives what our mean and std give."""
    monkeypatch.setattr("lisse.models.processors._check", lambda *_: None)
    image = np.random.default_rng(0).integers(0, 256, (3, 24, 24), dtype=np.uint8)
    theirs = real_processor(config).from_dict(config)
    expected = theirs(image, do_resize=False, do_center_crop=False, return_tensors="np")["pixel_values"][0]
    mean, std = (np.array(value).reshape(3, 1, 1) for value in image_statistics(config, {}, 3, "x"))
    np.testing.assert_allclose((image / 255 - mean) / std, expected, rtol=1e-4, atol=1e-5)


def test_a_vit_without_statistics_in_its_file_has_those_of_its_class(vit, copy):
    folder = copy(vit)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor", "size": 8}')
    card = load_model(f"hf:{folder}").lisse
    assert (card.mean, card.std, card.input_size) == ((0.5,) * 3, (0.5,) * 3, (3, 8, 8))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, r"must give image_mean and image_std, got neither them nor a processor that is known here \(none\)"),
        ({"image_processor_type": "EvilImageProcessor"}, r"known here \(EvilImageProcessor\). Add \?mean=…&std=…"),
        ({"image_processor_type": "MobileViTImageProcessor"}, r"must only rescale and normalise, got MobileViT"),
    ],
)
def test_an_unknown_or_stranger_processor_is_refused(config, match):
    with pytest.raises(ValueError, match=match):
        image_statistics(config, {}, 3, "x")
    assert image_statistics(config, {"mean": 0.5, "std": 0.5}, 3, "x") == (0.5, 0.5)


def test_without_a_class_the_file_must_say_all():
    config = {"image_mean": [0.3], "image_std": [0.2]}
    assert image_statistics(config, {}, 1, "x") == (pytest.approx((0.3,)), pytest.approx((0.2,)))
    assert image_statistics({"do_normalize": False}, {}, 1, "x") == ((0.0,), (1.0,))


# --- what a file or a name may start --------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch):
    """What would be fetched and run as compiled attention."""
    asked = []
    for place in ("modeling_utils", "modeling_flash_attention_utils"):
        module = pytest.importorskip(f"transformers.{place}")
        if hasattr(module, "lazy_import_flash_attention"):
            monkeypatch.setattr(module, "lazy_import_flash_attention", lambda name, *_, **__: asked.append(name))
    return asked


@pytest.mark.parametrize("attention", ["evil/kernel", "flash_attention_2", "paged|sdpa"])
def test_attention_is_eager_or_sdpa(bert, attention, kernels):
    with pytest.raises(ValueError, match=r"load_model: attention must be eager or sdpa, got '"):
        load_model(f"hf:{bert}?attention={attention}")
    assert not kernels


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
def test_a_config_cannot_choose_a_kernel(bert, copy, key, kernels):
    folder = copy(bert)
    config = json.loads((folder / "config.json").read_text()) | {key: "evil/kernel"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(f"hf:{folder}").config._attn_implementation == "eager"
    assert not kernels


def test_a_checkpoint_cannot_start_a_folder(bert, tmp_path, kernels):
    path = tmp_path / "x.safetensors"
    said = {"format": 1, "spec": f"hf:{bert}?attention=evil/kernel", "kind": "text"}
    save_file({"a": torch.zeros(1)}, path, metadata={"lisse": json.dumps(said)})
    with pytest.raises(ValueError, match=r"which a file is not trusted to start"):
        load_model(str(path))
    assert not kernels


@pytest.fixture
def names_asked(monkeypatch):
    """Every host name that is looked up; none is found."""
    asked = []

    def spy(host, *_, **__):
        asked.append(host)
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", spy)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between the hub's tries
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("LISSE_DOWNLOAD", raising=False)
    return asked


def test_a_repository_is_not_asked_for_unless_downloads_are(names_asked, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"a/b must be a folder or in the Hugging Face cache, .* add \?download=true, or"
    ):
        load_model("hf:a/b")
    assert not names_asked
    with pytest.raises(ValueError, match=r"a/b must be a model that can be fetched, got: "):
        load_model("hf:a/b?download=true")
    assert names_asked
    with pytest.raises(TypeError, match=r"download must be true or false, got 'maybe'"):
        load_model("hf:a/b?download=maybe")


def test_a_repository_in_the_cache_needs_no_network(bert, names_asked, monkeypatch, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(bert, tmp_path / "models--a--b" / "snapshots" / commit)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = load_model("hf:a/b")
    assert (model.lisse.name, model.lisse.architecture) == ("a/b", "hf:a/b")
    assert model.lisse.tokenizer("a fish")["input_ids"] == [2, 5, 6, 3]
    assert not names_asked


def test_only_what_a_model_needs_is_fetched(bert, monkeypatch):
    files = [
        "config.json", "vocab.txt", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "onnx/config.json",
        "run.py", "spiece.model",
    ]  # fmt: skip
    wanted = {}

    def snapshot(name, *, revision, allow_patterns, local_files_only):
        wanted.update(files=allow_patterns, revision=revision, offline=local_files_only)
        return str(bert)

    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda name, revision: files)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert load_model("hf:a/b?download=true&revision=v2").lisse.architecture == "hf:a/b?revision=v2"
    needed = ["model.safetensors", "config.json", "vocab.txt", "spiece.model"]
    assert wanted == {"files": needed, "revision": "v2", "offline": False}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": "big"}, "'hidden_size' expected int, got str"),
        ({"hidden_act": {"a": 1}}, "'hidden_act' expected str, got dict"),
        ({"architectures": 3}, "architectures 3, which are no names"),
        ({"architectures": [3]}, r"architectures \[3\], which are no names"),
        ({"architectures": [["a"]]}, "which are no names"),
        ({"model_type": 3}, "model type `3`"),
    ],
)
def test_a_bad_config_is_refused_in_words_with_the_folder(bert, copy, change, says):
    folder = copy(bert)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"load_model: .*{folder.name}.* must be a readable .*{says}"):
        lisse.load_model(f"hf:{folder}")


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 20_000}, {"num_labels": 10**9}, {"hidden_size": 10**12},
        {"text_config": {"num_hidden_layers": 20_000}},
    ],
)  # fmt: skip
def test_absurd_configs_are_refused_before_anything_is_built(bert, copy, change, monkeypatch):
    folder = copy(bert)
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))

    def built(module, *_, **__):
        raise AssertionError(f"{type(module).__name__} was built")

    monkeypatch.setattr(torch.nn.Module, "__init__", built)
    with pytest.raises(ValueError, match=r"config.json with sane sizes \(at most 1000 layers\), got "):
        load_model(f"hf:{folder}")


def test_weights_of_another_kind_are_refused_and_nan_is_told(bert, copy):
    folder = copy(bert)
    state = load_file(folder / "model.safetensors")
    first = next(iter(state))
    for kind in (torch.int8, torch.complex64):
        save_file({**state, first: state[first].to(kind)}, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r"must hold floating-point weights, got complex or 8-bit integer ones \("):
            load_model(f"hf:{folder}")
    state[first] = state[first] * float("nan")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"must hold finite numbers, got NaN or infinity in \d tensors"):
        load_model(f"hf:{folder}")


# --- text through the command line ----------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a fish can fly .\na fish can not fly .\nfly a fish .\n")

    def run(*arguments):
        from lisse.cli import cli

        return CliRunner().invoke(cli, arguments)

    return run


@pytest.mark.parametrize("name", ["layers", "measure"])
def test_a_command_reads_text_with_the_models_tokenizer(bert, command, name, monkeypatch):
    seen = []
    load = lisse.load_data

    def spy(*arguments, **options):
        seen.append(load(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(lisse, "load_data", spy)
    more = ("sensitivity", f"hf:{bert}", "--no-cache", "--quick") if name == "measure" else (f"hf:{bert}",)
    result = command(name, *more, "--data", "texts.txt")
    assert result.exit_code == 0, result.output
    rows = {tuple(row[row > 0].tolist()) for row in seen[0].inputs["input_ids"]}
    assert rows == {(2, 5, 6, 7, 9, 10, 3), (2, 5, 6, 7, 8, 9, 10, 3), (2, 9, 5, 6, 10, 3)}


@pytest.mark.parametrize("name", ["layers", "measure"])
def test_a_command_does_not_guess_the_tokens_of_a_trained_model(bert, copy, command, name):
    folder = copy(bert)
    for file in folder.glob("*token*"):
        file.unlink()
    (folder / "vocab.txt").unlink(missing_ok=True)
    more = ("sensitivity", f"hf:{folder}", "--no-cache", "--quick") if name == "measure" else (f"hf:{folder}",)
    result = command(name, *more, "--data", "texts.txt")
    assert result.exit_code != 0
    assert "copy must bring its tokenizer to read text, got none of tokenizer.json" in result.output
    assert "tokenizer must be the model's own, got a model without one" in result.output
    result = command(name, *more, "--data", f"texts.txt?tokenizer={bert}")
    assert result.exit_code == 0, result.output


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
