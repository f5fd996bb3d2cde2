"""Corpora: read local texts or data sets of the Hugging Face hub, and prepare them as tokens.

Local texts are .txt files, whose documents lines of ``<|endoftext|>`` separate, and Parquet files
with a column `text`. The validation split of one .txt file is its last tenth. A folder uses the
files and folders named validation*, a data set of the hub its own split. Without these, or with
`validation_modulus` for a data set, one document in `validation_modulus` (50) is held out by hash.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relation import records
from relation.data.tokenizer import END_OF_TEXT, TOKEN_TYPE, encode, train_tokenizer
from relation.data.windows import epoch_order, sha256_of
from relation.errors import InputError, RunError
from relation.jobs import Data

SPLITS = ("train", "validation")
_LONGEST = 1 << 24  # characters in a document; encoding takes about 50 bytes of memory for each
_TOKENS_AT_A_TIME = 1 << 22
_MODULUS = 50  # validation_modulus of local texts by default
_MADE = [Path("corpora", name) for name in ("books", "library")]


def _read_text(path: Path) -> Iterator[str]:
    """Yield the documents of a .txt file, which lines of end-of-text separate."""
    lines: list[str] = []
    characters = 0
    with path.open(encoding="utf-8-sig") as file:
        # The file's own iterator would read a line of any size into memory.
        while line := file.readline(_LONGEST):
            ends = line.strip() == END_OF_TEXT
            if ends or characters + len(line) > _LONGEST:
                yield "".join(lines)
                lines, characters = [], 0
            if not ends:
                lines.append(line)
                characters += len(line)
    yield "".join(lines)


def _read_parquet(path: Path) -> Iterator[str]:
    """Yield the strings in the column `text`, without nulls."""
    file, strings = pq.ParquetFile(path), (pa.string(), pa.large_string(), pa.string_view())
    if not any(each.name == "text" and each.type in strings for each in file.schema_arrow):
        columns = ", ".join(f"{each.name} ({each.type})" for each in file.schema_arrow)
        raise InputError(f"{path} has no column `text` of strings, only {columns}")
    for batch in file.iter_batches(256, columns=["text"]):
        for text in batch.column(0).drop_null().to_pylist():
            yield from (text[i : i + _LONGEST] for i in range(0, len(text), _LONGEST))


_READERS = {".txt": _read_text, ".parquet": _read_parquet}


def read_texts(path: Path) -> Iterator[str]:
    """Yield the documents of one file in order, without empty documents."""
    try:
        yield from filter(None, _READERS[path.suffix](path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error.reason}); convert it to UTF-8") from None
    except (pa.ArrowException, OSError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} cannot be read ({detail}); repair or replace it") from None


def _text_files(path: str) -> dict[str, list[Path]]:
    """Return the files of a local corpus by split, sorted by path."""
    root = Path(path)
    if not root.exists():
        remedy = "see tools/make_corpus.py --help" if root in _MADE else "give a file or a folder"
        raise InputError(f"corpus {root} does not exist; {remedy}")
    if root.is_file() and root.suffix not in _READERS:
        raise InputError(f"corpus {root} is no {' or '.join(_READERS)} file; give one or a folder")
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    by_split: dict[str, list[Path]] = {"train": [], "validation": []}
    for file in (file for file in files if file.suffix in _READERS):
        names = file.relative_to(root).parts  # empty if the corpus is this file
        if any(name.startswith(".") for name in names):
            continue  # such as copies in .ipynb_checkpoints
        validates = any(name.startswith("validation") for name in names or [file.name])
        by_split["validation" if validates else "train"].append(file)
    if not by_split["train"]:
        content = "only validation" if by_split["validation"] else f"no {' or '.join(_READERS)}"
        raise InputError(f"corpus {root} holds {content} files; add files to train on")
    return by_split


def _last_tenth(path: Path, split: str) -> Iterator[str]:
    """Yield one split of a text file; validation is the last tenth of the characters."""
    characters, position = sum(map(len, read_texts(path))), 0
    bound = characters - characters // 10
    for text in read_texts(path):
        cut = min(max(bound - position, 0), len(text))
        position += len(text)
        part = text[:cut] if split == "train" else text[cut:]
        if part:
            yield part


def _local_documents(path: str) -> dict[str, Iterator[str]]:
    """Return a local corpus's documents by split; a split without files is left out."""
    files = _text_files(path)
    if files["train"] == [Path(path)] and path.endswith(".txt"):
        return {split: _last_tenth(Path(path), split) for split in SPLITS}
    return {split: chain.from_iterable(map(read_texts, f)) for split, f in files.items() if f}


@cache
def fingerprint(path: str) -> str:
    """Return the SHA-256 of a local corpus's texts, in hexadecimal.

    It covers the documents, their order and their splits, but no file names: if other files hold
    the same texts in this order, it is the same corpus. Raises InputError for texts without a word.
    """
    digests, has_words = "", False
    for split, documents in _local_documents(path).items():
        digest = hashlib.sha256()
        for text in documents:
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
            has_words |= split == "train" and bool(text.replace(END_OF_TEXT, "").strip())
        digests += f"{split}:{digest.hexdigest()};"
    if not has_words:
        raise InputError(f"corpus {path} is empty: its training files hold no words; add texts")
    return hashlib.sha256(digests.encode()).hexdigest()


def is_held_out(text: str, modulus: int) -> bool:
    """Whether a document belongs to validation: its text's SHA-256 is 0 modulo `modulus`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big") % modulus == 0


# Both patterns are greedy, so they find the last end inside the window.
_TO_SENTENCE_END = re.compile(r""".*[.!?]["'”’»)\]]*(?=\s)""", re.DOTALL)
_TO_WORD_END = re.compile(r".*\S(?=\s)", re.DOTALL)
_SPACE = re.compile(r"\s*")


def cut(text: str, characters: int) -> Iterator[str]:
    """Cut the text into consecutive pieces of at most `characters` characters, stripped of space.

    A piece ends at the end of the text. If that is too far, it ends after the last sentence that
    fits, else after the last word that fits, else inside a word.
    """
    start, stop = _SPACE.match(text).end(), len(text.rstrip())
    while start < stop:
        end = start + characters
        if end < stop:
            # One character more than a piece may have, because a space must follow its end.
            window = text, start, end + 1
            match = _TO_SENTENCE_END.match(*window) or _TO_WORD_END.match(*window)
            end = match.end() if match else end
        yield text[start : min(end, stop)]
        start = _SPACE.match(text, end).end()


def _shuffled_pieces(documents: Iterator[str], characters: int) -> Iterator[str]:
    """Yield the pieces of all documents in a pseudo-random order, fixed by their number alone.

    Unshuffled, a piece would continue the text of its neighbour. Memory holds all pieces at once.
    """
    pieces = [
        piece.encode()
        for document in documents
        for part in document.split(END_OF_TEXT)
        for piece in cut(part, characters)
    ]
    for place in epoch_order(len(pieces), 0, 0):
        yield pieces[place].decode()


def _hub_documents(stream: dict, split: str) -> Iterator[str]:
    """Yield the documents of a data set of the hub."""
    import datasets

    path, name = stream["path"], stream.get("name")
    options = {"revision": stream.get("revision"), "streaming": True}
    try:
        # `datasets` runs no code of the data set: version 4 removed loading scripts.
        for row in datasets.load_dataset(path, name, split=split, **options):
            if not isinstance(text := row[stream.get("column", "text")], str):
                raise TypeError(f"a row has no text but {text!r:.50}")
            yield text
    except Exception as error:  # the errors of `datasets`' transports share no base class
        reason = (str(error).splitlines() or [""])[0]
        raise RunError(
            f"data set {path} ({name or 'default'}, {split}) cannot be read "
            f"({type(error).__name__}: {reason}); correct its entry or run the same command again"
        ) from error


def document_streams(data: Data, split: str) -> list[Iterator[str]]:
    """Return the documents of a split, one iterator per stream of the corpus."""
    # by_hash: the texts have no validation split, so their hash divides the training split.
    if data.path is None:
        by_hash = data.validation_modulus is not None
        streams = [_hub_documents(s, "train" if by_hash else split) for s in data.source["streams"]]
    else:
        local = _local_documents(data.path)
        by_hash = "validation" not in local
        streams = [local["train" if by_hash else split]]
    if by_hash:
        held_out, modulus = split == "validation", data.validation_modulus or _MODULUS
        streams = [(t for t in texts if is_held_out(t, modulus) == held_out) for texts in streams]
    if data.document_characters is not None:
        streams = [_shuffled_pieces(texts, data.document_characters) for texts in streams]
    return streams


def _tokenizer_texts(data: Data) -> Iterator[str]:
    """Yield training documents for the tokenizer, by stream in turn, up to the character limit."""
    rounds = zip_longest(*document_streams(data, "train"))  # None where a stream has ended
    characters = 0
    for text in filter(None, chain.from_iterable(rounds)):
        yield text
        characters += len(text)
        if data.tokenizer_characters and characters >= data.tokenizer_characters:
            return


def unigram_entropy(tokens: np.ndarray) -> float:
    """Return the entropy in nats of the token frequencies in (N,) ids, without the first token."""
    # In slices: bincount widens its input to 8 bytes per token. The first token is not predicted.
    starts = range(1, len(tokens), _TOKENS_AT_A_TIME)
    slices = (tokens[start : start + _TOKENS_AT_A_TIME] for start in starts)
    counts = sum(np.bincount(part, minlength=1 << 16) for part in slices)
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def _check_size(data: Data, split: str, sizes: Iterable[int], bound: str = "") -> None:
    """Raise InputError if a split has too few tokens.

    sizes: of its parts, read until enough. bound: "at most " if the sizes are bounds.
    """
    diagnosed = data.diagnosed_tokens if split == "validation" else 0
    least, total = max(data.largest_context + 1, diagnosed), 0
    needed = f"fewer than the {least:,} that its longest window or the diagnostics need"
    limit = getattr(data, f"{split}_tokens")
    if limit is not None and limit < least:
        problem = f"{split}_tokens is {limit:,}, {needed}; raise it"
        raise InputError(f"{data.title} ({data.name}): {problem}")
    for size in sizes:
        total += size
        if total >= least:
            return
    hint = ", give a folder with a file named validation*" if split == "validation" else ""
    if hint and not str(data.path).endswith(".txt"):  # of one .txt file the last tenth validates
        hint += ", or lower validation_modulus"
    problem = f"the {split} split holds {bound}{total:,} tokens, {needed}; add text{hint}"
    raise InputError(f"{data.title} ({data.name}): {problem}")


def check_texts(data: Data) -> None:
    """Raise InputError if local texts are missing or have fewer bytes than tokens are needed.

    Fast: it reads no more text than it needs, and trains no tokenizer. `prepare` counts tokens.
    """
    for split in SPLITS if data.path is not None else ():
        # A token takes at least one byte, and end-of-text adds one token per document.
        sizes = (len(text.encode()) + 1 for text in document_streams(data, split)[0])
        _check_size(data, split, sizes, "at most ")


def prepare(data: Data, folder: Path) -> None:
    """Write tokenizer.json, train.bin, validation.bin and, last, data.parquet into `folder`.

    The .bin files hold little-endian unsigned 16-bit ids, with end-of-text after each document.
    """
    with records.held(folder.with_name(f".{folder.name}.lock"), data.name):
        texts_hash = None if data.path is None else fingerprint(data.path)
        if data.fingerprint not in (None, texts_hash):
            raise InputError(
                f"corpus {data.path} has fingerprint {texts_hash}, but the configuration expects "
                f"{data.fingerprint}; restore the expected texts or choose another corpus"
            )
        folder.mkdir(parents=True, exist_ok=True)
        # Delete the record first, so a kill never leaves it with other files than it names.
        for old in (folder / "data.parquet", *folder.glob(".*.tmp")):
            old.unlink(missing_ok=True)
        print(f"{data.name}: training a tokenizer with {data.vocabulary} entries", file=sys.stderr)
        tokenizer = train_tokenizer(_tokenizer_texts(data), data.vocabulary, data.name)
        with records.atomic(folder / "tokenizer.json") as temporary:
            temporary.write_text(tokenizer.to_str(), encoding="utf-8")
        rows = []
        for split in SPLITS:
            limit = getattr(data, f"{split}_tokens")
            path, label = folder / f"{split}.bin", f"{data.name} {split}"
            with records.atomic(path) as temporary, temporary.open("wb") as file:
                counts = encode(tokenizer, document_streams(data, split), limit, file, label)
            _check_size(data, split, [counts["tokens"]])
            entropy = unigram_entropy(np.memmap(path, TOKEN_TYPE, mode="r"))
            hashes = {"sha256": sha256_of(path), "fingerprint": texts_hash}
            rows.append({"split": split, **counts, "unigram_entropy": entropy, **hashes})
        shared = records.key(data, "data") | records.origin(data.hash, "cpu")
        records.write(folder / "data.parquet", "data", rows, shared)
