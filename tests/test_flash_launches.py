"""Every shipped launch of FlashRelation compiles for its architecture, without a GPU."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from relation.kernels.flash_relation import launches
from relation.kernels.flash_relation.launches import PASSES, load_launches, split_width

FOLDER = Path(launches.__file__).parent
OTHERS = ("sm_80", "sm_89", "sm_100")
ENTRIES = [
    (name, architecture, entry)
    for architecture, entries in load_launches().items()
    for entry in entries
    for name in PASSES
]
# Only Hopper has wgmma, and only for numbers of 16 bits.
WITH_PRODUCTS = [e for e in ENTRIES if e[1] == "sm_90" and e[2].bits == 16]
# The widths of an entry that are compiled to other code than its widest: not scaled beforehand, or
# one tile of two.
NARROWER = {32: (20,), 64: (60,), 128: (96, 100)}


def by_descriptors(name, entry) -> bool:
    return entry.descriptors and name != "repair"


def recorded() -> dict[tuple, dict]:
    with (FOLDER / "resources.csv").open(newline="") as file:
        return {
            tuple(row[k] for k in ("pass", "architecture", "bits", "widest")): row
            for row in csv.DictReader(file)
        }


def label(value):
    return value if isinstance(value, str) else f"{value.bits}-{value.widest}"


@pytest.mark.parametrize(("name", "architecture", "entry"), ENTRIES, ids=label)
def test_every_launch_fits_and_grows_no_further(name, architecture, entry):
    triton = pytest.importorskip("triton")
    from relation.kernels.common import SHARED_MEMORY
    from relation.kernels.flash_relation.resources import pass_resources

    found = pass_resources(name, architecture, entry, by_descriptors(name, entry))
    assert found.shared <= SHARED_MEMORY[architecture]
    row = recorded()[name, architecture, str(entry.bits), str(entry.widest)]
    assert row["tiles"] == ("descriptors" if by_descriptors(name, entry) else "pointers")
    if row["triton"] == triton.__version__:
        assert found.stack <= int(row["stack"])
        assert found.shared <= int(row["shared"])
        assert found.registers <= int(row["registers"])


@pytest.mark.parametrize(("name", "architecture", "entry"), WITH_PRODUCTS, ids=label)
def test_tensor_cores_read_no_tile_before_it_has_arrived(name, architecture, entry):
    """The cause of forwards that came out wrong on Hopper, in the code of every shipped launch."""
    pytest.importorskip("triton")
    from relation.kernels.fences import count_products, unfenced_products
    from relation.kernels.flash_relation.resources import compile_pass

    widths = [(entry.widest, False), *((w, False) for w in NARROWER.get(entry.widest, ()))]
    for width, documents in [*widths, (entry.widest, True)]:
        at = replace(entry, widest=width)
        by = by_descriptors(name, entry)
        ptx = compile_pass(name, architecture, at, by, documents).asm["ptx"]
        assert count_products(ptx) > 0
        assert unfenced_products(ptx) == []


def test_where_wgmma_is_used_tiles_come_through_descriptors():
    for entry in load_launches()["sm_90"]:
        assert entry.descriptors == (entry.bits == 16)


@pytest.mark.parametrize("architecture", OTHERS)
def test_other_architectures_take_what_fits_them(architecture):
    pytest.importorskip("triton")
    from relation.kernels.common import SHARED_MEMORY
    from relation.kernels.flash_relation.resources import pass_resources

    # Of 16 and of 32 bits, the entry and pass that take the most in the recorded table.
    for bits in (16, 32):
        entries = {entry.widest: entry for entry in load_launches()["sm_120"] if entry.bits == bits}
        rows = [key for key in recorded() if key[1:3] == ("sm_120", str(bits))]
        name, _, _, widest = max(rows, key=lambda key: int(recorded()[key]["shared"]))
        found = pass_resources(name, architecture, entries[int(widest)])
        assert found.shared <= SHARED_MEMORY[architecture]


def test_untimed_architectures_are_marked_untuned():
    for architecture, entries in load_launches().items():
        assert architecture == "sm_90" or not any(entry.tuned for entry in entries)


@pytest.mark.parametrize("width", range(16, 129))
def test_widths_are_covered_without_padding_where_two_tiles_are_narrower(width):
    wide, rest = split_width(width)
    assert wide + rest >= width
    assert wide + rest <= max(16, 1 << (width - 1).bit_length())
    for part in (wide, rest):
        assert part == 0 or (part >= 16 and part & (part - 1) == 0)
    for bits in (16, 32):
        for entries in load_launches().values():
            assert any(e.widest >= width for e in entries if e.bits == bits)


def test_a_tile_that_does_not_divide_its_block_is_refused(tmp_path):
    text = (FOLDER / "launches.toml").read_text(encoding="utf-8")
    file = tmp_path / "launches.toml"
    file.write_text(text.replace("block_i = 64, block_j = 64", "block_i = 64, block_j = 48", 1))
    with pytest.raises(ValueError, match="48 does not divide 64"):
        load_launches(file)


@pytest.mark.parametrize(
    ("heads", "scanned", "at_a_time"),
    [(1, 10**9, 1), (31, 1, 31), (128, 512 << 10, 32), (256, 192 << 10, 128), (37, 1 << 20, 1)],
)
def test_heads_run_in_equal_groups_that_share_the_cache(heads, scanned, at_a_time):
    groups = heads // at_a_time
    assert launches.head_groups(heads, 5, scanned, 50 << 20) == (at_a_time, 5, groups)


def test_more_groups_than_cuda_counts_run_at_once():
    assert launches.head_groups(65_537, 5, 1 << 30, 50 << 20) == (65_537, 5, 1)
