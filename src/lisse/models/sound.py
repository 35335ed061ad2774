"""Models of sound: waveforms in, and what their feature extractor does to these as part of the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lisse.libraries import extra
from lisse.models.repository import read_json, unreadable
from lisse.networks.answers import answer_of

WAVES = ("input_values", "input_features")


class Heard(nn.Module):
    """``network`` on waveforms ``[n, samples]`` at ``rate`` samples a second, in the form that it was trained with.

    ``scaled``: each waveform to mean 0 and variance 1 (wav2vec 2.0). With ``filters`` ``[frequencies, mel]``: the
    logarithm of its mel spectrogram in ``frames`` frames (Whisper), padded with silence or cut to that length; the
    decoder reads its first token alone. Both have derivatives.
    """

    filters: Tensor | None
    window: Tensor

    def __init__(
        self, network: nn.Module, *, rate: int, scaled: bool = True, filters: Tensor | None = None, hop: int = 160,
        frames: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.network, self.rate, self.scaled, self.hop, self.frames = network, rate, scaled, hop, frames
        self.register_buffer("filters", filters, False)
        self.register_buffer("window", torch.hann_window(1 if filters is None else 2 * (len(filters) - 1)), False)

    def forward(self, waveforms: Tensor) -> Any:
        """Waveforms ``[n, samples]`` to the network's logits, or its last hidden state."""
        if waveforms.ndim != 2 or not waveforms.is_floating_point():
            raise ValueError(
                f"Heard: waveforms must be floats [n, samples] at {self.rate} a second, got {waveforms.dtype} "
                f"{list(waveforms.shape)}. Mix channels down, resample, and divide integers by their largest."
            )
        if self.filters is None:
            sizes = waveforms.var(1, correction=0, keepdim=True).add(1e-7).sqrt()
            values = (waveforms - waveforms.mean(1, keepdim=True)) / sizes if self.scaled else waveforms
            return answer_of(self.network(input_values=values))
        config: Any = self.network.config
        inputs = {"input_features": self.spectrogram(waveforms).to(waveforms.dtype)}
        if getattr(config, "is_encoder_decoder", False) and hasattr(self.network, "get_decoder"):
            start = torch.full((len(waveforms), 1), int(config.decoder_start_token_id or 0), device=waveforms.device)
            inputs["decoder_input_ids"] = start
        return answer_of(self.network(**inputs))

    def spectrogram(self, waveforms: Tensor) -> Tensor:
        """log₁₀ of the mel spectrogram ``[n, mel, frames]``, at most 8 under its largest, plus 4, over 4."""
        assert self.filters is not None
        samples = self.frames * self.hop
        sound = waveforms.float()[:, :samples]
        sound = nn.functional.pad(sound, (0, samples - sound.shape[1]))
        waves = torch.stft(sound, len(self.window), self.hop, window=self.window.float(), return_complex=True)
        mel = self.filters.float().T @ waves[..., :-1].abs().square()
        loud = mel.clamp_min(1e-10).log10()
        return (torch.maximum(loud, loud.amax((1, 2), keepdim=True) - 8) + 4) / 4


def heard(network: nn.Module, folder: Path, name: str) -> Heard:
    """``network`` with the feature extractor that lies beside it."""
    settings = read_json(folder / "preprocessor_config.json")
    kind = str((settings or {}).get("feature_extractor_type", ""))
    if settings is None or kind not in ("Wav2Vec2FeatureExtractor", "WhisperFeatureExtractor"):
        raise ValueError(
            f"load_model: {name} must have a preprocessor_config.json of Wav2Vec2FeatureExtractor or "
            f"WhisperFeatureExtractor, got {kind or 'none'}. Fetch it too, or write a factory that takes waveforms."
        )
    try:
        extractor = getattr(extra("transformers", "hf", "load_model"), kind).from_dict(settings)
    except Exception as error:  # whatever an extractor raises on a config that makes no sense
        raise unreadable("preprocessor_config.json", error) from error
    rate = int(extractor.sampling_rate)
    if kind == "Wav2Vec2FeatureExtractor":
        return Heard(network, rate=rate, scaled=bool(extractor.do_normalize))
    filters = torch.as_tensor(extractor.mel_filters, dtype=torch.float32)
    return Heard(network, rate=rate, filters=filters, hop=extractor.hop_length, frames=extractor.nb_max_frames)
