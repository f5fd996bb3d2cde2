"""A corpus described in Croissant 1.0, so that other programs find and load its documents."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from relation.data.recipes import RECIPES
from relation.data.sources import corpus_fingerprint, text_files
from relation.errors import InputError
from relation.store.files import sha256_of

_FORMATS = {
    ".parquet": "application/x-parquet",
    ".jsonl": "application/jsonlines",
    ".txt": "text/plain",
}
# The words that a description's keys stand for, as the format prescribes them.
_OF_CROISSANT = """
citeAs column extract field fileObject fileProperty fileSet format includes isLiveDataset jsonPath
key md5 parentField path recordSet references regex repeated replace separator source subField
transform
"""
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "samplingRate": "cr:samplingRate",
    **{word: f"cr:{word}" for word in _OF_CROISSANT.split()},
}


def croissant(path: str, title: str) -> dict:
    """The description, as JSON, of the texts at `path`: its files' paths are relative to there.

    title: what they are called unless a recipe made them. A record set a file, with the column
    `text` and, of Parquet, every other column of strings.
    Raises InputError where there are no texts.
    """
    files = text_files(path)
    root = Path(path) if Path(path).is_dir() else Path(path).parent
    listed = [(split, file, _name(file, root)) for split in files for file in files[split]]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "version": "1.0.0",
        "identifier": f"sha256:{corpus_fingerprint(path)}",
        **_about(path, title),
        "distribution": [_file_object(file, name) for _, file, name in listed],
        "recordSet": [_record_set(split, file, name) for split, file, name in listed],
    }


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


def _about(path: str, title: str) -> dict:
    for recipe in RECIPES.values():
        if Path(path) == recipe.folder:
            url = f"https://github.com/{recipe.repository}/tree/{recipe.commit}"
            return {
                "name": "public-domain-books",
                "description": (
                    f"{recipe.books} books in the public domain, a chapter or section a row, from "
                    f"the Markdown of {recipe.repository} at commit {recipe.commit}"
                ),
                "license": "https://creativecommons.org/publicdomain/mark/1.0/",
                "url": url,
                "citeAs": url,
                "creator": {"@type": "sc:Organization", "name": recipe.repository, "url": url},
            }
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return {"name": name, "description": f"{title}: texts to train a language model on"}


def _file_object(file: Path, name: str) -> dict:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{file.stat().st_size} B",
        "encodingFormat": _FORMATS[file.suffix],
        "sha256": sha256_of(file),
    }


def _record_set(split: str, file: Path, name: str) -> dict:
    rows = f"{split}/{name}"
    return {
        "@type": "cr:RecordSet",
        "@id": rows,
        "name": rows,
        "description": f"Documents of the {split} split, in order",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{rows}/{column}",
                "name": column,
                "description": "the document" if column == "text" else f"its {column}",
                "dataType": "sc:Text",
                "source": {"fileObject": {"@id": name}, "extract": extract},
            }
            for column, extract in _columns(file).items()
        ],
    }


def _columns(file: Path) -> dict[str, dict]:
    """How each column of a file is read. Raises InputError where it is not readable."""
    if file.suffix == ".txt":
        return {"text": {"fileProperty": "content"}}
    if file.suffix == ".jsonl":
        return {"text": {"column": "text"}}
    try:
        found = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        detail = str(error).partition("\n")[0]
        raise InputError(f"{file} is not readable Parquet ({detail}); replace it") from None
    strings = (pa.string(), pa.large_string())
    return {field.name: {"column": field.name} for field in found if field.type in strings}
