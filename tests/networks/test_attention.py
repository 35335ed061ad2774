"""Attention sites: recognised by their projections, checked by their outputs; masks, tables, shared keys."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from lisse.networks.attention import (
    AttentionWeights,
    adds_a_table,
    attended,
    attention_sites,
    from_rows,
    masked,
    mode_of,
)
from lisse.taps import feed, still, tapped

transformers = pytest.importorskip("transformers")


def weights(seed=0, heads=2, h=3, d=4, out=5):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return AttentionWeights(
        draw(heads, h, d), draw(heads, h, d), draw(heads, h, d), draw(heads, h), draw(heads, h), draw(out, heads * h),
        draw(out), 0.7,
    )  # fmt: skip


def test_attended_is_scaled_dot_product_attention():
    w = weights()
    x, y = torch.randn(2, 3, 4).double(), torch.randn(2, 6, 4).double()
    added = masked(torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]), 3, causal=False)
    rows, heads, out = attended(w, x, y, added)
    for h in range(2):
        q, k, v = x @ w.query[h].T + w.query_bias[h], y @ w.key[h].T, y @ w.value[h].T + w.value_bias[h]
        expected = scaled_dot_product_attention(q, k, v, attn_mask=added[:, 0], scale=0.7)
        torch.testing.assert_close(heads[:, h], expected)
    torch.testing.assert_close(out, torch.cat([heads[:, 0], heads[:, 1]], -1) @ w.out.T + w.out_bias)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 2, 3).double())
    torch.testing.assert_close(from_rows(w, y, rows), out)


def test_masks_by_hand():
    inf = float("inf")
    found = masked(torch.tensor([[1, 1, 0]]), 3, causal=True)[0, 0]
    assert found.tolist() == [[0, -inf, -inf], [0, 0, -inf], [0, 0, -inf]]
    # Left padding leaves the first query nothing: it looks at everything, and nobody reads it.
    found = masked(torch.tensor([[0, 1, 1]]), 3, causal=True)[0, 0]
    assert found.tolist() == [[0, 0, 0], [-inf, 0, -inf], [-inf, 0, 0]]


class Odd(nn.Module):
    """Attention written by a person, with a twist or without."""

    def __init__(self, twist=""):
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.twist = 2, twist
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(2, 5, 5))

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        if self.twist == "norm":
            q = q / q.norm(dim=-1, keepdim=True)
        logits = q @ k.transpose(-1, -2) / 2
        if self.twist == "table":
            logits = logits + self.table
        if self.twist == "causal":
            logits = logits.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), -torch.inf)
        rows = logits.softmax(-1)
        return self.proj((rows @ v).transpose(1, 2).reshape(n, t, 8)), rows


class Around(nn.Module):
    def __init__(self, twist):
        super().__init__()
        self.norm, self.attention, self.head = nn.LayerNorm(8), Odd(twist), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(x + self.attention(self.norm(x))[0])


def seen_at(model, inputs, sites):
    seen = {}
    taps = [tap for site in sites for tap in site.taps]
    with still(model), tapped(model, taps, lambda tap, value: seen.__setitem__(tap, value.clone())):
        feed(model, inputs)
    return seen


@pytest.mark.parametrize(
    ("twist", "mode", "table"),
    [("", "full", True), ("causal", "causal", True), ("table", None, True), ("norm", None, False)],
)
def test_a_layer_is_what_its_output_says(twist, mode, table):
    model, x = Around(twist), torch.randn(4, 5, 8)
    sites, reasons = attention_sites(model, x)
    assert (len(sites), reasons) == (1, [])
    site = sites[0]
    assert site.name == "attention"
    seen, all_ = seen_at(model, x, sites), torch.ones(4, 5)
    entry = seen[site.entry]
    torch.testing.assert_close(entry, model.norm(x))  # behind the norm
    assert mode_of(site, entry, entry, all_, all_, seen[site.out]) == mode
    rows = model.attention(entry)[1].detach()
    assert adds_a_table(site, entry, entry, all_, rows) == table
    assert not adds_a_table(site, entry[:1], entry[:1], all_[:1], rows[:1])  # one sample proves nothing


def test_keys_that_several_heads_share_are_repeated():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, intermediate_size=16,
        vocab_size=20,
    )  # fmt: skip
    model = transformers.LlamaModel(config)
    sites, _ = attention_sites(model, {"input_ids": torch.randint(0, 20, (3, 4))})
    k = model.layers[0].self_attn.k_proj.weight.detach().double()
    assert sites[0].weights.key.shape == (4, 4, 16)
    torch.testing.assert_close(sites[0].weights.key[1], k[:4])
    torch.testing.assert_close(sites[0].weights.key[2], k[4:])


def test_a_layer_that_is_called_twice_is_two_sites():
    config = transformers.AlbertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=16, vocab_size=20,
        embedding_size=8,
    )  # fmt: skip
    model = transformers.AlbertModel(config)
    sites, _ = attention_sites(model, {"input_ids": torch.randint(0, 20, (3, 4))})
    assert [site.name[-2:] for site in sites] == ["#0", "#1"]
    assert sites[0].entry.call == 0
    assert sites[1].out.call == 1


def test_windows_are_told_and_no_attention_is_no_site():
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=2, hidden_size=8
    )
    sites, reasons = attention_sites(transformers.SwinModel(config), torch.rand(3, 3, 16, 16))
    assert sites == []
    assert any("folds 16 parts of each sample into the batch" in reason for reason in reasons)
    assert attention_sites(nn.Sequential(nn.Linear(3, 2)), torch.rand(3, 3)) == ([], [])


def test_timm_is_read_like_the_rest():
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3).eval()
    x = torch.rand(3, 3, 32, 32)
    sites, _ = attention_sites(model, x)
    assert len(sites) == 2
    seen = seen_at(model, x, sites)
    for site in sites:
        ones = torch.ones(seen[site.entry].shape[:2])
        assert mode_of(site, seen[site.entry], seen[site.entry], ones, ones, seen[site.out]) == "full"


def test_norms_through_the_small_factors_are_certain():
    """Rank 2 in 16 dimensions: the norms of the products, from above, to nine digits."""
    w = weights(heads=3, h=2, d=16, out=16)
    values, a, biases, out = w.norms()
    for h in range(3):
        exact = 0.7 * float(torch.linalg.matrix_norm(w.key[h].T @ w.query[h], 2))
        assert exact <= a[h] <= exact * (1 + 1e-4)
        assert values[h] >= float(torch.linalg.matrix_norm(w.value[h], 2)) * (1 - 1e-12)
        assert biases[h] == pytest.approx(0.7 * float((w.key[h].T @ w.query_bias[h]).norm()))
    assert out >= float(torch.linalg.matrix_norm(w.out, 2)) * (1 - 1e-12)
