"""Many small records in one archive: what they have in common, their origins above all, once."""

import tarfile
from collections.abc import Container, Iterable
from io import BytesIO
from lzma import LZMAError
from pathlib import Path

from relation.errors import InputError
from relation.store.files import atomic_path


def pack(folder: Path, files: Iterable[Path], archive: Path) -> None:
    """Write files, which lie below folder, into a .tar.xz: of equal files the same bytes."""
    with atomic_path(archive) as temporary, tarfile.open(temporary, "w:xz", preset=9) as tar:
        for path in sorted(files):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            content = path.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))


def unpack(archive: Path, folder: Path, listed: Container[str]) -> None:
    """Lay an archive's files below folder, those that are listed, over others of their names.

    Raises InputError where the archive is damaged.
    """
    try:
        with tarfile.open(archive, "r:xz") as tar:
            for entry in tar:
                path = folder / entry.name
                if entry.name in listed and entry.isfile():
                    with atomic_path(path) as temporary:
                        temporary.write_bytes(tar.extractfile(entry).read())
    except (tarfile.TarError, LZMAError, EOFError) as error:
        raise InputError(f"{archive} is damaged ({error}); restore it") from None
