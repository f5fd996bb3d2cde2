"""A generated corpus of simple children's stories in which much depends on what was said long ago.

`story(seed, index)` is a story of 150 to 340 words (median 230) in plain English; it depends
on its two arguments alone, so any story of the corpus can be told without the ones before it.

The corpus serves to train and compare small language models on any machine, without a download.
Its sentences are easy to learn; what is left to learn after them is to carry information over the
whole text. The long dependencies are therefore systematic:

- *Threads.* Every plot binds two to five phrases in its first paragraph (an object with its
  colour, a friend's name, a hiding place, a promised treat, a secret word, a message, a list of
  three things, ...), and its last paragraph repeats each of them to the letter.
- *Sleepers.* At least one thread of every plot is mentioned by no paragraph in between: a friend
  leaves and comes back, a gift must be shown to the one who gave it, a word is called again.
- *Decoys.* The paragraphs between bring phrases of the same kind (an object in another colour,
  another treat, another name), so that the latest phrase of a kind is seldom the one to repeat.
- *Agreement.* Names, kinds and pronouns, once told, hold for the whole story. The friend's pronoun
  is never the hero's, so that "he" and "she" each point at one of the two.
- *Distance.* At least 50 words lie between the first paragraph and the last, and up to two
  interludes that touch no thread are put in between them at random.

`outline` returns the same story with its threads, so that a test or a diagnostic can find them.

The text is pinned: all randomness comes from the raw 64-bit output of numpy's PCG64 seeded through
SeedSequence, two streams that numpy keeps stable across versions, and every choice is an index into
a tuple. The words are in `relation.data.lexicon`, the plots and scenes in `relation.data.tales`; a
change to either, or here, changes the corpus and every result trained on it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from numpy.random import PCG64, SeedSequence

from relation.data import lexicon as lex
from relation.data.tales.errands import ERRANDS
from relation.data.tales.friends import FRIENDS
from relation.data.tales.interludes import WAIT, WAY
from relation.data.tales.lost import LOST
from relation.data.tales.notation import Alternatives, Plot, Scene
from relation.data.tales.phrases import PHRASES
from relation.errors import InputError

PLOTS: tuple[Plot, ...] = LOST + FRIENDS + ERRANDS

_Option = TypeVar("_Option")
# SeedSequence splits larger integers into 32-bit words, which would let two pairs coincide.
_LIMIT = 2**32
# Draws are taken from the end of a block of raw words, so that its size is part of the corpus.
_BLOCK = 256
_FORMS = {"he": ("him", "his", "himself"), "she": ("her", "her", "herself")}
_VOWEL_SOUND = re.compile(r"(?!one\b|once|uni|use|eu)[aeiou]|hour|honest")


@dataclass(frozen=True)
class Outline:
    """A story together with what it promises.

    Attributes:
        plot: the name of the plot, one of those in `PLOTS`.
        paragraphs: the paragraphs in order, without line breaks.
        threads: phrases that the first paragraph and the last one both mention.
        sleepers: those of the threads that no paragraph in between mentions.
        pronouns: name and pronoun ("he" or "she") of hero, friend and elder; friend and elder are
            not part of every plot.
    """

    plot: str
    paragraphs: tuple[str, ...]
    threads: tuple[str, ...]
    sleepers: tuple[str, ...]
    pronouns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The story as it stands in the corpus: paragraphs with a blank line between them."""
        return "\n\n".join(self.paragraphs)

    def mentions(self, phrase: str) -> tuple[int, ...]:
        """Indices of the paragraphs that hold `phrase` as whole words, case respected."""
        whole = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)")
        return tuple(i for i, paragraph in enumerate(self.paragraphs) if whole.search(paragraph))


class _Dice:
    """Uniform choices from the raw output of a bit generator of its own."""

    def __init__(self, seed: int, index: int) -> None:
        self._bits = PCG64(SeedSequence([seed, index]))
        self._raw: list[int] = []

    def below(self, bound: int) -> int:
        if not self._raw:
            self._raw = self._bits.random_raw(_BLOCK).tolist()
        return (self._raw.pop() * bound) >> 64

    def pick(self, options: Sequence[_Option]) -> _Option:
        return options[self.below(len(options))]

    def several(self, options: Sequence[_Option], count: int) -> list[_Option]:
        """`count` different options in random order."""
        rest = list(options)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]


class _Slots(dict[str, str]):
    """What fills the slots of one story: bound phrases, and all other phrases drawn at each use."""

    def __init__(self, dice: _Dice) -> None:
        super().__init__(_cast(dice))
        self._dice = dice

    def __missing__(self, slot: str) -> str:
        if slot[0].isupper():
            return _capitalised(self[slot[0].lower() + slot[1:]])
        if slot.startswith("a_"):
            return with_article(self[slot[2:]])
        return self.tell(PHRASES[slot])

    def tell(self, group: Alternatives) -> str:
        text = self._dice.pick(group)
        return text.format_map(self) if "{" in text else text

    def paragraph(self, scene: Scene) -> str:
        return " ".join(sentences for group in scene if (sentences := self.tell(group)))


def _capitalised(phrase: str) -> str:
    return phrase[0].upper() + phrase[1:]


def with_article(phrase: str) -> str:
    """The phrase after its indefinite article, chosen by the sound it begins with."""
    return f"{'an' if _VOWEL_SOUND.match(phrase) else 'a'} {phrase}"


def _place(phrase: str) -> str:
    """The place itself of a phrase such as "under the old bridge"."""
    return phrase[phrase.index("the ") :]


def _character(dice: _Dice, pronoun: str, animal_name: str) -> tuple[str, str, str]:
    """Name, kind, and what the character has for hands; a child or an animal with equal chance."""
    if dice.below(2):
        return animal_name, dice.pick(lex.PAWED), "paw"
    girl = pronoun == "she"
    return dice.pick(lex.GIRLS if girl else lex.BOYS), "girl" if girl else "boy", "hand"


def _cast(dice: _Dice) -> dict[str, str]:
    """The phrases bound for a whole story. Kinds with decoys are drawn without replacement."""
    he, f_he = ("he", "she") if dice.below(2) else ("she", "he")
    e_he = dice.pick(("he", "she"))
    animals = dice.several(lex.ANIMAL_NAMES, 4)
    hero, kind, hand = _character(dice, he, animals[0])
    friend, f_kind, f_hand = _character(dice, f_he, animals[1])
    weather = dice.pick(lex.WEATHERS)
    colours = dice.several(lex.COLOURS, 5)
    objects = dice.several(lex.OBJECTS, 5)
    passers = dice.several(lex.PASSERS, 3)
    treat, snack = dice.several(lex.TREATS, 2)
    word, other_word = dice.several(lex.PASSWORDS, 2)
    where, site = dice.pick(lex.HIDING_PLACES), dice.pick(lex.SITES)
    first, second, third, fourth, fifth = dice.several(lex.INGREDIENTS, 5)
    event, tool = dice.pick(lex.EVENTS), dice.pick(lex.TOOLS)
    deeds = dice.several(tool.deeds, 3)
    tag, other_tag = dice.several(lex.PET_TAGS, 2)
    bloom, other_bloom = dice.several(lex.FLOWERS, 2)
    count = dice.pick(lex.NUMBERS)
    him, his, himself = _FORMS[he]
    f_him, f_his, _ = _FORMS[f_he]
    return {
        "hero": hero,
        "kind": kind,
        "hand": hand,
        "hands": f"{hand}s",
        "he": he,
        "him": him,
        "his": his,
        "himself": himself,
        "friend": friend,
        "f_kind": f_kind,
        "f_hands": f"{f_hand}s",
        "f_he": f_he,
        "f_him": f_him,
        "f_his": f_his,
        "elder": dice.pick(lex.GRANDFATHERLY if e_he == "he" else lex.GRANDMOTHERLY),
        "e_he": e_he,
        "e_who": dice.pick(lex.ELDER_CLAUSES),
        "neighbour": animals[2],
        "n_kind": dice.pick(lex.NEIGHBOUR_KINDS),
        "passer": passers[0],
        "stranger": passers[1],
        "next_stranger": passers[2],
        "pet": animals[3],
        "pet_kind": dice.pick(lex.PET_KINDS),
        "season": weather.season,
        "weather": weather.adjective,
        "sky": weather.sky,
        "colour": colours[0],
        "thing": f"{colours[0]} {objects[0]}",
        "item": objects[0],
        "other_thing": f"{colours[1]} {objects[1]}",
        "third_thing": f"{colours[2]} {objects[2]}",
        "trinket": f"{colours[3]} {objects[3]}",
        "next_trinket": f"{colours[4]} {objects[4]}",
        "tool": f"{colours[0]} {tool.name}",
        "deed_one": deeds[0],
        "deed_two": deeds[1],
        "deed_three": deeds[2],
        "tag": f"{colours[0]} {tag}",
        "other_tag": f"{colours[1]} {other_tag}",
        "bloom": f"{colours[0]} {bloom}",
        "other_bloom": f"{colours[1]} {other_bloom}",
        "light": f"{colours[0]} light",
        "other_light": f"{colours[1]} light",
        "sail": f"{colours[0]} sail",
        "other_sail": f"{colours[1]} sail",
        "boat": f"{dice.pick(lex.BOAT_FIRST)} {dice.pick(lex.BOAT_SECOND)}",
        "treat": treat,
        "snack": snack,
        "first": first,
        "second": second,
        "third": third,
        "fourth": fourth,
        "fifth": fifth,
        "where": where,
        "landmark": _place(where),
        "at_site": site,
        "to_site": f"to {_place(site)}",
        "word": word,
        "other_word": other_word,
        "message": dice.pick(lex.MESSAGES),
        "deadline": dice.pick(lex.DEADLINES),
        "event": event.ahead,
        "event_past": event.happened,
        "ride": dice.pick(lex.RIDES),
        "count": count,
        "times": f"{count} times",
    }


def _paragraphs(plot: Plot, slots: _Slots, dice: _Dice) -> tuple[str, ...]:
    """The plot's scenes as text, about half of the possible interludes put in, none of them twice.

    Each interlude has a stranger and a trinket of its own.
    """
    unused = {"way": list(WAY), "wait": list(WAIT)}
    paragraphs = []
    for interlude, scene in plot.paragraphs:
        if interlude and dice.below(2):
            rest = unused[interlude]
            paragraphs.append(slots.paragraph(rest.pop(dice.below(len(rest)))))
            slots.update(stranger=slots["next_stranger"], trinket=slots["next_trinket"])
        paragraphs.append(slots.paragraph(scene))
    return tuple(paragraphs)


def outline(seed: int, index: int) -> Outline:
    """The story of `story(seed, index)` with its threads.

    Raises:
        InputError: `seed` or `index` is not in 0 .. 2**32 - 1.
    """
    for name, value in (("seed", seed), ("index", index)):
        if not 0 <= value < _LIMIT:
            raise InputError(f"story {name} {value}: must lie in 0 .. {_LIMIT - 1}")
    dice = _Dice(seed, index)
    plot = dice.pick(PLOTS)
    slots = _Slots(dice)
    people = (("hero", "he"), ("friend", "f_he"), ("elder", "e_he"))
    return Outline(
        plot=plot.name,
        paragraphs=_paragraphs(plot, slots, dice),
        threads=tuple(slots[slot] for slot in plot.threads),
        sleepers=tuple(slots[slot] for slot in plot.sleepers),
        pronouns=tuple((slots[name], slots[pronoun]) for name, pronoun in people),
    )


def story(seed: int, index: int) -> str:
    """Story number `index` of the corpus `seed`: paragraphs with a blank line between them.

    Raises:
        InputError: `seed` or `index` is not in 0 .. 2**32 - 1.
    """
    return outline(seed, index).text
