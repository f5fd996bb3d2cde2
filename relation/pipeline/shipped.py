"""The shipped records of a campaign: where they lie, and that they are what was published."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.store.bundle import unpack
from relation.store.files import sha256_of

CHECKSUMS = "SHA256SUMS"
# Hundreds of small records, alike in most of their bytes: shipped in one archive, read as files.
ARCHIVE, _PACKED = "runs.tar.xz", ("runs", "diagnostics", "beyond")


def is_packed(name: Path) -> bool:
    """Whether the archive has a file, whose path is below the campaign's folder."""
    return name.parts[0] in _PACKED


@dataclass(frozen=True)
class Shipped:
    """What was published of a campaign, below `place`, results/published/<campaign>/."""

    campaign: Campaign
    place: Path

    @cached_property
    def folder(self) -> Path:
        """The same; at the first look the files of the archive are laid there, too."""
        absent = [*self._absent()]
        if absent:
            unpack(self.place / ARCHIVE, self.place, absent)
        return self.place

    def _absent(self) -> Iterator[str]:
        """The files of the archive that are not there, or are older than it: of another version."""
        archive = self.place / ARCHIVE
        if not archive.exists():
            return
        made = archive.stat().st_mtime_ns
        for name in self.checksums:
            path = self.place / name
            if is_packed(Path(name)) and not (path.exists() and path.stat().st_mtime_ns >= made):
                yield name

    @cached_property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of every file, by its path below the folder; empty where nothing was published.

        Raises InputError where the list cannot be read.
        """
        path = self.place / CHECKSUMS
        if not path.exists():
            return {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        except ValueError:
            raise InputError(
                f"{path} is damaged; restore it, or delete {self.place} and publish anew what is "
                "made here"
            ) from None

    def check(self, relative: Path) -> None:
        """Raise InputError unless a file is the one that the checksums list."""
        path = self.folder / relative
        if not path.is_file() or self.checksums.get(relative.as_posix()) != sha256_of(path):
            raise InputError(
                f"{path} is not the file that {CHECKSUMS} lists; restore it, or make its record "
                "here and publish again"
            )

    def check_all(self) -> None:
        """Raise InputError unless all files are those that the checksums list, and some are."""
        folder = self.folder
        if not self.checksums:
            raise InputError(
                f"{folder} holds no {CHECKSUMS}; `python -m relation publish --campaign "
                f"{self.campaign.name}` ships records"
            )
        for name in self.checksums:
            self.check(Path(name))

    def files(self) -> list[Path]:
        """Every file, in the order of the checksums."""
        return [self.folder / name for name in self.checksums]
