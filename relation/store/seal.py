"""A file's own checksum: the SHA-256 of all its bytes, kept inside the file.

Formats protect parts of a file at most: Parquet's page checksums leave out the footer with its
metadata, safetensors has none. A writer puts UNSEALED under KEY into the text that its format has
room for, and `seal` replaces the zeros by the SHA-256 of the file as it stands with them. The word
KEY thus occurs twice, so that no damaged byte makes a sealed file pass for one without a seal.
"""

import hashlib
import mmap
from pathlib import Path

KEY = "relation.sha256"
_DIGITS = 64
UNSEALED = f"{KEY}:{'0' * _DIGITS}"


def seal(path: Path) -> None:
    """Write a file's checksum over the zeros of UNSEALED, which it holds once."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = _place(content)
        content[place : place + _DIGITS] = _checksum(content, place)


def is_sealed(path: Path) -> bool:
    """Whether a file holds its own checksum; one from before there were seals does not.

    Raises ValueError where it holds one and is not the file that was sealed.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        if content.find(KEY.encode()) < 0:
            return False
        place = _place(content)
        if content[place : place + _DIGITS] != _checksum(content, place):
            raise ValueError("its checksum does not fit its content")
        return True


def _place(content: mmap.mmap) -> int:
    """Where the checksum's digits begin."""
    mark = f"{KEY}:".encode()
    found = content.find(mark)
    if found < 0 or found + len(mark) + _DIGITS > len(content):
        raise ValueError("its checksum is damaged")
    return found + len(mark)


def _checksum(content: mmap.mmap, place: int) -> bytes:
    """SHA-256, 64 hexadecimal digits, of a content with zeros for the digits at `place`."""
    digest = hashlib.sha256()
    with memoryview(content) as whole, whole[:place] as before, whole[place + _DIGITS :] as after:
        for part in (before, b"0" * _DIGITS, after):
            digest.update(part)
    return digest.hexdigest().encode()
