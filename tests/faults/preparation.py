"""Faults of a preparation in progress: kills, two at once, a download that breaks off."""

import json
import signal
from functools import partial
from pathlib import Path

from sample import documents

from faults.registry import case
from faults.sandbox import CAMPAIGN, DATA, Sandbox, until
from faults.training import send_self

fault = partial(case, "fault")
SAME_BYTES = "the same command goes on and ends with the bytes of an undisturbed preparation"
FILES = ("tokenizer.json", "train.bin", "validation.bin")


def small_batches() -> None:
    """In a preparing process: a journal after every 2 documents, as after 4,096 elsewhere."""
    from relation.data import encode

    encode._DOCUMENTS_AT_A_TIME, encode._BATCHES_BETWEEN_JOURNALS = 1, 2


def kill_after(batches: int, number: int = signal.SIGKILL) -> None:
    """In a preparing process: be killed, or stopped, after so many batches."""
    from relation.data import encode

    small_batches()
    batch, taken = encode._batch, []

    def counted(documents):
        taken.append(None)
        if len(taken) == batches:
            send_self(number)
        return batch(documents)

    encode._batch = counted


def unprepared(box: Sandbox) -> dict[str, bytes]:
    """Take the prepared corpus away; returns what it was."""
    before = {name: (box.data / name).read_bytes() for name in FILES}
    for path in list(box.data.iterdir()):
        box.broken.add(path.relative_to(box.folder).as_posix())
        path.unlink()
    return before


def prepare(box: Sandbox, **options):
    return box.run("prepare", DATA, "--campaign", CAMPAIGN, **options)


def assert_prepared(box: Sandbox, before: dict[str, bytes]) -> None:
    assert {name: (box.data / name).read_bytes() for name in FILES} == before


def _killed(box: Sandbox) -> dict[str, bytes]:
    before = unprepared(box)
    assert prepare(box, before=partial(kill_after, 8)).status == -signal.SIGKILL
    return before


@fault("Preparation killed, its journal then noise", quick=True)
def journal_corrupt(box: Sandbox) -> tuple[str, str]:
    before = _killed(box)
    journal = box.results / "work" / DATA / "train.json"
    journal.write_bytes(b"{\xff")
    done = prepare(box)
    assert done.status == 0 and "is damaged" in done.output, done.output
    assert_prepared(box, before)
    warning = next(line for line in done.output.splitlines() if line.startswith("warning: "))
    return warning, "the split is encoded from its start, with the same bytes"


@fault("Preparation killed, the stamp of its partial work then noise")
def stamp_corrupt(box: Sandbox) -> tuple[str, str]:
    before = _killed(box)
    (box.results / "work" / DATA / "key.json").write_bytes(b"\xff\xfe")
    done = prepare(box)
    assert done.status == 0, done.output
    assert_prepared(box, before)
    return done.last, "partial work is thrown away and done again, with the same bytes"


@fault("Preparation killed, its tokenizer then cut to half")
def partial_tokenizer_corrupt(box: Sandbox) -> tuple[str, str]:
    before = _killed(box)
    path = box.results / "work" / DATA / "tokenizer.json"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = prepare(box)
    assert done.status == 2 and "is damaged" in done.last, done.output
    path.unlink()
    assert prepare(box).status == 0
    assert_prepared(box, before)
    return done.last, "deleted as told, it is trained again, with the same bytes"


@fault("The same corpus is prepared twice at once", quick=True)
def two_preparations(box: Sandbox) -> tuple[str, str]:
    before = unprepared(box)
    first = box.start(
        "prepare", DATA, "--campaign", CAMPAIGN, before=partial(kill_after, 4, signal.SIGSTOP)
    )
    until(lambda: (box.results / "work" / DATA / "train.json").exists())
    second = prepare(box)
    assert second.status == 2 and "already running" in second.last, second.output
    first.signal(signal.SIGCONT)
    assert first.wait().status == 0
    assert_prepared(box, before)
    return second.last, "the first is not disturbed"


@fault("The disk is full in the middle of a preparation", needs="mount")
def full_disk_in_preparation(box: Sandbox) -> tuple[str, str]:
    before = unprepared(box)
    with box.own_disk(box.size_kilobytes + 40) as remount:
        done = prepare(box, before=small_batches)
        assert done.status == 2 and "No space left on device" in done.last, done.output
        remount("size=64m")
        assert prepare(box).status == 0
    assert_prepared(box, before)
    return done.last, SAME_BYTES


HUB = """
  hub:
    base: tiny
    seeds: [42]
    corpora:
      sample:
        source:
          kind: huggingface
          validation_modulus: 5
          streams: [{path: FOLDER}]
        train_tokens: 20000
        validation_tokens: null
        tokenizer_characters: 30000
"""


def break_off(rows: int) -> None:
    """In a preparing process: the hub's connection is lost after so many rows."""
    import datasets

    small_batches()
    load = datasets.load_dataset

    class Broken:
        def __init__(self, data):
            self._data = data

        def __iter__(self):
            for index, row in enumerate(self._data):
                if index == rows:
                    raise ConnectionResetError(104, "Connection reset by peer")
                yield row

        def __getattr__(self, name):
            return getattr(self._data, name)

    datasets.load_dataset = lambda *arguments, **options: Broken(load(*arguments, **options))


def hub_corpus(folder: Path) -> None:
    """A data set in a folder, which `datasets` streams as it does the hub's."""
    folder.mkdir()
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for text in documents(400):
            file.write(json.dumps({"text": text}) + "\n")


def _hub(box: Sandbox) -> tuple:
    hub_corpus(box.folder / "hub")
    with (box.folder / "config.yaml").open("a", encoding="utf-8") as config:
        config.write(HUB.replace("FOLDER", str(box.folder / "hub")))
    return "prepare", DATA, "--campaign", "hub"


@fault("A download breaks off and comes back", quick=True)
def download_breaks_off(box: Sandbox) -> tuple[str, str]:
    command = _hub(box)
    done = box.run(*command, before=partial(break_off, 200))
    assert done.status == 2 and "broke off" in done.last, done.output
    again = box.run(*command, before=small_batches)
    assert again.status == 0 and "train goes on at" in again.output, again.output
    folder = box.folder / "results/hub/data" / DATA
    resumed = {name: (folder / name).read_bytes() for name in FILES}
    for path in list(folder.iterdir()):
        path.unlink()
    assert box.run(*command).status == 0
    assert {name: (folder / name).read_bytes() for name in FILES} == resumed
    return done.last.replace(str(box.folder / "hub"), "the data set"), SAME_BYTES
