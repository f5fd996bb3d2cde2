"""The notation in which scenes and plots are written, and the plot as a record.

A scene is a paragraph in the making. A blank line ends a sentence group, of which exactly one
alternative is told; `|` stands between the alternatives, and one of them may be empty. A word in
braces is a slot: bound once for the whole story (`{hero}`, `{thing}`), or the name of an entry of
`relation.data.tales.phrases.PHRASES`, drawn afresh at each use. A capital (`{Soon}`) capitalises
what fills the slot, and `a_` before it (`{a_thing}`) sets its article. In the text of a plot a line
of `---` ends a paragraph; `--- way` or `--- wait` marks a place where an interlude of that kind may
be put in.
"""

from dataclasses import dataclass, field

Alternatives = tuple[str, ...]
Scene = tuple[Alternatives, ...]


def alternatives(text: str) -> Alternatives:
    """The options of one sentence group, their line breaks folded."""
    return tuple(" ".join(option.split()) for option in text.split("|"))


def scene(text: str) -> Scene:
    """The sentence groups of one paragraph, in the order in which they are told."""
    return tuple(alternatives(group) for group in text.strip().split("\n\n"))


def scenes(text: str) -> tuple[Scene, ...]:
    """Scenes that lines of `---` keep apart."""
    return tuple(scene(part) for part in text.split("\n---\n"))


def phrasebook(text: str) -> dict[str, Alternatives]:
    """Named alternatives: blocks of `name: option | option`, a blank line between blocks."""
    entries = (entry.split(":", maxsplit=1) for entry in text.strip().split("\n\n"))
    return {name.strip(): alternatives(options) for name, options in entries}


@dataclass(frozen=True)
class Plot:
    """A plot and the long dependencies that it promises.

    Attributes:
        name: what the plot is called.
        threads: slots whose phrase stands in the first paragraph and again in the last.
        sleepers: those of the threads that no paragraph between the two mentions.
        text: the paragraphs in the notation of this module.
        paragraphs: the parsed text, each scene after the kind of interlude that may stand before
            it ("way", "wait", or "" for none).
    """

    name: str
    threads: tuple[str, ...]
    sleepers: tuple[str, ...]
    text: str = field(repr=False)
    paragraphs: tuple[tuple[str, Scene], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        opening, *later = self.text.split("\n---")
        heads_and_bodies = (part.split("\n", maxsplit=1) for part in later)
        paragraphs = [("", scene(opening))]
        paragraphs += [(head.strip(), scene(body)) for head, body in heads_and_bodies]
        object.__setattr__(self, "paragraphs", tuple(paragraphs))
