"""Windows and their order: the tokens that both runs of a pair read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refusal
from training import write_corpus

from relation.data.masks import bounded_mask, document_mask
from relation.data.windows import (
    IGNORED,
    TrainingWindows,
    epoch_order,
    first_windows,
    open_tokens,
    order_hash,
    plan_updates,
    validation_batches,
)

PAPER_UPDATE = 131_072


def numbered(length: int) -> np.ndarray:
    """A token file in which each id is its position."""
    return np.arange(length, dtype="<u2")


def test_epoch_order_is_pinned() -> None:
    """With another order, new runs could not be compared with earlier runs."""
    assert epoch_order(10, 42, 0).tolist() == [4, 8, 1, 9, 3, 6, 0, 7, 2, 5]
    assert epoch_order(10, 42, 1).tolist() == [1, 2, 8, 5, 3, 9, 6, 0, 4, 7]


def test_a_run_reads_epoch_after_epoch_from_any_position() -> None:
    windows = TrainingWindows(numbered(11 * 4 + 1), 4, seed=43)
    expected = np.concatenate([epoch_order(11, 43, epoch) for epoch in range(4)])
    for first, count in ((0, 44), (30, 7), (0, 3), (9, 25), (43, 1)):
        np.testing.assert_array_equal(windows.window_ids(first, count), expected[first:][:count])


@pytest.mark.parametrize(
    "budget, context, updates, windows, tokens",
    [
        (150_000_000, 1024, 1145, 53, 384),
        (450_000_000, 2048, 3434, 15, 1152),
        (1_071_140_000, 4096, 8173, 5, 3232),
        (9, 8, 1, 2, 1),
        (24, 8, 1, 3, 8),
    ],
)
def test_a_budget_ends_in_a_partial_update(budget, context, updates, windows, tokens) -> None:
    """The paper's budgets, and one below an update. tokens: in the last window, which it cuts."""
    plans = plan_updates(budget, PAPER_UPDATE, context)
    assert len(plans) == updates and sum(plan.tokens for plan in plans) == budget
    assert all(plan.tokens == PAPER_UPDATE for plan in plans[:-1])
    assert (plans[-1].windows, plans[-1].tokens) == (windows, (windows - 1) * context + tokens)
    assert [plan.index for plan in plans] == list(range(updates))
    ends = [plan.first + plan.windows for plan in plans]
    assert [plan.first for plan in plans] == [0, *ends[:-1]]


@pytest.mark.parametrize("tokens", [1, 7, 8, 15, 21])
def test_windows_begin_on_the_last_token_before_and_padding_is_ignored(tokens: int) -> None:
    context, rows = 7, 4
    windows = TrainingWindows(numbered(28 * context + 4), context, seed=0)
    assert windows.count == 28
    ids = np.array([5, 0, 9])[: -(-tokens // context)]
    inputs, targets = windows.batch(ids, tokens, rows)
    assert inputs.shape == targets.shape == (rows, context)
    assert inputs.dtype == targets.dtype == np.int64
    counted = targets != IGNORED
    np.testing.assert_array_equal(counted.ravel(), np.arange(rows * context) < tokens)
    np.testing.assert_array_equal(targets[counted], inputs[counted] + 1)
    places = ids[:, None] * context + np.arange(context)
    np.testing.assert_array_equal(inputs[counted], places.ravel()[:tokens])


def hash_of_all(text: str = "a" * 64, context: int = 4, seed: int = 42, budget: int = 90) -> str:
    windows = TrainingWindows(numbered(61), context, seed)
    for plan in plan_updates(budget, 16, context):
        text = order_hash(text, windows.window_ids(plan.first, plan.windows), plan.tokens)
    return text


@pytest.mark.parametrize(
    "change", [{"seed": 43}, {"budget": 89}, {"budget": 96}, {"context": 8}, {"text": "b" * 64}]
)
def test_another_order_has_another_hash(change: dict) -> None:
    assert hash_of_all() == hash_of_all() != hash_of_all(**change)


@pytest.mark.parametrize("length", [2, 7, 8, 9, 15, 16, 100])
@pytest.mark.parametrize("rows", [1, 3])
def test_validation_predicts_every_token_after_the_first_once(length: int, rows: int) -> None:
    batches = list(validation_batches(numbered(length), 7, rows))
    inputs, targets = (np.concatenate([b[k].ravel() for b in batches]) for k in (0, 1))
    np.testing.assert_array_equal(inputs, np.arange(length - 1))
    np.testing.assert_array_equal(targets, np.arange(1, length))
    assert all(len(b[0]) <= rows and b[0].shape[1] <= 7 for b in batches)
    assert sum(b[0].shape[1] < 7 for b in batches) == bool((length - 1) % 7)


@pytest.mark.parametrize("length, whole", [(4 * 10 + 1, 4), (4 * 10, 3), (4 * 10 + 9, 4), (5, 0)])
def test_first_windows_are_whole_or_refused(length, whole):
    if whole:
        expected = np.arange(10 * whole).reshape(whole, 10)
        np.testing.assert_array_equal(first_windows(numbered(length), 10, whole, 10), expected)
        part = first_windows(numbered(length), 10, whole, 3)
        np.testing.assert_array_equal(part, expected[:, :3])
    assert str(whole + 1) in refusal(lambda: first_windows(numbered(length), 10, whole + 1, 10))


@pytest.mark.parametrize(
    "content, message", [(None, "missing"), (b"", "empty"), (b"abcd", "not the file")]
)
def test_a_file_that_is_not_the_prepared_one_is_refused(tmp_path, content, message) -> None:
    path = write_corpus(tmp_path / "data", train=100) / "train.bin"
    assert len(open_tokens(path.parent, "train")) == 100
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert message in refusal(lambda: open_tokens(path.parent, "train"))


END = 0


def test_end_of_text_begins_a_document(data: Path) -> None:
    text = torch.tensor([[5, 3, END, 4, 6, 7, END, 2]])
    assert document_mask("documents", data)(text).starts.tolist() == [[0, 0, 2, 2, 2, 2, 6, 6]]
    assert document_mask(None, data)(text) is None


@pytest.mark.parametrize("micro", [1, 3, 4])
def test_no_micro_batch_has_more_documents_than_were_counted(data: Path, micro: int) -> None:
    """Covers several epochs, a partial update, and rows without a window (no documents)."""
    tokens = np.random.default_rng(6).integers(0, 7, 400).astype("<u2")
    windows = TrainingWindows(tokens, 20, seed=1)
    plans = plan_updates(1900, 240, 20)
    mask = bounded_mask("documents", data, windows, plans, micro)
    plain = document_mask("documents", data)
    for plan in plans:
        ids = windows.window_ids(plan.first, plan.windows)
        for first in range(0, len(ids), micro):
            left = min(plan.tokens - first * 20, micro * 20)
            arrays = windows.batch(ids[first : first + micro], left, micro)
            inputs, targets = (torch.from_numpy(array) for array in arrays)
            documents = mask(inputs, targets)
            offsets = documents.offsets
            assert offsets[-1] == documents.starts.numel() and (offsets.diff() >= 0).all()
            assert offsets.diff().max() <= documents.longest
            read = targets != IGNORED
            assert torch.equal(documents.starts[read], plain(inputs).starts[read])


@pytest.mark.parametrize("content, message", [(None, "is missing"), ("not json", "is damaged")])
def test_a_missing_or_damaged_tokenizer_is_refused(tmp_path, content, message) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    assert f"{path} {message}" in refusal(lambda: document_mask("documents", tmp_path))
