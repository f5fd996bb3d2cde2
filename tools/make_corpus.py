"""Make the corpora of the shipped runs from public repositories. Run this script by hand.

python tools/make_corpus.py BOOKS            makes corpora/books
python tools/make_corpus.py BOOKS LUEE RCDM  makes corpora/library too

Each argument is a checkout of a repository below at the given commit. A row has `text`, a chapter
or a part of one, and `source`. The result must have the fingerprint in config/books.yaml.

BOOKS  mlschmitt/classic-books-markdown at 944882722e9a96fa6cf2739dc2ea757e101f412f
LUEE   LuEE-C/FewShotAuthorClassificationMetaLearning at 4c84f818a17dc19b592dbcd0fa004f2c6df8116a
RCDM   rcdm-uga/Gutenberg_Text at a0b16d35a9851168ce9ac649851c17b7ab08d48e
"""

import argparse
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relation.config import read
from relation.data.corpus import fingerprint

SHARD = 44_000_000  # characters; a shard of the library ends with the book that reaches this size
SHARDS = 13
LARGEST = 4 << 20  # bytes; snapshots of the Gutenberg repositories lacked files from this size on
Rows = list[tuple[str, str]]


def files_of(checkout: str, suffix: str) -> dict[str, bytes]:
    """The files of a checkout with a suffix, by their path in it."""
    root = Path(checkout)
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob(f"*{suffix}")}


def path_hash(path: str) -> int:
    """The number that orders files and selects the validation books."""
    return int.from_bytes(hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest())


LEFT_OUT = {"README.md", "Samuel Richardson/Clarissa.md", "Various/King James Bible.md"}


def book_rows(markdown: str) -> list[str]:
    """The sections of a Markdown book as plain text; those below 400 characters are left out."""
    sections: list[list[str]] = [[]]
    for line in markdown.replace("\r\n", "\n").split("\n"):
        heading = re.match(r"#{1,6} (.*)", line)
        if heading:
            sections.append([heading[1]])
        else:
            sections[-1].append(line)
    rows = []
    for text in map("\n".join, sections):
        text = re.sub(r"<[^>\n]*>", "", text)
        text = re.sub(r"\[\^?\d+\]", "", text)
        # An underscore is a word character, so a long run of them loses only its ends.
        text = re.sub(r"(?<!\w)[*_]{1,3}|[*_]{1,3}(?!\w)", "", text)
        text = re.sub("[ \t\u00a0]+", " ", text)
        text = "\n".join(line.strip() for line in text.split("\n"))
        rows.append(re.sub(r"\n{3,}", "\n\n", text).strip())
    return [text for text in rows if len(text) >= 400]


def books_of(files: dict[str, bytes]) -> dict[str, Rows]:
    """The rows of both splits: one book in 64, by the hash of its path, is validation."""
    splits: dict[str, Rows] = {"train": [], "validation": []}
    for path in sorted(files.keys() - LEFT_OUT, key=path_hash):
        split = "train" if path_hash(path) % 64 else "validation"
        source = path.removesuffix(".md")
        splits[split] += [(text, source) for text in book_rows(files[path].decode())]
    return splits


# Gutenberg: characters, header, footer, marks.
SPACES = "\u00a0\u202f\u3000\f\v\x1c\x1d\x1e\x1f\u0085\u2028\u2029"
SPACES += "".join(map(chr, range(0x2000, 0x200B)))
NOTHING = "\u200b\u200c\u200d\u200e\u200f\ufeff\u00ad\x00\x1a"
KINDS = {"'": "‘’‚‛`´", '"': "“”„‟", "-": "‐‑‒–", "—": "―", "...": "…", " ": SPACES, "": NOTHING}
CHARACTERS = {ord(c): to for to, characters in KINDS.items() for c in characters}
YEAR = r"\b(?:193[1-9]|19[4-9]\d|20[0-2]\d)\b"
RIGHTS = rf"COPYRIGHTED Project|copyright[^\n]{{0,80}}{YEAR}|{YEAR}[^\n]{{0,40}}copyright"
OPENS = r"^[\W_]*START OF (?:THE|THIS) PROJECT GUTENBERG"
START = rf"{OPENS}.*$|^.*\*END ?\*? ?THE SMALL PRINT.*$"
END = (
    r"^[\W_]*(?:this is the )?end of (?:the |this )?project gutenberg"
    rf"|^[\W_]*end of (?:the |this )?(?:etext|ebook|e-text)|^[\W_]*START: FULL LICENSE|{OPENS}"
)
PICTURES = (
    "illustrations?|illus\\.?|illustrated|sidenote|side-note|frontispiece|blank page|decoration"
    "|decorative|headpiece|tailpiece|plate|picture|image|music|map|note: images"
)
MARKS = [
    r"\[\s*transcriber[^\]]{0,4000}\]",
    rf"\[\s*(?:{PICTURES})\b[^\[\]]{{0,800}}\]",
    r"\[\s*(?:\^?\d{1,4}|[a-z]|[*†‡§+]+)\s*\]",
    r"[\[{]\s*(?:pg?\.?|pp\.|page)?\s*(?:\d{1,4}[a-z]?|[ivxlc]{1,7})\s*[\]}]",
    r"\[\s*foot-?note\b[^\[\]]{0,4000}\]",
    r"</?[a-z][^<>\n]{0,60}>",
    r"(?<!\w)[*_]{1,3}|[*_]{1,3}(?!\w)",
    r"[=+~]{1,2}(?=\w)(?<!\w[=+~])(?<!\w[=+~][=+~])|[=+~]{1,2}(?!\w)(?<=[\w.,;:!?][=+~])",
    r"[|^]",
]
# A block about the making of the file.
LINE = re.compile(
    r"gutenberg|\be-?texts?\b|\be-?books?\b|transcriber|transcribed (?:by|from)|proof-?read|pgdp"
    r"|https?:|www\.|\bhtml\b|\bascii\b|\bunicode\b|\butf-?8|\S@\S+\.\w|scanned (?:by|and|from)"
    r"|\bOCR\b|small print|public domain|digiti[sz]ed|internet archive|google|page images"
    r"|^\W*(?:this (?:file|text|edition|work) was )?(?:produced|prepared|typed|converted|created)"
    r" (?:by|from)\b|obvious (?:printer|typograph|error|misprint)"
    r"|(?:spelling|hyphenation|punctuation)[^.]{0,80}"
    r"(?:retained|preserved|corrected|normali[sz]ed|as in the original)"
    r"|(?:underscores|italics)[^.]{0,60}(?:_|indicat|denot|mark)|^\W*illustrations?\W*[:.]",
    re.IGNORECASE,
)
NOTE = re.compile(
    r"[\W_]*transcriber.{0,3}s? (?:end)?notes?\b|[\W_]*notes? (?:of|by|from) the transcriber"
    r"|[\W_]*(?:typographical|printer's) (?:errors|corrections)",
    re.IGNORECASE,
)
HEADING = re.compile(
    r"(?:the )?(?:chapter|book|part|letter|canto|act|scene|section|volume|stave|adventure|lecture"
    r"|essay|introduction|preface|prologue|epilogue|conclusion|foreword)\b"
    r"|[IVXLC]+\.?(?:\s|$)|\d{1,3}\.?$",
    re.IGNORECASE,
)
PAUSES = tuple(".!?:;,\"')]—-")  # a line of prose ends with one of these
ENDS = tuple(".!?:\"')]—-")  # a paragraph of prose ends with one of these
SENTENCE = tuple(".!?:;\"'")  # so does the line before an indented line that begins a paragraph


def plain_text(content: bytes, wants_header: bool) -> str | None:
    """A Gutenberg file's text without header, footer and marks; None if the file is left out."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    cp1252 = lambda m: m[0].encode("latin-1").decode("cp1252", "ignore")  # noqa: E731
    text = re.sub("[\x80-\x9f]", cp1252, text).replace("\r\n", "\n").replace("\r", "\n")
    text = text.translate(CHARACTERS).expandtabs(8)
    if sum(map(text.count, ("\ufffd", "Ã", "â€"))) > 3:
        return None
    for stated in re.finditer(RIGHTS, text, re.IGNORECASE):
        if "not uncover any" not in text[max(0, stated.start() - 300) : stated.end() + 300]:
            return None
    language = re.search(r"^Language: *(.*)$", text[:5000], re.MULTILINE)
    if language and language[1].strip() != "English":
        return None
    flags = re.MULTILINE | re.IGNORECASE
    headers = list(re.compile(START, flags).finditer(text, 0, max(60_000, len(text) // 10)))
    if wants_header and not headers:
        return None
    if headers:
        paragraph = re.compile(r"\n[ ]*\n").search(text, headers[-1].end())
        text = text[paragraph.end() :] if paragraph else ""
    footer = re.search(END, text, flags)
    text = text[: footer.start()] if footer else text
    for mark in MARKS:
        text = re.sub(mark, "", text, flags=re.IGNORECASE)
    return text


# Gutenberg: blocks, paragraphs, sections.
def blocks_of(text: str) -> list[tuple[int, list[str]]]:
    """Blocks of lines between blank lines, each as (number of blank lines before it, lines)."""
    blocks: list[tuple[int, list[str]]] = []
    lines, gap = [], 9  # the first block begins a book, as after many blank lines
    for line in [*map(str.rstrip, text.split("\n")), ""]:
        if re.search(r"[^\W_]", line):
            lines.append(line)
            continue
        if lines:
            blocks.append((gap, lines))
            lines, gap = [], 0
        gap += 1
    return blocks


def without_transcribers(blocks: list[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Leave out blocks about the making of the file, and all after a note near the end."""
    is_note = False  # whether this block continues a note whose heading was the block before
    for i, block in enumerate(blocks):
        said = " ".join(map(str.strip, block[1]))
        if is_note:
            is_note = False
        elif NOTE.match(said):
            if i > 0.9 * len(blocks):
                return
            is_note = len(said) < 60  # a heading without text: the next block is the note
        elif not LINE.search(said):
            yield block


def paragraphs_of(lines: list[str], width: int) -> tuple[list[str], bool]:
    """A block's paragraphs, and whether it is prose; the lines of prose are joined."""
    stripped = [line.strip() for line in lines]
    if len(lines) == 1:
        return stripped, True
    pairs = list(pairwise(stripped))
    low = sum(line[0].islower() for line in stripped[1:]) / len(pairs)
    full = sum(len(a) + 1 + len(b.split(" ", 1)[0]) >= 0.9 * width for a, b in pairs) / len(pairs)
    if low < 0.5 and full < 0.6:
        return ["\n".join(stripped)], False
    indents = [len(line) - len(line.lstrip()) for line in lines]
    found = [stripped[0]]
    for i in range(1, len(stripped)):
        before, line = found[-1], stripped[i]
        indented = 2 <= indents[i] - min(indents) <= 8 and indents[i] > indents[i - 1]
        hyphen = before.endswith(("-", "—")) and not before.endswith((" -", " --", " —"))
        if len(lines) >= 4 and indented and before.endswith(SENTENCE):
            found.append(line)
        elif hyphen or line.startswith(("--", "—")):
            found[-1] = before + line
        else:
            found[-1] = f"{before} {line}"
    return found, True


def sections_of(text: str) -> tuple[list[str], int]:
    """A book's sections, in parts of 30,000 characters, and its size; none if it is left out."""
    blocks = blocks_of(text)
    lengths = sorted(len(line.strip()) for _, b in blocks if len(b) > 2 for line in b)
    width = lengths[int(0.95 * len(lengths))] if len(lengths) >= 50 else 0
    if not 50 <= width <= 90:
        return [], 0
    sections: list[list[str]] = [[]]
    heads: list[str] = []
    n: Counter[str] = Counter()
    for gap, lines in without_transcribers(blocks):
        paragraphs, prose = paragraphs_of(lines, width)
        paragraphs = [re.sub(r"\s*\n\s*", "\n", re.sub(" +", " ", p)).strip() for p in paragraphs]
        title = " ".join(paragraphs)
        short = gap >= 2 and len(lines) <= 3 and sum(map(len, paragraphs)) <= 120
        if short and (HEADING.match(title) or title.upper() == title):
            if sections[-1]:
                sections.append([])
                heads = []
            heads = [*heads, "\n".join(paragraphs)][-3:]
            continue
        sections[-1] += [*heads, *paragraphs]
        heads = []
        for p in paragraphs:
            n["all"] += len(p)
            if not prose:
                n["kept"] += len(p)
            elif len(lines) > 1:
                n.update(joined=1, ended=p.endswith(ENDS), joined_characters=len(p))
    good = n["all"] >= 5000 and n["kept"] <= 0.3 * n["all"] and n["ended"] >= 0.9 * n["joined"]
    if not (good and 0.4 * n["all"] <= n["joined_characters"] <= 2500 * n["joined"]):
        return [], n["all"]
    return [part for section in sections if section for part in parts_of(section)], n["all"]


def parts_of(paragraphs: list[str]) -> Iterator[str]:
    """A section in parts of about equal size, at most 30,000 characters if its paragraphs allow."""
    total = sum(map(len, paragraphs)) + 2 * (len(paragraphs) - 1)
    share, part, size = total / -(-total // 30_000), [], 0
    for p in paragraphs:
        if part and total > 30_000 and (size + len(p) > 30_000 or size >= share):
            yield "\n\n".join(part)
            part, size = [], 0
        part.append(p)
        size += len(p) + 2
    yield "\n\n".join(part)


# Gutenberg: words and repeats.
FUNCTION = set(re.findall(r"\w+", "the of and to in that it is was he for with his be not you"))
N = 13  # words of a shingle
POWERS = [np.uint64(pow(0x9E3779B97F4A7C15, N - 1 - j, 1 << 64)) for j in range(N)]


@cache
def word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def words_of(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower().replace("'", ""))


def shingles_of(words: list[str], every: int = 8) -> list[int]:
    """Hashes of the sequences of 13 words; about one in `every` hashes is kept."""
    hashes = np.array([word_hash(word) for word in words], np.uint64)
    count = max(0, len(words) - N + 1)
    terms = (hashes[j : j + count] * power for j, power in enumerate(POWERS))
    found = sum(terms, np.zeros(count, np.uint64))
    return found[(found >> np.uint64(32)) % np.uint64(every) == 0].tolist()


class Repeats:
    """Texts that the library must not repeat: the books and the library's earlier texts."""

    def __init__(self, splits: dict[str, Rows]):
        counts: Counter[str] = Counter()
        self.seen, self.validation, self.titles = set(), set(), set()
        for text, _ in splits["train"]:
            counts.update(words := words_of(text))
            self.seen.update(shingles_of(words))
        self.known = {word for word, count in counts.items() if count >= 5}
        for text, source in splits["validation"]:
            self.seen.update(shingles_of(words_of(text)))
            self.validation.update(shingles_of(words_of(text), 1))
            self.titles.add(" ".join(words_of(source.split("/", 1)[1])))

    def names_validation(self, path: str) -> bool:
        """Whether a file's name contains the title of a validation book."""
        name = " ".join(words_of(path.rsplit("/", 1)[-1].rsplit("___", 1)[-1][:-4]))
        return any(f" {title} " in f" {name} " for title in self.titles)

    def kept(self, sections: list[str], size: int) -> list[str]:
        """A book's sections of English prose that repeat nothing; none if the book is a repeat."""
        rows, new, sampled, old = [], [], 0, 0
        for text in sections:
            words = words_of(text)
            if len(text) < 400 or not self.is_prose(text, words):
                continue
            hashes = shingles_of(words)
            repeated = sum(h in self.seen for h in hashes)
            sampled, old = sampled + len(hashes), old + repeated
            held_out = not self.validation.isdisjoint(shingles_of(words, 1))
            if not held_out and repeated < 0.2 * max(1, len(hashes)):
                rows.append(text)
                new += hashes
        characters = sum(map(len, rows))
        if old >= 0.5 * max(1, sampled) or characters < max(5000, 0.3 * size):
            return []
        self.seen.update(new)
        return rows

    def is_prose(self, text: str, words: list[str]) -> bool:
        letters = sum("a" <= c.lower() <= "z" or c in " \n" or c >= "À" for c in text)
        ended = sum(len(line) for line in text.split("\n") if line.endswith(PAUSES))
        return (
            sum(word in FUNCTION for word in words) >= 0.18 * len(words)
            and sum("0" <= c <= "9" for c in text) <= 0.025 * len(text)
            and letters >= 0.91 * len(text)
            and ended >= 0.7 * len(text)
            and sum(word not in self.known for word in words) <= 0.06 * len(words)
        )


def library_of(
    splits: dict[str, Rows], luee: dict[str, bytes], rcdm: dict[str, bytes]
) -> Iterator[Rows]:
    """The shards of the library beyond the books: texts of the two Gutenberg repositories."""
    repeats, used = Repeats(splits), set()
    files = {p: (c, False) for p, c in luee.items() if p.startswith("Gutenberg/txt/")}
    files |= {p: (c, True) for p, c in rcdm.items()}
    shard: Rows = []
    for path in sorted(files, key=path_hash):
        content, wants_header = files[path]
        digest = hashlib.sha256(content).digest()
        is_copy = digest in used
        used.add(digest)
        if is_copy or len(content) >= LARGEST or repeats.names_validation(path):
            continue
        text = plain_text(content, wants_header)
        rows = [] if text is None else repeats.kept(*sections_of(text))
        shard += [(row, re.sub(r"\s+", " ", path[:-4])) for row in rows]
        if sum(len(row) for row, _ in shard) >= SHARD:
            yield shard
            shard = []
    if shard:
        yield shard


def write(folder: Path, shards: Iterable[tuple[str, Rows]]) -> None:
    """Write a corpus's files and compare its fingerprint with that of the shipped runs."""
    corpora = read(Path("config/books.yaml"))["corpora"]
    (wanted,) = (c["fingerprint"] for c in corpora.values() if c["path"] == folder.as_posix())
    folder.mkdir(parents=True, exist_ok=True)
    for file, rows in shards:
        texts, sources = zip(*rows, strict=True)
        table = pa.table({"text": texts, "source": sources})
        path = folder / f"{file}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=1024)
        print(f"{path}  {len(rows):,} rows", flush=True)
    found = fingerprint(str(folder))
    print(f"{folder}  {found}")
    if found != wanted:
        sys.exit(f"error: the shipped runs read {wanted}; check out the commits that --help lists")


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("checkouts", nargs="+", help="BOOKS for books; BOOKS LUEE RCDM for library")
    books, *gutenberg = parser.parse_args().checkouts
    if len(gutenberg) not in (0, 2):
        parser.error("give BOOKS, or BOOKS LUEE RCDM")
    splits = books_of(files_of(books, ".md"))
    if not all(splits.values()):
        sys.exit(f"error: {books} has no books; give a checkout of the repository BOOKS in --help")
    write(Path("corpora/books"), splits.items())
    if gutenberg:
        shards = library_of(splits, *(files_of(path, ".txt") for path in gutenberg))
        train = enumerate(chain([splits["train"]], islice(shards, SHARDS)))
        named = ((f"train-{number:02d}", rows) for number, rows in train)
        write(Path("corpora/library"), chain([("validation", splits["validation"])], named))
