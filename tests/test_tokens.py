"""Token files read a slice at a time: as an array reads, or one line that says what is wrong."""

import os
from pathlib import Path

import numpy as np
import pytest

from relation.data.tokens import TokenFile, open_prepared
from relation.errors import InputError
from relation.store.files import sha256_of

IDS = (np.arange(100) ** 2 % 65536).astype("<u2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    IDS.tofile(tmp_path / "train.bin")
    return tmp_path / "train.bin"


ENDS = [(0, 10), (7, 8), (90, 200), (100, 101), (5, 5), (9, 3), (None, 4), (-3, None)]


@pytest.mark.parametrize("start, stop", ENDS)
def test_a_slice_is_the_arrays(path: Path, start: int | None, stop: int | None) -> None:
    tokens, part = TokenFile(path), slice(start, stop)
    assert len(tokens) == len(IDS)
    np.testing.assert_array_equal(tokens[part], IDS[part])
    assert tokens[part].dtype == IDS.dtype


def test_a_deleted_file_stays_readable_and_is_closed_at_last(path: Path) -> None:
    tokens = TokenFile(path)
    descriptor = tokens._descriptor
    path.unlink()
    np.testing.assert_array_equal(tokens[:], IDS)
    del tokens
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_that_is_cut_meanwhile_is_told(path: Path) -> None:
    tokens = TokenFile(path)
    os.truncate(path, 21)
    np.testing.assert_array_equal(tokens[:10], IDS[:10])
    with pytest.raises(InputError, match="lost its end"):
        tokens[:11]


def test_a_file_without_permission_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        TokenFile(path)


@pytest.mark.parametrize(
    "content, said", [(None, "missing"), (b"", "empty"), (b"abc", "ends inside a token")]
)
def test_a_file_that_holds_no_tokens_is_refused(
    path: Path, content: bytes | None, said: str
) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        TokenFile(path)


def test_a_prepared_file_is_the_one_on_record(path: Path) -> None:
    assert len(open_prepared(path.parent, "train", sha256_of(path))) == len(IDS)
    with pytest.raises(InputError, match="not the file that data"):
        open_prepared(path.parent, "train", "0" * 64)
