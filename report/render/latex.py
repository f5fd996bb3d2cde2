"""Plain Unicode text as LaTeX source."""

import re

from report.render.templating import symbol_pieces

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # A tabular's line end would read either of these as its argument.
    "[": "{[}",
    "*": "{*}",
    "`": r"\textasciigrave{}",
    "−": "$-$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "ω": r"$\omega$",
    "—": "---",
    "–": "--",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\dots{}",
    "\u00a0": "~",
    "\u200b": "{}",
    "\n": " ",
    "\t": " ",
}
# 8-bit LaTeX with utf8 input sets these without further packages.
_LATIN = {chr(code) for code in range(0xC0, 0x100)} - {"×", "÷", "Ð", "ð", "Þ", "þ"}
_MATH = {
    "Σ": r"\sum",
    "Ĩ": r"\tilde{I}",
    "λ": r"\lambda ",
    "ℓ": r"\ell ",
    "×": r"\times ",
    "−": "-",
}


# Fonts join these pairs into one sign, which would change a command such as --config.
_LIGATURE = re.compile(r"(?<=-)(?=-)|(?<=,)(?=,)")
_APART = "\u200b"
_SPELLED = {
    "−": "-", "→": "->", "±": "+-", "×": "x", "≥": ">=", "≤": "<=", "—": "-", "–": "-", "‘": "'",
    "’": "'", "“": '"', "”": '"', "…": "...", "\u00a0": " ", "\n": " ", "\r": " ", "\t": " ",
}  # fmt: skip


class Tex(str):
    """LaTeX source that must not be escaped again."""

    __slots__ = ()


def escape(text: object) -> Tex:
    """Escape for running text; a character that plain LaTeX lacks becomes its code point."""
    if isinstance(text, Tex):
        return text
    return Tex("".join(_escaped(character) for character in _LIGATURE.sub(_APART, str(text))))


def code(text: object) -> Tex:
    """A path, hash or command in typewriter type."""
    return Tex(rf"\texttt{{{breakable(text)}}}")


def breakable(text: object) -> Tex:
    """Escape for running text with paths, which may break after their punctuation, and hashes."""
    breaks = r"(?<=/)(?=\w)|(?<=\\_)|(?<=[0-9a-f]{16})(?=[0-9a-f])"
    return Tex(re.sub(breaks, r"\\allowbreak{}", escape(text)))


def comment(text: str) -> Tex:
    """One line of comment in plain ASCII, whatever ends a line in the text."""
    plain = (c if " " <= c <= "~" else _SPELLED.get(c, f"[U+{ord(c):04X}]") for c in text)
    return Tex(f"% {''.join(plain)}")


def plain(text: str) -> Tex:
    """Escape for the PDF's own title and subject, which hold words and no mathematics."""
    escaped = escape("".join(_SPELLED.get(character, character) for character in text))
    named = re.sub(r"\$\\(\w+)\$", r"\1", escaped)
    return Tex(named.replace("''", r"\textquotedbl{}"))


def _escaped(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if " " <= character <= "~" or character in _LATIN:
        return character
    return f"{{[}}U+{ord(character):04X}]"


def formula(text: str) -> Tex:
    """A formula such as ``O(T^2 d)`` or ``Σ_{j<i} F_{ij}`` in mathematics.

    Text with other signs than a formula's is no formula and is escaped.
    """
    if not re.fullmatch(r"[\w()/^.,+=<>×{} −-]+", text) or text.count("{") != text.count("}"):
        return escape(text)
    source = re.sub(r"\^([−-]?[0-9.]+)", r"^{\1}", text)
    for sign, command in _MATH.items():
        source = source.replace(sign, command)
    return Tex(f"${source}$")


def rich(text: str) -> Tex:
    """Running text with formulas between dollar signs."""
    pieces = text.split("$")
    return Tex("".join(formula(p) if i % 2 else escape(p) for i, p in enumerate(pieces)))


def symbols(text: str) -> Tex:
    """Running text in which a variable with its index, such as F_ii, is a formula."""
    return Tex("".join(formula(p) if symbol else escape(p) for p, symbol in symbol_pieces(text)))


def header(text: str) -> Tex:
    """A column heading; its lines stack."""
    lines = [rich(line) for line in text.split("\n")]
    if len(lines) == 1:
        return lines[0]
    return Tex(r"\begin{tabular}[b]{@{}c@{}}" + r"\\".join(lines) + r"\end{tabular}")
