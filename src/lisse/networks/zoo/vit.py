"""Vision transformers for small images: TopoLip's ViT small, base and large (Table 1).

[dosovitskiy2021] with pre-layer-norm blocks, a class token and learned positions. Depth and patch are not printed in
TopoLip; they are the usual 12/12/24 and patch 4 on 32×32. The network is written here, so that it is the
same whatever else is installed; tests copy its weights into the transformers and timm networks and compare the outputs.
Parameter names are timm's, so timm's weights load.

==============  ========================  ================  ============
name            configuration             depth             32×32×3
==============  ========================  ================  ============
``vit_small``   6 heads, d = 384          12                21,342,346
``vit_base``    12 heads, d = 768         12                85,152,010
``vit_large``   16 heads, d = 1024        24                302,439,434
==============  ========================  ================  ============
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from lisse.networks.zoo.options import check_above_zero, check_divisible, check_sizes

ScoreReading = Literal["dot", "gauss_qk", "rbf_w", "eq11_literal"]
HiddenActivation = Literal["gelu", "relu"]


class SplitHeadAttention(nn.Module):
    r"""Multi-head self-attention with heads of width h = d/M ([vaswani2017]): ``proj(softmax(scores) v)``.

    ``reading`` chooses the scores, after [cao2022]: ``dot`` is its eq. 6, :math:`\langle q_i, k_j\rangle/\sqrt h`;
    ``gauss_qk`` is :math:`-\|q_i - k_j\|^2/(2\sqrt h)`, the third term of its eq. 12; ``eq11_literal`` is eq. 11 as
    printed, :math:`-\gamma\langle w_i, w_j\rangle` with w = q - k; ``rbf_w`` is the symmetric kernel that it means
    with eq. 13, :math:`-\gamma\|w_i - w_j\|^2`. Here :math:`\gamma = 1/(2\sqrt h)`. With ``qk_norm`` every q and k
    passes a layer norm first ([henry2020]; names as in timm).

    ``qkv.weight`` [3d, d] stacks query, key and value. The weights pass through the submodule ``softmax``: a hook on it
    sees the attention matrices [n, M, t, t]. With ``fused = True`` torch's fused kernel does the same up to rounding,
    and nobody sees the matrices: for training.
    """

    def __init__(self, width: int, heads: int, *, reading: ScoreReading = "dot", qk_norm: bool = False) -> None:
        super().__init__()
        self.width, self.heads, self.reading = width, heads, reading
        self.fused = False
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = nn.LayerNorm(width // heads) if qk_norm else None
        self.k_norm = nn.LayerNorm(width // heads) if qk_norm else None
        self.softmax = nn.Softmax(dim=-1)
        self.proj = nn.Linear(width, width)

    @property
    def plain(self) -> bool:
        """Whether this is the ordinary attention: eq. 6, without a norm of queries and keys."""
        return self.reading == "dot" and self.q_norm is None

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys (both after their norm) and values of ``x`` [n, t, d], each [n, M, t, h]."""
        return self.split(self.qkv(x))

    def split(self, stacked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same from what ``qkv`` gives [n, t, 3d]."""
        n, t, _ = stacked.shape
        q, k, v = stacked.reshape(n, t, 3, self.heads, self.width // self.heads).permute(2, 0, 3, 1, 4)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def sides(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        r"""a, b, c with scores :math:`\langle a_i, b_j\rangle/\sqrt h + c_j` up to what is constant in a row."""
        root = math.sqrt(self.width // self.heads)
        if self.reading == "dot":
            return q, k, None
        if self.reading == "gauss_qk":
            return q, k, -k.square().sum(-1) / (2 * root)
        w = q - k
        if self.reading == "eq11_literal":
            return -w / 2, w, None
        return w, w, -w.square().sum(-1) / (2 * root)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, t, d] to [n, t, d]."""
        n, t, d = x.shape
        q, k, v = self.projected(x)
        a, b, c = self.sides(q, k)
        if self.fused:
            bias = None if c is None else c[..., None, :].to(a.dtype).expand(*c.shape[:-1], t, t)
            out = scaled_dot_product_attention(a, b, v, attn_mask=bias)
        else:
            scores = a @ b.transpose(-1, -2) / math.sqrt(d // self.heads)
            out = self.softmax(scores if c is None else scores + c[..., None, :]) @ v
        mixed: torch.Tensor = self.proj(out.transpose(1, 2).reshape(n, t, d))
        return mixed


class MLP(nn.Module):
    """``fc2(gelu(fc1 x))``; with ReLU instead as TopoLip prints it."""

    def __init__(self, width: int, hidden: int, *, activation: HiddenActivation = "gelu") -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.ReLU() if activation == "relu" else nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, t, d] to [n, t, d]."""
        out: torch.Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class Block(nn.Module):
    """Pre-layer-norm transformer block: y = x + attn(norm1 x), then y + mlp(norm2 y)."""

    def __init__(
        self, width: int, heads: int, hidden: int, *, eps: float, reading: ScoreReading = "dot", qk_norm: bool = False,
        activation: HiddenActivation = "gelu",
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = SplitHeadAttention(width, heads, reading=reading, qk_norm=qk_norm)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = MLP(width, hidden, activation=activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, t, d] to [n, t, d]."""
        y = x + self.attn(self.norm1(x))
        out: torch.Tensor = y + self.mlp(self.norm2(y))
        return out


class PatchEmbedding(nn.Module):
    """Images [n, c, h, w] to tokens [n, (h/patch)·(w/patch), d], row by row."""

    def __init__(self, in_channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch, stride=patch)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        k = self.proj.kernel_size[0]
        # What torch.fx traces with is no tensor and has no sizes to check: bounds of whole networks are read that way.
        if isinstance(images, torch.Tensor) and (images.ndim != 4 or images.shape[-2] % k or images.shape[-1] % k):
            raise ValueError(
                f"PatchEmbedding: images must be [n, c, h, w] with sides that are multiples of patch={k}, got "
                f"{list(images.shape)}. Resize them."
            )
        tokens: torch.Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """Patches, class token, learned positions, pre-LN ``blocks``, ``norm``, a linear ``head`` on the class token."""

    def __init__(
        self, in_channels: int, size: int, classes: int, *, width: int, heads: int, depth: int, patch: int, eps: float,
        attention: ScoreReading = "dot", qk_norm: bool = False, activation: HiddenActivation = "gelu",
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch_embed = PatchEmbedding(in_channels, width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(
                Block(width, heads, 4 * width, eps=eps, reading=attention, qk_norm=qk_norm, activation=activation)
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width, eps=eps)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, size, size] to logits [n, classes]."""
        patches = self.patch_embed(images)
        if isinstance(patches, torch.Tensor) and patches.shape[1] + 1 != self.pos_embed.shape[1]:
            raise ValueError(
                f"VisionTransformer: images must give {self.pos_embed.shape[1] - 1} patches, got {patches.shape[1]} "
                f"from {list(images.shape)}. Resize them, or build the network with size=…"
            )
        tokens = torch.cat((self.cls_token.expand(len(patches), -1, -1), patches), dim=1) + self.pos_embed
        logits: torch.Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def vit(
    name: str, *, in_channels: int = 3, size: int = 32, classes: int = 10, width: int, heads: int, depth: int,
    patch: int = 4, eps: float = 1e-6, attention: ScoreReading = "dot", qk_norm: bool = False,
    activation: HiddenActivation = "gelu",
) -> VisionTransformer:  # fmt: skip
    """A vision transformer; ``name`` is what errors call it."""
    check_sizes(
        name, in_channels=in_channels, size=size, classes=classes, width=width, heads=heads, depth=depth, patch=patch
    )
    check_divisible(name, "size", size, "patch", patch)
    check_divisible(name, "width", width, "heads", heads)
    check_above_zero(name, eps=eps)
    return VisionTransformer(
        in_channels, size, classes, width=width, heads=heads, depth=depth, patch=patch, eps=eps, attention=attention,
        qk_norm=qk_norm, activation=activation,
    )  # fmt: skip
