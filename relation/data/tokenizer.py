"""Byte-level BPE of exactly the asked size, with one end-of-text token."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from relation.data.splits import END_OF_TEXT
from relation.errors import InputError
from relation.store.files import sha256_of
from relation.store.parquet import read_origin


def train_tokenizer(texts: Iterable[str], vocabulary: int, name: str) -> Tokenizer:
    """Train on texts until there are `vocabulary` entries: 256 bytes, merges, end-of-text.

    Raises InputError where the texts cannot fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    if size != vocabulary:
        raise InputError(
            f"{name}: the corpus fills only {size} of {vocabulary} vocabulary entries; "
            "give more text or lower `vocabulary`"
        )
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load tokenizer.json. Raises InputError where it is missing or damaged.

    Only data.parquet beside it can tell of every damage, and one from 0.2.0 or before does not.
    """
    if not path.exists():
        raise InputError(f"{path} is missing; run snakemake to make it")
    record = path.with_name("data.parquet")
    recorded = read_origin(record).get("tokenizer_sha256") if record.exists() else None
    if recorded not in (None, sha256_of(path)):
        raise InputError(f"{path} is not the file that {record.name} records; prepare it again")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception for a file it cannot parse
        raise InputError(
            f"{path} is damaged or no tokenizer ({error}); if snakemake made it, delete it and run "
            "snakemake again"
        ) from None


def end_of_text_id(data: Path) -> int:
    """The id of end-of-text in a prepared corpus. Raises InputError as `load_tokenizer` does."""
    path = data / "tokenizer.json"
    found = load_tokenizer(path).token_to_id(END_OF_TEXT)
    if found is None:
        raise InputError(f"{path} has no {END_OF_TEXT}; delete it and run snakemake to make it")
    return found
