"""Formulas of quantities as MathML, which every current browser draws by itself.

A small part of LaTeX: what the quantities are written in. A formula with anything else is shown as its source.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "eta": "η", "theta": "θ",
    "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "phi": "φ", "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Delta": "Δ", "Gamma": "Γ", "Lambda": "Λ",
    "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω", "Theta": "Θ", "ell": "ℓ", "infty": "∞", "partial": "∂",
    "nabla": "∇", "prime": "′", "emptyset": "∅", "zeta": "ζ", "iota": "ι", "Pi": "Π",
}  # fmt: skip
_OPERATORS = {
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "cdot": "·", "times": "×", "in": "∈",
    "notin": "∉", "to": "→", "mapsto": "↦", "approx": "≈", "sim": "∼", "propto": "∝", "pm": "±", "mid": "|",
    "langle": "⟨", "rangle": "⟩", "lVert": "‖", "rVert": "‖", "Vert": "‖", "|": "‖", "lvert": "|", "rvert": "|",
    "vert": "|", "{": "{", "}": "}", "circ": "∘", "subset": "⊂", "cup": "∪", "cap": "∩", "top": "⊤", "ldots": "…",
    "dots": "…", "cdots": "⋯", "colon": ":", "ll": "≪", "gg": "≫", "otimes": "⊗", "setminus": "∖", "ast": "∗",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "equiv": "≡", "forall": "∀", "exists": "∃",
    "Rightarrow": "⇒",
    "perp": "⊥", "parallel": "∥", "star": "⋆", "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "big": "", "Big": "",
}  # fmt: skip
_LARGE = {"sum": "∑", "prod": "∏", "int": "∫"}
_NAMES = {
    name: name
    for name in ("max", "min", "sup", "inf", "log", "ln", "exp", "det", "diag", "arg", "lim", "sin", "cos", "Pr", "dim",
                 "tr")
}  # fmt: skip
_UNDER = {"sum", "prod", "max", "min", "sup", "inf", "lim"}
_TEXTS = ("mathrm", "text", "operatorname", "mathsf", "textrm", "mathit", "textbf", "mathbf", "mathcal", "mathbb")
_ACCENTS = {
    "hat": "^",
    "bar": "¯",
    "tilde": "~",
    "overline": "¯",
    "widehat": "^",
    "dot": "˙",
    "widetilde": "~",
    "vec": "→",
}
_SPACES = (",", ";", "!", ":", " ", "quad", "qquad", "displaystyle", "textstyle", "limits", "nolimits")
_TOKEN = re.compile(r"\\([A-Za-z]+|.)|(\d+(?:\.\d+)?)|(\s+)|(.)", re.DOTALL)


class _Unknown(ValueError):
    pass


def formula_html(latex: str) -> Markup:
    """``<math>`` for a formula, or ``<code>`` with its source where it uses more than is understood here."""
    if not latex:
        return Markup("")
    try:
        reader = _Reader(latex)
        inside = reader.row(None)
        if reader.position < len(reader.tokens):
            raise _Unknown(latex)
    except _Unknown:
        return Markup("<code>{}</code>").format(latex)
    return Markup(f'<math display="block"><mrow>{inside}</mrow></math>')


class _Reader:
    """Reads tokens one after the other: ``(kind, text)`` with kind ``command``, ``number`` or ``sign``."""

    def __init__(self, latex: str) -> None:
        self.tokens = [
            ("command", match[1]) if match[1] else ("number", match[2]) if match[2] else ("sign", match[4])
            for match in _TOKEN.finditer(latex)
            if not match[3]
        ]
        self.position = 0

    def next(self) -> tuple[str, str]:
        if self.position >= len(self.tokens):
            raise _Unknown("ends too early")
        self.position += 1
        return self.tokens[self.position - 1]

    def is_next(self, *signs: str) -> bool:
        return self.position < len(self.tokens) and self.tokens[self.position] in [("sign", sign) for sign in signs]

    def row(self, end: tuple[str, str] | None) -> str:
        """Atoms with their scripts up to ``end``, which is read too."""
        atoms: list[str] = []
        while self.position < len(self.tokens):
            if end is not None and self.tokens[self.position] == end:
                self.position += 1
                return "".join(atoms)
            atoms.append(self.scripted())
        if end is not None:
            raise _Unknown("not closed")
        return "".join(atoms)

    def scripted(self) -> str:
        start = self.tokens[self.position]
        base = self.atom()
        below = above = ""
        while self.is_next("_", "^", "'"):
            _, sign = self.next()
            if sign == "'":
                above += "<mo>′</mo>"
            elif sign == "_":
                below = self.argument()
            else:
                above = self.argument()
        if not below and not above:
            return base
        under = start[0] == "command" and start[1] in _UNDER
        name = ("munder" if under else "msub") if not above else ("mover" if under else "msup") if not below else (
            "munderover" if under else "msubsup"
        )  # fmt: skip
        return (
            f"<{name}><mrow>{base}</mrow>"
            + "".join(f"<mrow>{script}</mrow>" for script in (below, above) if script)
            + f"</{name}>"
        )

    def argument(self) -> str:
        """What follows ``_``, ``^`` or a command: a group, or one token (of a number, its first digit)."""
        if self.is_next("{"):
            self.position += 1
            return self.row(("sign", "}"))
        kind, words = self.tokens[self.position] if self.position < len(self.tokens) else ("", "")
        if kind == "number" and len(words) > 1:
            self.tokens[self.position] = ("number", words[1:])
            return f"<mn>{words[0]}</mn>"
        return self.atom()

    def words(self) -> str:
        if not self.is_next("{"):
            return self.next()[1]
        self.position += 1
        words = []
        while not self.is_next("}"):
            words.append(self.next()[1])
        self.position += 1
        return "".join(words)

    def atom(self) -> str:
        kind, words = self.next()
        if kind == "number":
            return f"<mn>{words}</mn>"
        if kind == "command":
            return self.command(words)
        if words == "{":
            return f"<mrow>{self.row(('sign', '}'))}</mrow>"
        if words in "}_^&#$%":
            raise _Unknown(words)
        if words.isalpha():
            return f"<mi>{escape(words)}</mi>"
        sign = {"-": "−", "*": "∗", "~": " "}.get(words, words)
        return f"<mo>{escape(sign)}</mo>"

    def command(self, name: str) -> str:
        for signs, tag in ((_SYMBOLS, "mi"), (_OPERATORS, "mo"), (_LARGE, "mo"), (_NAMES, "mi")):
            if name in signs:
                return f"<{tag}>{escape(signs[name])}</{tag}>"
        if name in ("left", "right"):
            kind, words = self.next()
            sign = "" if words == "." else _OPERATORS.get(words, words) if kind == "command" else words
            return f'<mo stretchy="true">{escape(sign)}</mo>'
        if name in ("frac", "tfrac", "dfrac"):
            return f"<mfrac><mrow>{self.argument()}</mrow><mrow>{self.argument()}</mrow></mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.argument()}</msqrt>"
        if name in _TEXTS:
            return f"<mi>{escape(self.words())}</mi>"
        if name in _ACCENTS:
            return f'<mover accent="true"><mrow>{self.argument()}</mrow><mo>{_ACCENTS[name]}</mo></mover>'
        if name in _SPACES:
            return ""
        raise _Unknown(name)
