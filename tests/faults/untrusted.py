"""Bad inputs: configurations, checkpoints and records that nobody should trust."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from faults.inputs import bad, bounded, refused
from faults.sandbox import CAMPAIGN, DATA, DONE_RUN, Sandbox

QUICK = (
    "yaml_tags",
    "yaml_aliases",
    "yaml_twice",
    "run_leaves",
    "checkpoint_torch",
    "checkpoint_huge",
    "origin_noise",
)  # of those that `register` gets


def register(name: str, title: str, act: Callable) -> None:
    """Register a bad input that a function made."""
    act.__name__ = name
    bad(title, quick=name in QUICK)(act)


def _config(name: str, title: str, content: bytes, *said: str, file: str = "odd.yaml") -> None:
    def act(box: Sandbox) -> tuple[str, str]:
        (box.folder / file).write_bytes(content)
        return refused(box, box.run("plan", "--config", file, before=bounded), *said)

    register(name, title, act)


_config(
    "yaml_tags",
    "A configuration with a tag that runs Python",
    b"campaign: !!python/object/apply:os.system ['touch owned']\n",
    "is not YAML",
)
_config(
    "yaml_aliases",
    "A configuration whose aliases unfold without bound",
    b"a: &a [x, x]\n"
    + b"".join(b"%c: &%c [*%c, *%c, *%c]\n" % (i + 1, i + 1, i, i, i) for i in range(97, 120)),
    "aliases are not taken",
)
_config("yaml_nested", "A configuration of ten thousand brackets", b"[" * 10_000, "too deeply")
_config(
    "json_nested",
    "A JSON configuration of a million brackets",
    b"[" * 1_000_000,
    "too deeply",
    file="odd.json",
)
_config("yaml_twice", "A configuration with a key twice", b"campaign: a\ncampaign: b\n", "twice")
_config("yaml_bytes", "A configuration that is no text", bytes(range(256)) * 9, "odd.yaml")


def _called(name: str, title: str, arguments: tuple, *said: str) -> None:
    def act(box: Sandbox) -> tuple[str, str]:
        return refused(box, box.run(*arguments), *said)

    register(name, title, act)


_called(
    "run_leaves",
    "A run whose name leaves the campaign's folder",
    ("train", "../../etc/full/42", "--campaign", CAMPAIGN),
    "has no run",
)
_called(
    "config_folder", "A folder in place of a configuration", ("plan", "--config", "."), "cannot be"
)
_called(
    "device_corpus",
    "A device in place of a corpus",
    ("prepare", DATA, "--campaign", "texts", "--corpus", "/dev/zero"),
    "holds no",
)


class _Attack:
    """What a pickle does to who loads it."""

    def __reduce__(self):
        return (Path("owned").touch, ())


def _header(values: dict, body: bytes = b"") -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<Q", len(text)) + text + body


def _checkpoint(name: str, title: str, content: Callable[[bytes], bytes], *said: str) -> None:
    """A checkpoint in place of the trained one; a text is generated from it."""

    def act(box: Sandbox) -> tuple[str, str]:
        path = box.folder / "model.safetensors"
        whole = (box.results / "runs" / DONE_RUN / "model.safetensors").read_bytes()
        path.write_bytes(content(whole))
        tokenizer = str(box.data / "tokenizer.json")
        command = ("generate", "--checkpoint", str(path), "--tokenizer", tokenizer)
        done = box.run(*command, "--prompt", "Once", "--tokens", "2", before=bounded)
        assert not (box.folder / "owned").exists()
        return refused(box, done, "model.safetensors", *said)

    register(name, title, act)


def _torch_pickled(_: bytes) -> bytes:
    import io

    import torch

    buffer = io.BytesIO()
    torch.save({"model": _Attack()}, buffer)
    return buffer.getvalue()


def _with_model(whole: bytes, **changes: object) -> bytes:
    """The checkpoint with another configuration in its header."""
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    model = json.loads(header["__metadata__"]["model"]) | changes
    header["__metadata__"]["model"] = json.dumps(model)
    return _header(header, whole[8 + size :])


_checkpoint(
    "checkpoint_torch",
    "A checkpoint that torch.save wrote, with a pickle inside",
    _torch_pickled,
    "no complete checkpoint",
)
_checkpoint(
    "checkpoint_huge",
    "A checkpoint whose header asks for 10^15 parameters",
    lambda whole: _with_model(whole, d_model=1 << 24, d_ff=1 << 30, vocab_size=1 << 30),
    "no complete checkpoint",
)
_checkpoint(
    "checkpoint_deep",
    "A checkpoint whose header asks for ten million layers",
    lambda whole: _with_model(whole, layout="A" * 10_000_000),
    "no complete checkpoint",
)
_checkpoint(
    "checkpoint_nested",
    "A checkpoint whose header nests a hundred thousand brackets",
    lambda whole: _header({"__metadata__": {"model": "[" * 100_000}}),
    "no complete checkpoint",
)


def _record(name: str, title: str, origin: bytes | None, *said: str) -> None:
    """A record with another origin, as `plan` finds it."""

    def act(box: Sandbox) -> tuple[str, str]:
        path = box.results / "runs" / DONE_RUN / "record.parquet"
        table = pq.read_table(path)
        metadata = {} if origin is None else {b"relation.origin": origin}
        box.broken.add(path.relative_to(box.folder).as_posix())
        pq.write_table(table.replace_schema_metadata(metadata), path)
        return refused(box, box.run("plan", "--campaign", CAMPAIGN), *said)

    register(name, title, act)


_record("origin_missing", "A record without an origin", None, "carries no origin")
_record("origin_noise", "A record whose origin is noise", b"\xff{", "damaged origin")
_record("origin_list", "A record whose origin is a list", b"[1, 2]", "damaged origin")
_record("origin_nested", "A record whose origin nests brackets", b"[" * 100_000, "damaged origin")
