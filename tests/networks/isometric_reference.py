"""The inputs of the reference values of the isometric loss."""

import torch

_i = torch.arange(1, 7, dtype=torch.float64)[:, None]
_j = torch.arange(1, 4, dtype=torch.float64)[None]
_h = torch.arange(1, 5, dtype=torch.float64)[:, None]
X = torch.sin(0.7 * _i * _j) + 0.1 * _i
W = torch.sin(1.1 * _h + 0.6 * _j)
B = 0.1 * _h[:, 0]
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
V = torch.cos(0.9 * torch.arange(1, 3, dtype=torch.float64)[:, None] * _h.T)
LOCAL, GLOBAL, ENTROPY = 0.379747183818, 0.769215775653, 1.152889102934


def phi(x):
    return torch.tanh(x @ W.T + B)


def jacobians(x):
    return (1 - phi(x) ** 2)[:, :, None] * W
