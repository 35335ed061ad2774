"""What the rows of Contraction mean."""

from __future__ import annotations

from lisse.profile import Quantity

_PAPER = "[vuckovic2021]"

# In the order in which a table shows them: the first eight are what one looks at first.
QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "distance_before",
        "distance before",
        "How far apart the two inputs of a pair are where they enter attention: the mean transport distance.",
        r"W_p(m(X), m(Y))",
        f"{_PAPER} sec. 5",
        scale="log",
    ),
    Quantity(
        "distance_after",
        "distance after",
        "How far apart the same pair is behind attention, before the residual is added.",
        r"W_p(m(\tilde X), m(\tilde Y))",
        f"{_PAPER} sec. 5",
        scale="log",
    ),
    Quantity(
        "stretch",
        "largest stretch",
        "The largest ratio of the distance after to the distance before over all pairs: the layer can do at least "
        "this.",
        r"\max \frac{W_p(m(\tilde X), m(\tilde Y))}{W_p(m(X), m(Y))} \le \tau",
        f"{_PAPER} def. 7",
        scale="log",
        better="lower",
    ),
    Quantity(
        "log_bound",
        "bound of the weights (log10)",
        "The proved bound of the stretch of any two inputs whose tokens are no larger than those seen, as a power "
        "of ten.",
        r"\log_{10}\sum_h \|W^O_hV_h\|\,\frac{(\|G\|_{Lip,\infty}+\|G\|_{\infty,Lip})\mathrm{diam}+\|G\|_\infty}"
        r"{\varepsilon(G)}",
        f"{_PAPER} thm. 1, corrected",
        better="lower",
    ),
    Quantity(
        "log_looseness",
        "bound over stretch (log10)",
        "How many powers of ten the bound of the weights is above the largest stretch that was seen.",
        r"\log_{10}(\text{bound} / \text{stretch})",
        better="lower",
    ),
    Quantity(
        "log_hull_bound",
        "bound on the tokens' hull (log10)",
        "The proved bound for inputs made of the very tokens of a pair, or of anything between them: a power of "
        "ten, the largest over a few pairs.",
        r"\log_{10}\sum_h\Bigl[\tfrac12\mathrm{diam}(W_hE)\max_k\mathrm{range}(z_k) + e^{r}(\|W_h\| + "
        r"\|g\|_\infty\mathrm{diam}(W_hE))\Bigr]",
        f"{_PAPER} thm. 1, corrected, on the convex hull",
        better="lower",
    ),
    Quantity(
        "local_stretch",
        "local stretch",
        "The largest Euclidean stretch of a small change of the tokens, at a few inputs (from below).",
        r"\max_X\|\partial\tilde X / \partial X\|_2",
        scale="log",
        better="lower",
    ),
    Quantity(
        "local_bound",
        "local bound",
        "The proved bound of the local stretch at the same inputs, from their attention rows and the spread of "
        "their values.",
        r"\max_X\sum_h\Bigl[\|P\|\|W_h\| + \max_i\|\mathrm{Cov}_i(v,z)\|_F + \bigl(\max_j\sum_iP_{ij}"
        r"\|\mathrm{Cov}_i(v)\|_F\|g_i\|^2\bigr)^{1/2}\Bigr]",
        scale="log",
        better="lower",
    ),
    Quantity(
        "radius",
        "largest token",
        "The largest Euclidean norm of a token that enters this layer: the radius of the ball in log_bound.",
        r"\max_i\|x_i\|_2",
        scale="log",
    ),
    Quantity(
        "stretch_mean",
        "mean stretch",
        "The mean over pairs of the ratio of the distance after to the distance before.",
        r"\frac1n\sum \frac{W_p(m(\tilde X), m(\tilde Y))}{W_p(m(X), m(Y))}",
        f"{_PAPER} def. 7",
        scale="log",
        better="lower",
    ),
    Quantity(
        "log_printed_bound",
        "printed bound (log10)",
        "What the paper prints for its theorem 1, as a power of ten. Its proof has a gap, and it can be too small.",
        r"\log_{10}\sum_h \|W^O_hV_h\|\,\frac{2d(\|G\|_{Lip,\infty}+\|G\|_{\infty,Lip})\mathrm{diam}}"
        r"{\varepsilon(G)}",
        f"{_PAPER} thm. 1",
    ),
    Quantity(
        "log_sequence_bound",
        "bound for sequences (log10)",
        "The proved Euclidean bound for inputs of one length, the longest here; it holds under any mask. A power "
        "of ten.",
        r"\log_{10}\|W^O\|\sqrt{\textstyle\sum_h\|V_h\|^2(\sqrt n + R^2\|A_h\| + \sqrt nRG_h)^2}",
        "[castin2024] thm. 3.3, sharpened",
        better="lower",
    ),
    Quantity(
        "local_stretch_mean",
        "mean local stretch",
        "The Euclidean stretch of the steepest small change of the tokens, in the mean over a few inputs.",
        r"\frac1n\sum_X\|\partial\tilde X / \partial X\|_2",
        scale="log",
        better="lower",
    ),
    Quantity(
        "local_token_bound",
        "local bound (transport)",
        "The proved bound of the stretch in transport distance of a small move of tokens, at the same inputs.",
        r"\max_X\sum_h\max_j\Bigl[\|W_h\|\sum_iP_{ij} + S_j\max_k\mathrm{Var}_j(z_k)^{1/2} + \sum_iP_{ij}"
        r"\|v_j - \bar v_i\|_1\|g_i\|_\infty\Bigr]",
        scale="log",
        better="lower",
    ),
    Quantity(
        "key_stretch",
        "stretch in the keys",
        "Cross-attention: how far the furthest query's output moves over how far the keys moved (other encoder "
        "outputs, or noise on them).",
        r"\max_q\frac{\|f(q, X) - f(q, Y)\|}{W_p(m(X), m(Y))}",
        f"{_PAPER} prop. 3",
        scale="log",
        better="lower",
    ),
    Quantity(
        "log_key_bound",
        "bound in the keys (log10)",
        "The proved bound of the stretch in the keys, on the ball that queries and keys reach: a power of ten.",
        r"\log_{10}\sum_h\|W_h\|\frac{\|G(q,\cdot)\|_{Lip}\mathrm{diam}+\|G(q,\cdot)\|_\infty}{\varepsilon(G)}",
        f"{_PAPER} prop. 3, corrected",
        better="lower",
    ),
    Quantity(
        "log_key_hull_bound",
        "bound on the keys' hull (log10)",
        "The proved bound of the stretch in the keys for these very queries and keys, or anything between the "
        "keys: a power of ten.",
        r"\log_{10}\max_q\sum_he^{r_q}(\|W_h\| + \|g_q\|\mathrm{diam}(W_hE))",
        f"{_PAPER} prop. 3, corrected, on the convex hull",
        better="lower",
    ),
    Quantity(
        "log_printed_key_bound",
        "printed bound in the keys (log10)",
        "What the paper prints for its proposition 3, as a power of ten. It is no theorem.",
        r"\log_{10}\sum_h d\|W_h\|\frac{2\|G(q,\cdot)\|_{Lip}\mathrm{diam}}{\varepsilon(G)}",
        f"{_PAPER} prop. 3",
    ),
    Quantity(
        "local_key_bound",
        "local bound in the keys",
        "The proved bound of the stretch of small moves of the keys, at a few inputs.",
        r"\max_X\sum_h\max_{i,j} nP_{ij}(\|W_h\| + \|v_j - \bar v_i\|\|g_i\|)",
        scale="log",
        better="lower",
    ),
    Quantity(
        "distance",
        "distance along depth",
        "How far apart the two inputs of a pair are at the entry of the network's blocks and behind each of them.",
        r"W_p(m(X_l), m(Y_l))",
        f"{_PAPER} sec. 5",
        scale="log",
    ),
    Quantity(
        "block_stretch",
        "stretch of a block",
        "The largest ratio of a pair's distance behind a whole block to that before it.",
        r"\max \frac{W_p(m(X_l), m(Y_l))}{W_p(m(X_{l-1}), m(Y_{l-1}))}",
        f"{_PAPER} def. 7",
        scale="log",
        better="lower",
    ),
    Quantity(
        "output_distance",
        "distance of the embeddings",
        "How far apart the embeddings of a pair are behind the last block.",
        r"\|e(X) - e(Y)\|",
        f"{_PAPER} fig. 2a",
        scale="log",
    ),
    Quantity(
        "correlation",
        "correlation of distances",
        "Whether pairs that are further apart at the entry are so at the end: the correlation of the transport "
        "distance before the first block with the distance of the embeddings behind the last.",
        r"\mathrm{corr}(W_p(m(X_0), m(Y_0)), \|e(X) - e(Y)\|)",
        f"{_PAPER} fig. 2a",
    ),
)
