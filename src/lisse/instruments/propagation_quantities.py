"""What Propagation's numbers mean."""

from __future__ import annotations

from lisse.profile import Quantity

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "scaled_ratio", "n·ρ", "Theorem 5.1 bounds this by a constant: the relative change of a layer times the "
        "patches per side.", r"n\,\|v' - v\| / (\|v\| + |v|_{BV})", "[cao2022] thm. 5.1", "log", "lower",
    ),
    Quantity(
        "ratio", "relative change ρ", "How much a layer changes its tokens, relative to their size and variation.",
        r"\rho = \|v' - v\| / (\|v\| + |v|_{BV})", "[cao2022] thm. 5.1", "log", "lower",
    ),
    Quantity(
        "change", "change ‖v′ − v‖", "How far the tokens move: root mean square over patches.",
        r"\big(\tfrac1p\sum_i\|v'_i - v_i\|^2\big)^{1/2}", "[cao2022] eq. 16", "log",
    ),
    Quantity(
        "norm", "norm ‖v‖", "How large the tokens are: root mean square over patches.",
        r"\big(\tfrac1p\sum_i\|v_i\|^2\big)^{1/2}", "[cao2022] eq. 16", "log",
    ),
    Quantity(
        "variation", "variation |v|_BV", "How much neighbouring patches differ, summed over the grid.",
        r"\tfrac1{n^2}\sum_i\big(\sum_{j\in N_i}\tfrac{n^2}2\|v_i - v_j\|^2\big)^{1/2}", "[cao2022] eq. 1", "log",
    ),
    Quantity(
        "similarity", "similarity (CKA)", "How alike two layers see the images: 1 up to rotation and scale, 0 if "
        "unrelated.", r"\mathrm{HSIC}(X, Y)/\sqrt{\mathrm{HSIC}(X, X)\,\mathrm{HSIC}(Y, Y)}", "[raghu2021]",
    ),
    Quantity(
        "attention_distance", "attention distance", "How many patches away the attention looks on average.",
        r"\tfrac1p\sum_{ij}A_{ij}\|x_i - x_j\|_2", "[cao2022] prop. 6.2", unit="patches",
    ),
    Quantity(
        "attention_mass", "attention nearby", "Share of the attention within a radius of patches (Chebyshev).",
        r"\tfrac1p\sum_i\sum_{|x_j - x_i|_\infty\le r}A_{ij}", "[cao2022] prop. 6.2",
    ),
    Quantity(
        "row_sum_error", "row sum error", "How far a row of the attention matrix is from summing to 1.",
        r"\max_i|\textstyle\sum_jA_{ij} - 1|", "[cao2022] eq. 15", "log", "lower",
    ),
    Quantity(
        "asymmetry", "asymmetry", "How far the kernel is from symmetric: 0 symmetric, 1 antisymmetric.",
        r"\|K - K^\top\|_F / 2\|K\|_F", "[cao2022] eq. 13",
    ),
    Quantity(
        "offset_defect", "not a convolution", "Share of the mean attention that depends on more than the offset of two "
        "patches.", r"\|\bar A - P\bar A\|_F/\|\bar A\|_F", "[cao2022] eq. 13",
    ),
    Quantity(
        "reading_distance", "distance to the RBF reading", "Mean total variation between the rows of the attention and "
        "those of the translation-invariant kernel on the same queries and keys.",
        r"\tfrac1{2p}\sum_{ij}|A_{ij} - A'_{ij}|", "[cao2022] eq. 11-13",
    ),
    Quantity(
        "norm_term", "share of a term of (12)", "Size of ½‖q‖², ½‖k‖² and ½‖q−k‖² among the three.",
        r"qk^\top = \tfrac12qq^\top + \tfrac12kk^\top - \tfrac12(q-k)(q-k)^\top", "[cao2022] eq. 12",
    ),
    Quantity(
        "key_spread", "spread of key norms", "What a softmax sees of the two norm terms of (12): 0 where all keys are "
        "equally long.", r"\mathrm{std}_j\,\|k_j\|^2/2\sqrt d", "[cao2022] eq. 12",
    ),
    Quantity(
        "added_rank", "rank that the FFN adds", "Directions after the block's second half that its first half did not "
        "have.", r"\mathrm{rank}[y; y'] - \mathrm{rank}\,y", "[cao2022] sec. 6",
    ),
    Quantity(
        "mask_mass", "attention to mask tokens", "Share of a decoder's attention that goes to mask tokens.",
        r"a_i = \sum_{j\in M}A_{ij}", "[cao2022] lemma 6.1",
    ),
    Quantity(
        "lemma_share", "Lemma 6.1, residual", "What of the output is left when mask tokens are taken out, in five "
        "constructions.", r"\|z_i - \hat z_i\|/\|z_i\|", "[cao2022] lemma 6.1", better="lower",
    ),
    Quantity(
        "lemma_residual", "Lemma 6.1, residual (absolute)", "The same in the units of the values.",
        r"\|z_i - \hat z_i\|", "[cao2022] lemma 6.1", "log", "lower",
    ),
    Quantity(
        "lemma_slope", "Lemma 6.1, slope in n", "Power of n with which the residual changes; the lemma says −1.",
        r"\|z_i - \hat z_i\| \propto n^{b}", "[cao2022] lemma 6.1", better="lower",
    ),
    Quantity(
        "span_residual", "outside the span (25)", "Share of a masked patch's output that no combination of unmasked "
        "values gives: head by head, and with one set of weights for all heads together.",
        r"\|z_i - P_{\mathrm{span}\,v_N}z_i\|/\|z_i\|", "[cao2022] eq. 25", better="lower",
    ),
    Quantity(
        "interpolation_error", "error of (26)", "The largest error among masked patches, and what (26) puts beside it.",
        r"\|Rv_i - u_i\|_{BV(\Omega_i)}", "[cao2022] eq. 26", "log", "lower",
    ),
    Quantity(
        "interpolation_constant", "constant of (26)", "The least C for which (26) holds for an image; the paper gives "
        "none.", r"\max_{i\in M}\|e_i\| / (\max_{j\in N}\|e_j\| + \|u\|/n)", "[cao2022] eq. 26",
    ),
)  # fmt: skip
