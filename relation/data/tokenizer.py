"""Train a byte-level BPE tokenizer of exactly the requested size, and encode documents with it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from relation.errors import InputError

END_OF_TEXT = "<|endoftext|>"
PREPARE_AGAIN = "give the campaign's snakemake command with `-R prepare`"
TOKEN_TYPE = np.dtype("<u2")  # the type of ids in token files
_DOCUMENTS_AT_A_TIME = 256
_CHARACTERS_AT_A_TIME = 1 << 24


def train_tokenizer(texts: Iterable[str], vocabulary: int, name: str) -> Tokenizer:
    """Train a tokenizer with exactly `vocabulary` entries: 256 bytes, merges and end-of-text.

    The same texts give the same tokenizer. Uses all cores. name: of the corpus, for InputError.
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
    """Load tokenizer.json. Raises InputError if it is missing or damaged."""
    if not path.exists():
        raise InputError(f"{path} is missing; {PREPARE_AGAIN}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception for a file it cannot parse
        raise InputError(
            f"{path} is damaged or is not a tokenizer ({error}); if snakemake made it, "
            + PREPARE_AGAIN
        ) from None


def end_of_text_id(data: Path) -> int:
    """Return the id of end-of-text in a prepared corpus."""
    return load_tokenizer(data / "tokenizer.json").token_to_id(END_OF_TEXT)


def _batch(documents: Iterator[str]) -> list[str]:
    """Return the next documents, as many as fit into memory at once; empty at the end."""
    texts, room = [], _CHARACTERS_AT_A_TIME
    for text in islice(documents, _DOCUMENTS_AT_A_TIME):
        texts.append(text)
        room -= len(text)
        if room <= 0:
            break
    return texts


def encode(
    tokenizer: Tokenizer,
    streams: list[Iterator[str]],
    limit: int | None,
    file: BinaryIO,
    label: str,
) -> dict[str, int]:
    """Encode documents, add end-of-text after each document, and write the ids to an open file.

    streams: mixed in equal shares of tokens, until all end or until `limit` tokens, which can cut
    the last document. Returns the numbers of tokens, documents and characters in the file.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens = documents = characters = 0
    shares = dict.fromkeys(range(len(streams)), 0)  # tokens per stream that has not ended
    with tqdm(desc=label, total=limit, unit=" tokens", unit_scale=True, mininterval=1) as progress:
        while shares and tokens != limit:
            turn = min(shares, key=shares.__getitem__)  # the stream with the fewest tokens is next
            texts = _batch(streams[turn])
            if not texts:
                del shares[turn]
                continue
            # A document that contains the end-of-text string ends there.
            parts = [part for text in texts for part in text.split(END_OF_TEXT) if part.strip()]
            # The fast version does not compute each token's place in the text. It uses all cores.
            encoded = tokenizer.encode_batch_fast(parts, add_special_tokens=False)
            for part, encoding in zip(parts, encoded, strict=True):
                if tokens == limit:
                    break
                ids = [*encoding.ids, end]
                if limit is not None and tokens + len(ids) > limit:  # cuts the last document
                    ids = ids[: limit - tokens]
                    part = tokenizer.decode(ids)
                file.write(np.array(ids, TOKEN_TYPE).tobytes())
                tokens += len(ids)
                documents += 1
                characters += len(part)
                shares[turn] += len(ids)
            progress.update(tokens - progress.n)
    return {"tokens": tokens, "documents": documents, "characters": characters}
