"""Files of a public repository: from a checkout of it, or from an archive as forges offer them."""

import os
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from relation.errors import InputError

_LARGEST_FILE = 1 << 26  # bytes
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


def repository_files(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """The files of a suffix with their paths in the repository, in any order.

    path: a checkout, or a .tar, .tar.gz or .zip of it, with or without a folder above all files.
    Raises InputError for what is none of these, or is damaged or truncated.
    """
    try:
        if path.is_dir():
            yield from _of_folder(path, suffix)
        elif zipfile.is_zipfile(path):
            yield from _below_one_folder(_of_zip(path, suffix))
        else:
            yield from _below_one_folder(_of_tar(path, suffix))
    # zipfile's RuntimeError: an encrypted file, or a compression that it does not know.
    except (*_DAMAGE, RuntimeError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} is no whole checkout, .tar.gz or .zip ({detail}); download it again"
        ) from None


def _of_folder(root: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name != ".git"]
        for path in (Path(folder, name) for name in names if name.endswith(suffix)):
            _check_size(path.as_posix(), path.stat().st_size)
            yield path.relative_to(root).as_posix(), path.read_bytes()


def _of_tar(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(suffix):
                _check_size(member.name, member.size)
                yield member.name, archive.extractfile(member).read()


def _of_zip(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and member.filename.endswith(suffix):
                _check_size(member.filename, member.file_size)
                yield member.filename, archive.read(member)


def _below_one_folder(files: Iterator[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The same without the one folder that all files lie in, as the forges' archives have it."""
    found = list(files)
    tops = {path.partition("/")[0] for path, _ in found}
    if len(tops) == 1 and all("/" in path for path, _ in found):
        return [(path.partition("/")[2], content) for path, content in found]
    return found


def _check_size(name: str, size: int) -> None:
    if size > _LARGEST_FILE:
        raise InputError(f"{name} has {size:,} bytes, more than any text of the repository")


def commit_of(path: Path) -> str | None:
    """The commit that a checkout or archive says it is of; None where it does not say."""
    try:
        if path.is_dir():
            return _commit_of_checkout(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                said = archive.comment.decode("ascii", "replace")
        else:
            with tarfile.open(path) as archive:
                archive.next()
                said = archive.pax_headers.get("comment", "")
    except _DAMAGE:
        return None  # repository_files says what is wrong with it
    return said if len(said) == 40 else None


def _commit_of_checkout(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    try:
        asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
