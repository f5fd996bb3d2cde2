"""Generation: continue prompts token by token from a model's decode state.

On a GPU each token is one launch of a CUDA graph (`relation.nn.replay`). On a CPU, and if
`why_plain` returns a reason, each token is one `model.decode` and one `draw` from its logits.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from relation.errors import InputError, RunError
from relation.nn.cache import DecodeState
from relation.nn.model import Decoder, check_tokens
from relation.nn.replay import Prepared, Replay, why_plain
from relation.nn.sampling import Sampling, draw, uniform_numbers
from relation.ops.precision import projection_dtype
from relation.variants import check_type

# A prompt that continues a state is read in blocks: the scores of each take BLOCK x T memory.
BLOCK = 256


def generate_tokens(
    model: Decoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
    state: DecodeState | None = None,
) -> Iterator[int]:
    """Yield up to `count` token ids that continue the prompt's ids, each as soon as it is drawn.

    Stops before the token `stop`, which is not yielded. state: the decode state to continue from,
    by default an empty one. It stores the prompt and every drawn token except the last, and on a
    GPU it is up to date only when the iterator has ended. If you leave the iterator earlier, the
    state may also hold the last token. To continue, pass the last token as the prompt, and another
    seed, because one seed draws the same numbers again. Under autocast, tokens are computed in its
    dtype. With one seed, devices draw different tokens only if rounding decides. Raises InputError
    for an empty prompt, an id outside the vocabulary or a count below 1, and RunError for
    non-finite logits.
    """
    rows = continuations(model, [prompt], count, sampling, stop, state or model.decode_state())
    return (row[0] for row in rows)


def generate_batch(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
) -> list[list[int]]:
    """Return up to `count` token ids that continue each prompt's ids, computed in one batch.

    Prompts may differ in length. The tokens of row b depend on the seed and on b, but not on other
    rows, except through rounding in the prompts' products. Otherwise like `generate_tokens`.
    """
    steps = list(continuations(model, prompts, count, sampling, stop, model.decode_state()))
    return [[ids[row] for ids in steps if ids[row] is not None] for row in range(len(prompts))]


def continuations(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    stop: int | None,
    state: DecodeState,
) -> Iterator[list[int | None]]:
    """Yield the next ids of all rows (None for a row that has ended) until all rows have ended."""
    check_type("count", count, int)
    check_type("stop", stop, int | None)
    shortest = min(map(len, prompts), default=0)
    if count < 1 or shortest < 1:
        asked = f"{count} tokens were asked for and the shortest prompt has {shortest}"
        raise InputError(f"{asked}; give at least 1 of each")
    rows = [torch.as_tensor(prompt, device="cpu") for prompt in prompts]
    for row in rows:  # on the CPU, where the range is checked too
        check_tokens(row[None], model.config.vocab_size)
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def token_steps() -> Iterator[list[int | None]]:
        weight = model.embedding.weight
        tokens, dtype = padded.to(weight.device), projection_dtype(weight)
        if len(rows) > 1 or not state.length:
            logits = model.read(tokens, state, list(map(len, rows)))
        else:
            for block in tokens.split(BLOCK, dim=1):
                logits = model.read(block, state)
        if why_plain(model, dtype) is None:
            steps = Replay(Prepared(model, dtype), state, logits, sampling, stop).run(count)
        else:
            steps = _plain_steps(model, logits, sampling, count, state)
        ended = [False] * len(rows)
        for ids in steps:
            for row, token in enumerate(ids):
                if not ended[row] and token < 0:
                    raise RunError(
                        f"the logits after {state.length} tokens are not finite; the weights are "
                        "broken or the precision is too low"
                    )
                ended[row] = ended[row] or token == stop
            if all(ended):
                return
            yield [None if ended[row] else token for row, token in enumerate(ids)]

    return token_steps()  # a nested generator, so that the checks above run at once


def _plain_steps(
    model: Decoder, logits: Tensor, sampling: Sampling, count: int, state: DecodeState
) -> Iterator[list[int]]:
    """Yield the ids (B,) of `count` tokens in turn; `model.decode` reads all but the last."""
    uniforms = chain.from_iterable(uniform_numbers(sampling.seed, len(logits)))  # (B,) per token
    for step in range(1, count + 1):
        ids = draw(logits, next(uniforms).to(logits.device), sampling)
        yield ids.tolist()
        if step < count:
            logits = model.decode(ids[:, None], state)[:, -1]
