"""No stranger's code: each door that a library leaves open is tried, with somebody on standard input who says yes.

A folder holds a module ``evil`` that would leave a file ``ran``. It must not appear, the error says why, and a command
ends with another code than 0.
"""

import contextlib
import json
import os
import pickle
import sys
import types

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from lisse.data import load_data
from lisse.libraries import brings_code, may_download, quarantine
from lisse.models import load_model

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fish", "can", "not", "fly", "."]
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}


class Evil:
    """A pickle that makes a folder ``ran`` where it is opened."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A whole small BERT with its tokenizer, and the module that must not run."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(**SMALL, vocab_size=len(WORDS), max_position_embeddings=16)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    classes = "".join(f"class {name}: pass\n" for name in ("Config", "Model", "Words", "Processor"))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{classes}")
    (tmp_path / "texts.txt").write_text("a fish can fly .\na fish can not fly .\n")
    return folder


def change(file, **entries):
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({key: value for key, value in (content | entries).items() if value is not None}))


def command(*arguments):
    from lisse.cli import cli

    return CliRunner().invoke(cli, arguments, input="y\ny\ny\n")


# --- tokenizers -----------------------------------------------------------------------------------------------------


def words_in_the_tokenizers_config(folder):
    auto_map = {"AutoTokenizer": ["evil.Words", None]}
    change(folder / "tokenizer_config.json", tokenizer_class="Words", auto_map=auto_map)
    change(folder / "config.json", model_type="evil")


def words_in_the_models_config(folder):
    change(folder / "tokenizer_config.json", tokenizer_class=None)
    auto_map = {"AutoConfig": "evil.Config", "AutoTokenizer": "evil.Words"}
    change(folder / "config.json", model_type="evil", auto_map=auto_map)


def words_that_are_known(folder):
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Words", None]})


def test_a_tokenizer_never_runs_code_of_its_own(folder, tmp_path):
    words_in_the_tokenizers_config(folder)
    result = command("layers", "zoo:bert?vocabulary=11", "--data", f"text:{tmp_path}/texts.txt?tokenizer={folder}")
    assert result.exit_code not in (0, None)
    assert not (tmp_path / "ran").exists()
    assert "tokenizer must be readable without code of its own" in " ".join(result.output.split())
    assert "[y/N]" not in result.output


@pytest.mark.parametrize("prepare", [words_in_the_models_config, words_that_are_known])
def test_a_tokenizer_that_transformers_can_read_is_read_by_transformers(folder, tmp_path, prepare, monkeypatch):
    prepare(folder)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    data = load_data(f"text:{tmp_path}/texts.txt?tokenizer={folder}")
    assert data.inputs["input_ids"][0].tolist() == [2, 5, 6, 7, 9, 10, 3, 0]
    assert not (tmp_path / "ran").exists()


def test_a_chat_template_is_never_rendered(folder, tmp_path):
    code = "{{ cycler.__init__.__globals__.os.mkdir('" + str(tmp_path / "ran") + "') }}"
    change(folder / "tokenizer_config.json", chat_template=code)
    (folder / "chat_template.jinja").write_text(code)
    data = load_data(f"text:{tmp_path}/texts.txt?tokenizer={folder}")
    assert len(data) == 2
    load_model(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()


def test_a_damaged_tokenizer_is_refused_in_one_line(folder, tmp_path):
    (folder / "tokenizer.json").write_text('{"version": 3}')
    with pytest.raises(ValueError, match=r"load_data: tokenizer must be 'words', 'bytes', a folder or a name"):
        load_data(f"text:{tmp_path}/texts.txt?tokenizer={folder}")


# --- models ---------------------------------------------------------------------------------------------------------


def a_model_of_its_own(folder):
    auto_map = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    change(folder / "config.json", model_type="evil", architectures=["Model"], auto_map=auto_map)


def a_model_inside_a_model(folder):
    """An encoder-decoder whose decoder is of a known kind that no decoder is: its own auto_map would be asked about."""
    inner = {"model_type": "vit", "auto_map": {"AutoModelForCausalLM": f"{folder}--evil.Model"}}
    outer = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"}, "decoder": inner}
    change(folder / "config.json", architectures=["VisionEncoderDecoderModel"], **outer)


@pytest.mark.parametrize("prepare", [a_model_of_its_own, a_model_inside_a_model])
def test_a_model_never_runs_code_of_its_own(folder, tmp_path, prepare):
    prepare(folder)
    result = command("layers", f"hf:{folder}", "--data", f"{tmp_path}/texts.txt")
    assert result.exit_code not in (0, None)
    assert not (tmp_path / "ran").exists()
    assert "brings code of its own (auto_map); it was not run" in " ".join(result.output.split())
    assert "[y/N]" not in result.output


def test_an_image_processor_of_its_own_is_not_run(tmp_path, folder):
    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    for name in ("preprocessor_config.json", "processor_config.json"):
        auto_map = {"AutoImageProcessor": "evil.Processor", "AutoProcessor": "evil.Processor"}
        change(folder / name, image_processor_type="Processor", processor_class="Processor", auto_map=auto_map)
    result = command("layers", f"hf:{folder}")
    assert result.exit_code not in (0, None)
    assert "nor a processor that is known here (Processor)" in " ".join(result.output.split())
    assert not (tmp_path / "ran").exists()


def test_a_way_to_generate_is_not_imported(folder, tmp_path):
    (folder / "custom_generate").mkdir()
    (folder / "evil.py").rename(folder / "custom_generate" / "generate.py")
    load_model(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_model_inside_a_model_cannot_choose_a_kernel(tmp_path, key):
    inner = {**SMALL, "model_type": "bert", "vocab_size": 20, "is_decoder": True, "add_cross_attention": True}
    encoder, decoder = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4), transformers.BertConfig(**inner)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    transformers.VisionEncoderDecoderModel(config).save_pretrained(tmp_path)
    change(tmp_path / "config.json", decoder=inner | {key: "evil/kernel"})
    change(tmp_path / "preprocessor_config.json", image_processor_type="ViTImageProcessor", size=8)
    model = load_model(f"hf:{tmp_path}")
    assert {module.config._attn_implementation for module in model.modules() if hasattr(module, "config")} == {"eager"}


def test_an_adapter_is_refused(folder):
    change(folder / "adapter_config.json", base_model_name_or_path="evil/model", peft_type="LORA")
    with pytest.raises(ValueError, match=r"must hold a whole model, got an adapter \(adapter_config.json\)"):
        load_model(f"hf:{folder}")


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["model", "model/model.py"])
def test_a_data_set_is_never_a_script(folder, tmp_path, named):
    pytest.importorskip("datasets")
    (folder / "evil.py").rename(folder / "model.py")
    for file in folder.glob("*.[jst]*"):
        file.unlink()
    result = command("layers", "zoo:bert?vocabulary=11", "--data", f"hfdata:{tmp_path}/{named}")
    assert result.exit_code not in (0, None)
    assert "must be files of data, got a script that would make them; it was not run" in " ".join(result.output.split())
    assert not (tmp_path / "ran").exists()


def test_a_pickled_table_is_not_opened(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "test.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    (tmp_path / "table" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: test.pkl\n  builder_name: pandas\n---\n"
    )
    with pytest.raises(ValueError, match="must be a data set with a split 'test'"):
        load_data(f"hfdata:{tmp_path}/table")
    assert not (tmp_path / "ran").exists()


def test_arrays_of_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.array([Evil(tmp_path / "ran")], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="must hold numbers or text, and objects would be unpickled"):
        load_data(f"{tmp_path}/a.npz")
    assert not (tmp_path / "ran").exists()


# --- the quarantine itself ------------------------------------------------------------------------------------------


def test_a_library_that_unpickles_anything_meets_tensors_only(tmp_path, monkeypatch):
    """timm and torchvision call ``torch.load`` with ``weights_only=False`` on some of their ways."""
    torch.save({"weight": Evil(tmp_path / "ran")}, tmp_path / "weights.pth")

    def create(name, pretrained, **_):
        torch.load(tmp_path / "weights.pth", weights_only=False)

    library = types.SimpleNamespace(
        is_model=lambda _: True,
        get_pretrained_cfg=lambda *_, **__: None,
        create_model=create,
        __version__="0",
    )
    monkeypatch.setitem(sys.modules, "timm", library)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load_model("timm:hf_hub:evil/model")
    assert not (tmp_path / "ran").exists()


def test_the_quarantine_ends(monkeypatch):
    import huggingface_hub.constants as hub
    import transformers.dynamic_module_utils as code

    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    before = code.TIME_OUT_REMOTE_CODE
    with quarantine(network=True):
        assert not hub.HF_HUB_OFFLINE
    with contextlib.suppress(RuntimeError), quarantine():
        assert hub.HF_HUB_OFFLINE
        assert code.TIME_OUT_REMOTE_CODE == 0
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
        assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ
        raise RuntimeError
    assert not hub.HF_HUB_OFFLINE
    assert before == code.TIME_OUT_REMOTE_CODE
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_the_network_is_used_only_when_asked(monkeypatch):
    monkeypatch.delenv("LISSE_DOWNLOAD", raising=False)
    assert (may_download(True), may_download(False)) == (True, False)
    monkeypatch.setenv("LISSE_DOWNLOAD", "yes")
    assert may_download(False)


def test_a_wish_for_code_is_told_from_other_errors():
    assert brings_code(ValueError("pass `trust_remote_code=True`"))
    assert not brings_code(OSError("no such file"))
