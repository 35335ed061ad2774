"""What imagecorruptions-imaug makes of one picture at ImageNet strength: numbers to hold ours against without it.

Where it is installed, ``python tests/maths/corruption_statistics.py`` prints TABLE anew.
"""

from __future__ import annotations

import numpy as np

SEVERITIES = (1, 3, 5)
LAGS = (1, 4)


def picture(side: int = 64) -> np.ndarray:
    """Bytes ``[side, side, 3]``: shaded ground, a disk, stripes, a box; every level from 0 to 255 in each channel."""
    row, column = np.mgrid[0:side, 0:side] / (side - 1)
    red = 0.5 + 0.5 * np.sin(7 * row + 3 * column)
    green = np.where((row - 0.4) ** 2 + (column - 0.6) ** 2 < 0.06, 0.9, 0.35 * row + 0.4 * column)
    blue = np.where(np.floor(column * 16) % 2 == 0, 0.25 + 0.5 * row, 0.6 - 0.4 * row)
    box = (row > 0.7) & (column < 0.35)
    image = np.stack([red, green, blue], -1)
    image[box] = (1.0, 0.95, 0.05)
    image[: side // 8, : side // 8] = 0.0
    return np.floor(image * 255 + 0.5).astype(np.uint8)


def statistics(made: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """For each corrupted picture ``[n, h, w, 3]`` (in bytes), of its difference from the clean one: mean, standard
    deviation, and root mean square of the change over 1 and over 4 columns, its spectrum in brief: ``[n, 4]``."""
    change = made.astype(np.float64) - clean
    axes = (1, 2, 3)
    steps = [np.sqrt(((change[:, :, lag:] - change[:, :, :-lag]) ** 2).mean(axes)) for lag in LAGS]
    return np.stack([change.mean(axes), change.std(axes), *steps], 1)


#: imagecorruptions-imaug 1.1.5 (opencv 5.0.0, scikit-image 0.26, Pillow 13.0), 2026-11-16, 300 draws each, NumPy's seed
#: 0: the means of the four statistics and their standard errors (zero: not random).
TABLE: dict[tuple[str, int], tuple[tuple[float, ...], tuple[float, ...]]] = {
    ("gaussian_noise", 1): ((-0.702, 19.097, 26.736, 26.780), (0.010, 0.007, 0.012, 0.012)),
    ("gaussian_noise", 3): ((-1.039, 40.893, 56.773, 56.869), (0.021, 0.015, 0.025, 0.025)),
    ("gaussian_noise", 5): ((-0.769, 74.855, 101.847, 102.304), (0.037, 0.028, 0.040, 0.042)),
    ("shot_noise", 1): ((-2.039, 21.018, 29.316, 29.411), (0.011, 0.009, 0.015, 0.015)),
    ("shot_noise", 3): ((-5.822, 44.411, 61.440, 61.675), (0.023, 0.019, 0.027, 0.029)),
    ("shot_noise", 5): ((-15.679, 79.081, 108.624, 109.169), (0.041, 0.030, 0.045, 0.043)),
    ("impulse_noise", 1): ((0.029, 25.748, 36.248, 36.274), (0.013, 0.050, 0.070, 0.073)),
    ("impulse_noise", 3): ((0.010, 44.686, 62.442, 62.550), (0.024, 0.054, 0.076, 0.074)),
    ("impulse_noise", 5): ((0.067, 77.508, 105.748, 106.231), (0.039, 0.049, 0.060, 0.066)),
    ("defocus_blur", 1): ((-0.617, 17.664, 18.634, 26.990), (0.000, 0.000, 0.000, 0.000)),
    ("defocus_blur", 3): ((-0.557, 27.367, 22.616, 44.090), (0.000, 0.000, 0.000, 0.000)),
    ("defocus_blur", 5): ((0.859, 32.005, 21.994, 42.315), (0.000, 0.000, 0.000, 0.000)),
    ("glass_blur", 1): ((-1.864, 22.359, 20.105, 32.112), (0.007, 0.022, 0.010, 0.027)),
    ("glass_blur", 3): ((-2.821, 32.821, 22.114, 42.330), (0.022, 0.042, 0.010, 0.040)),
    ("glass_blur", 5): ((-2.426, 30.716, 21.702, 41.109), (0.024, 0.037, 0.004, 0.022)),
    ("motion_blur", 1): ((0.259, 23.781, 19.813, 37.519), (0.032, 0.097, 0.019, 0.064)),
    ("motion_blur", 3): ((1.572, 36.760, 21.512, 42.424), (0.084, 0.242, 0.026, 0.051)),
    ("motion_blur", 5): ((2.821, 48.540, 21.969, 43.853), (0.163, 0.396, 0.020, 0.041)),
    ("zoom_blur", 1): ((-0.940, 19.799, 16.973, 27.387), (0.000, 0.000, 0.000, 0.000)),
    ("zoom_blur", 3): ((-1.214, 25.451, 17.704, 32.945), (0.000, 0.000, 0.000, 0.000)),
    ("zoom_blur", 5): ((-1.460, 30.288, 18.938, 36.098), (0.000, 0.000, 0.000, 0.000)),
    ("snow", 1): ((42.005, 26.136, 13.179, 23.218), (0.084, 0.108, 0.104, 0.175)),
    ("snow", 3): ((67.930, 43.794, 17.900, 36.105), (0.239, 0.207, 0.135, 0.254)),
    ("snow", 5): ((96.481, 58.450, 21.697, 41.177), (0.169, 0.106, 0.082, 0.127)),
    ("fog", 1): ((0.447, 52.269, 13.736, 28.912), (0.809, 0.191, 0.005, 0.040)),
    ("fog", 3): ((0.628, 63.182, 16.471, 34.975), (0.894, 0.239, 0.009, 0.055)),
    ("fog", 5): ((0.637, 67.626, 18.243, 38.802), (0.672, 0.238, 0.023, 0.075)),
    ("brightness", 1): ((12.455, 9.771, 2.758, 5.910), (0.000, 0.000, 0.000, 0.000)),
    ("brightness", 3): ((27.956, 27.608, 8.688, 18.210), (0.000, 0.000, 0.000, 0.000)),
    ("brightness", 5): ((37.695, 42.229, 14.095, 28.952), (0.000, 0.000, 0.000, 0.000)),
    ("contrast", 1): ((-0.517, 44.894, 13.531, 27.579), (0.000, 0.000, 0.000, 0.000)),
    ("contrast", 3): ((-0.494, 59.916, 18.061, 36.814), (0.000, 0.000, 0.000, 0.000)),
    ("contrast", 5): ((-0.479, 71.078, 21.434, 43.681), (0.000, 0.000, 0.000, 0.000)),
    ("elastic_transform", 1): ((-0.443, 24.267, 28.993, 35.124), (0.016, 0.049, 0.046, 0.059)),
    ("elastic_transform", 3): ((-0.407, 33.502, 37.596, 49.366), (0.022, 0.060, 0.050, 0.070)),
    ("elastic_transform", 5): ((-0.384, 40.306, 43.959, 59.985), (0.025, 0.066, 0.052, 0.076)),
    ("pixelate", 1): ((0.238, 11.815, 18.956, 15.475), (0.000, 0.000, 0.000, 0.000)),
    ("pixelate", 3): ((0.120, 16.778, 19.973, 19.873), (0.000, 0.000, 0.000, 0.000)),
    ("pixelate", 5): ((0.166, 17.474, 14.886, 16.526), (0.000, 0.000, 0.000, 0.000)),
    ("jpeg_compression", 1): ((-0.175, 17.091, 17.111, 23.653), (0.000, 0.000, 0.000, 0.000)),
    ("jpeg_compression", 3): ((0.948, 19.745, 18.273, 27.968), (0.000, 0.000, 0.000, 0.000)),
    ("jpeg_compression", 5): ((-0.363, 24.077, 19.425, 32.945), (0.000, 0.000, 0.000, 0.000)),
    ("speckle_noise", 1): ((-2.437, 19.304, 26.673, 26.794), (0.010, 0.010, 0.016, 0.016)),
    ("speckle_noise", 3): ((-6.813, 42.696, 58.253, 58.539), (0.022, 0.024, 0.034, 0.036)),
    ("speckle_noise", 5): ((-12.249, 65.850, 88.897, 89.441), (0.034, 0.030, 0.043, 0.045)),
    ("gaussian_blur", 1): ((-0.450, 12.078, 15.702, 18.411), (0.000, 0.000, 0.000, 0.000)),
    ("gaussian_blur", 3): ((-0.440, 24.498, 21.365, 38.806), (0.000, 0.000, 0.000, 0.000)),
    ("gaussian_blur", 5): ((-0.497, 32.958, 22.167, 42.897), (0.000, 0.000, 0.000, 0.000)),
    ("spatter", 1): ((1.747, 9.803, 5.913, 10.661), (0.051, 0.146, 0.079, 0.149)),
    ("spatter", 3): ((7.682, 18.862, 12.948, 23.678), (0.096, 0.134, 0.064, 0.153)),
    ("spatter", 5): ((-15.322, 42.515, 29.938, 53.430), (0.141, 0.184, 0.099, 0.209)),
    ("saturate", 1): ((48.190, 52.356, 16.351, 33.814), (0.000, 0.000, 0.000, 0.000)),
    ("saturate", 3): ((-23.476, 29.167, 12.077, 24.622), (0.000, 0.000, 0.000, 0.000)),
    ("saturate", 5): ((-29.529, 39.507, 20.782, 39.923), (0.000, 0.000, 0.000, 0.000)),
}


def main() -> None:
    """Print TABLE."""
    import imagecorruptions

    clean = picture()
    for name in imagecorruptions.get_corruption_names("all"):
        if name == "frost":  # needs its textures
            continue
        for severity in SEVERITIES:
            np.random.seed(0)  # noqa: NPY002 (the generator that it draws from)
            random = name not in FIXED
            made = np.stack(
                [
                    imagecorruptions.corrupt(clean, severity=severity, corruption_name=name)
                    for _ in range(300 if random else 1)
                ]
            )
            found = statistics(made, clean)
            error = found.std(0, ddof=1) / len(found) ** 0.5 if random else np.zeros(4)
            numbers = [", ".join(f"{value:.3f}" for value in values) for values in (found.mean(0), error)]
            print(f'    ("{name}", {severity}): (({numbers[0]}), ({numbers[1]})),')


#: The corruptions without chance.
FIXED = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)

if __name__ == "__main__":
    main()
