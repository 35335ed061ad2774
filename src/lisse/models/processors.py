"""What an image processor of transformers does to an image, as mean, std and size for [0, 1] images."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from lisse.libraries import extra
from lisse.models.repository import unreadable


def image_statistics(
    config: dict[str, Any] | None, options: dict[str, Any], channels: int, name: str
) -> tuple[Any, Any]:
    """Mean and std for [0, 1] images from ``preprocessor_config.json``.

    What the file leaves out has the default of the processor's class, which is not the same for all of them: such a
    file is read by that very class. Image processors work on 0…255: y = (r·x - o - m)/s with r the rescale factor, so
    that for [0, 1] images the mean is (m + o)/(255 r) and the std s/(255 r). EfficientNet's processor divides by s once
    more (``include_top``) and may shift by one (``rescale_offset``). One image goes through the real processor, and if
    it does anything else (MobileViT's swaps red and blue) that is an error.
    """
    if "mean" in options or "std" in options:
        return options.get("mean"), options.get("std")
    if config is None:
        raise ValueError(
            f"load_model: {name} must have a preprocessor_config.json, got none, and a wrong normalisation gives wrong "
            "numbers. Add ?mean=…&std=… (numbers, or imagenet, cifar10, none)."
        )
    processor = _processor(config)
    config = config if processor is None else {**config, **processor.to_dict()}
    complete = config.get("image_mean") and config.get("image_std")
    if processor is None and config.get("do_normalize", True) and not complete:
        raise ValueError(
            f"load_model: the preprocessor_config.json of {name} must give image_mean and image_std, got neither them "
            f"nor a processor that is known here ({_kind(config) or 'none'}). Add ?mean=…&std=…"
        )
    # Only some classes know these two; others ignore them.
    defaults = {} if processor is None else type(processor)().to_dict()
    m, s = (0.0,) * channels, (1.0,) * channels
    if config.get("do_normalize", processor is None):
        m, s = (_channels(config.get(key), channels, name) for key in ("image_mean", "image_std"))
    if "include_top" in defaults and config["include_top"]:
        s = tuple(a * b for a, b in zip(s, _channels(config.get("image_std"), channels, name), strict=True))
    rescaled = config.get("do_rescale", processor is None)
    factor = 255.0 * float(config.get("rescale_factor") or 1 / 255) if rescaled else 255.0
    offset = 1.0 if rescaled and "rescale_offset" in defaults and config["rescale_offset"] else 0.0
    mean, std = tuple((value + offset) / factor for value in m), tuple(value / factor for value in s)
    if processor is not None:
        _check(processor, mean, std, name)
    return mean, std


def image_size(config: dict[str, Any] | None, options: dict[str, Any], model_config: Any) -> tuple[int, int]:
    """Height and width: ``?size=``, else the crop or size of the preprocessor, else the model's ``image_size``."""
    size: Any = options.get("size")
    if size is None and config is not None:
        cropped = config.get("do_center_crop", False) and config.get("crop_size")
        size = cropped or config.get("size")
    if size is None:
        size = getattr(model_config, "image_size", None)
    if isinstance(size, dict):
        if "height" in size:
            size = (size["height"], size["width"])
        else:
            size = size.get("shortest_edge") or size.get("longest_edge")
    pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ValueError(f"load_model: the image size must be known, got {size!r}. Add ?size=224.")
    return pair[0], pair[1]


def settled(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """``config`` with its class's own choice of a centre crop, where it does not make one itself."""
    processor = None if config is None else _processor(config)
    if config is None or processor is None:
        return config
    settings = processor.to_dict()
    return {**{key: settings[key] for key in ("do_center_crop", "crop_size") if key in settings}, **config}


def _kind(config: dict[str, Any]) -> str:
    return str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")


def _processor(config: dict[str, Any]) -> Any:
    """The image processor of transformers that the config names, made from it; ``None`` where there is no such."""
    transformers = extra("transformers", "hf", "load_model")
    stem = re.sub(r"(FeatureExtractor|ImageProcessor(Fast|Pil)?)$", "", _kind(config))
    if not stem.isidentifier():
        return None
    # The one that works on NumPy arrays where there are two: it needs no torchvision.
    for name in (f"{stem}ImageProcessorPil", f"{stem}ImageProcessor"):
        try:
            cls: Any = getattr(transformers, name, None)
        except (ImportError, RuntimeError):
            continue
        if isinstance(cls, type) and issubclass(cls, transformers.ImageProcessingMixin):
            try:
                return cls.from_dict(config)  # type: ignore[attr-defined]
            except ImportError:
                continue
            except Exception as error:  # whatever a processor raises on a config that makes no sense
                raise unreadable("preprocessor_config.json", error) from error
    return None


def _check(processor: Any, mean: tuple[float, ...], std: tuple[float, ...], name: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, len(mean)), dtype=np.uint8)
    try:
        unchanged = {"do_resize": False, "do_center_crop": False, "input_data_format": "channels_last"}
        actual = np.asarray(processor(image, return_tensors="np", **unchanged)["pixel_values"], np.float64).reshape(-1)
    except Exception:  # a processor for something else than one image, or for other channels
        return
    expected = ((image / 255 - mean) / std).transpose(2, 0, 1).reshape(-1)
    if actual.shape != expected.shape or not np.allclose(actual, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"load_model: the image processor of {name} must only rescale and normalise, got "
            f"{type(processor).__name__}, which does more. Give ?mean=…&std=… if you do the rest, or write a "
            "factory that does it."
        )


def _channels(value: Any, channels: int, name: str) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    values = values * channels if len(values) == 1 else values
    if len(values) != channels or not all(isinstance(v, (int, float)) for v in values):
        raise unreadable(name, f"image_mean and image_std of its preprocessor must have {channels} numbers each")
    return tuple(float(v) for v in values)
