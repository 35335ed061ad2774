"""Large and unusual models of Hugging Face: precision, devices, towers, sound; what does not fit says so."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import lisse
from lisse.cli import cli
from lisse.instruments import Sensitivity
from lisse.models import load_model, room
from lisse.models.sound import Heard
from lisse.taps import is_dispatched, placed_on

transformers = pytest.importorskip("transformers")
TEXT = {
    "vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32,
    "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGE = {**{key: TEXT[key] for key in list(TEXT)[1:5]}, "image_size": 8, "patch_size": 4}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijkl"]
IDS = {"input_ids": torch.randint(3, 40, (6, 5), generator=torch.Generator().manual_seed(0))}


def saved(folder, name, options, dtype=None, **files):
    """A folder with a small model of random weights, and files of JSON beside it."""
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**options))
    (model if dtype is None else model.to(dtype)).save_pretrained(folder)
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def llama(tmp_path):
    return saved(tmp_path, "LlamaModel", TEXT, torch.bfloat16)


@pytest.mark.filterwarnings("ignore:load_model.*must bring its tokenizer")
def test_the_precision_is_the_checkpoints_own_or_the_one_that_is_asked_for(llama):
    assert next(load_model(f"hf:{llama}").parameters()).dtype == torch.bfloat16
    wide = load_model(f"hf:{llama}?dtype=float32&attn=sdpa")
    assert next(wide.parameters()).dtype == torch.float32
    assert wide.config._attn_implementation == "sdpa"
    rows = {}
    for spec in ("", "?attn=sdpa", "?dtype=float32"):
        profile = lisse.measure(load_model(f"hf:{llama}{spec}"), IDS, Sensitivity(), on_error="raise")
        rows[spec] = {(row.quantity, row.layer): row.value for row in profile.rows}
        assert rows[spec].keys() == rows[""].keys()
    for key, value in rows["?dtype=float32"].items():
        assert rows[""][key] == pytest.approx(value, rel=0.1)  # bfloat16 has three digits; their sums have more


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("dtype=int8", "dtype must be among auto, float32.* got 'int8'"),
        ("device_map=3", "device_map must be auto, .* got 3"),
        ("device_map=everywhere", "device_map must be auto, .* got 'everywhere'"),
        ("attn=flash", "attn must be eager or sdpa, got 'flash'"),
        ("length=64", r"goes with the data: text:FILE\?length=128"),
        ("head=ViTModel", "head must be a class for llama models, got ViTModel, which is for vit.*saved as LlamaModel"),
        ("head=LlamaForCausalLM", r"all weights of LlamaForCausalLM, got 1 missing \(lm_head.weight\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:load_model.*must bring its tokenizer")
def test_what_cannot_be_loaded_is_explained(llama, spec, match):
    with pytest.raises(ValueError, match=match):
        load_model(f"hf:{llama}?{spec}")


@pytest.mark.filterwarnings("ignore:load_model.*must bring its tokenizer")
def test_a_dispatched_model_stays_where_it_is(llama, monkeypatch):
    pytest.importorskip("accelerate")
    model = load_model(f"hf:{llama}?device_map=cpu")
    monkeypatch.setattr(type(model), "to", lambda *_: pytest.fail("moved"))
    model.hf_device_map = {"": "cpu"}  # transformers leaves it out where there is one device
    assert is_dispatched(model)
    assert placed_on(model, "cpu") is model
    assert lisse.measure(model, IDS, Sensitivity(), device="cpu", on_error="raise").rows
    assert lisse.record(model, [IDS], device="cpu").samples == 6
    assert not is_dispatched(nn.Linear(1, 1))


def test_a_model_that_does_not_fit_says_what_it_needs(llama, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 10_000)
    with pytest.raises(ValueError, match=r"must fit on cpu, got .* GiB of .* free.*dtype=bfloat16.*--layers"):
        load_model(f"hf:{llama}")


def test_free_memory_is_known_where_the_system_tells_it():
    assert room.free_bytes(torch.device("meta")) is None
    free = room.free_bytes(torch.device("cpu"))
    assert free is None or 1 << 20 < free < 1 << 50
    room.check_room(0, torch.device("cpu"), "a model")


def test_of_clip_the_model_of_images_is_read_and_that_of_texts_by_its_head(tmp_path):
    processor = {"image_processor_type": "CLIPImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                 "do_center_crop": True, "crop_size": {"height": 8, "width": 8}, "size": {"shortest_edge": 8},
                 "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_resize": True}  # fmt: skip
    options = {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 8}
    folder = saved(tmp_path, "CLIPModel", options, preprocessor_config=processor)
    with pytest.warns(UserWarning, match="of CLIPModel, the model of images is read.*head=CLIPTextModel"):
        model = load_model(f"hf:{folder}")
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        expected = transformers.CLIPModel.from_pretrained(folder).vision_model(2 * images - 1).last_hidden_state
        torch.testing.assert_close(model(images), expected)
    with pytest.warns(UserWarning, match="must bring its tokenizer"):
        texts = load_model(f"hf:{folder}?head=CLIPTextModel")
    assert texts.lisse.kind == "text"
    assert texts(**IDS).last_hidden_state.shape == (6, 5, 16)


WAVE = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}  # fmt: skip
SPEECH = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8,
          "max_source_positions": 50, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip


def sound(samples=4000):
    return np.random.default_rng(0).normal(0, 0.1, (6, samples)).astype(np.float32)


def test_wav2vec2_takes_waveforms_and_scales_them_as_its_extractor_does(tmp_path):
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    folder = saved(tmp_path / "model", "Wav2Vec2Model", WAVE, preprocessor_config=extractor.to_dict())
    model, waves = load_model(f"hf:{folder}"), sound()
    values = extractor(list(waves), sampling_rate=16000, return_tensors="pt").input_values
    with torch.no_grad():
        own = transformers.Wav2Vec2Model.from_pretrained(folder, attn_implementation="eager").eval()
        torch.testing.assert_close(model(torch.from_numpy(waves)), own(values).last_hidden_state, rtol=1e-4, atol=1e-5)
    assert (model.rate, model.lisse.kind) == (16000, "plain")


def test_whisper_takes_waveforms_and_is_measured_from_the_command_line(tmp_path):
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    folder = saved(
        tmp_path / "model", "WhisperModel", SPEECH, preprocessor_config=extractor.to_dict()
    )  # a second of sound: 100 frames
    model, waves = load_model(f"hf:{folder}"), sound()
    features = extractor(list(waves), sampling_rate=16000, return_tensors="pt").input_features
    torch.testing.assert_close(model.spectrogram(torch.from_numpy(waves)), features, rtol=1e-3, atol=1e-3)
    np.savez(tmp_path / "waves.npz", inputs=waves)
    out = tmp_path / "a.profile"
    result = CliRunner().invoke(
        cli, ["measure", "sensitivity", f"hf:{folder}", "--data", f"{tmp_path / 'waves.npz'}", "--no-cache", "--out",
               str(out)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    layers = {row.layer for row in lisse.Profile.load(out).rows}
    assert sum("encoder" in str(layer) for layer in layers) >= 2
    assert sum("decoder" in str(layer) for layer in layers) >= 2


def test_sound_in_another_form_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"floats \[n, samples\] at 16000 a second, got torch.int16"):
        Heard(nn.Identity(), rate=16000)(torch.zeros(2, 9, dtype=torch.int16))
    folder = saved(tmp_path, "Wav2Vec2Model", WAVE)
    with pytest.raises(ValueError, match=r"a preprocessor_config.json of Wav2Vec2FeatureExtractor or .* none"):
        load_model(f"hf:{folder}")


def test_texts_beyond_the_models_positions_name_the_length():
    model = transformers.BertModel(transformers.BertConfig(**TEXT))
    ids = torch.randint(3, 40, (4, 20))
    with pytest.raises(RuntimeError, match=r"texts have 20 tokens and the model has positions for 16: .*\?length=16"):
        lisse.measure(model, {"input_ids": ids}, Sensitivity())
    model = transformers.RobertaModel(transformers.RobertaConfig(**{**TEXT, "pad_token_id": 1}))
    with pytest.raises(RuntimeError, match=r"\?length=14"):  # its first two positions are no token's
        lisse.measure(model, {"input_ids": ids[:, :15]}, Sensitivity())


class Whole(nn.Module):
    """A model that takes a whole batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, batch):
        return self.layers(batch["image"])


class Wrapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(batch)


def test_dicts_of_a_loader_go_by_name_and_a_hint_says_how():
    samples = [{"image": torch.randn(4), "label": index % 2} for index in range(8)]
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    with pytest.raises(RuntimeError, match=r"keys are image, and forward takes batch\. Rename the keys.*\*\*batch"):
        lisse.measure(Whole(), loader, Sensitivity())
    profile = lisse.measure(Wrapped(Whole()), loader, Sensitivity(), on_error="raise")
    assert {row.n for row in profile.rows if row.quantity == "norm"} == {8}
