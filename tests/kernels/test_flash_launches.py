"""Every shipped launch of FlashRelation compiles for its architecture, without a GPU."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from relation.kernels.flash_relation import launches
from relation.kernels.flash_relation.launches import (
    GLUON_PASSES,
    PASSES,
    load_launches,
    split_width,
)

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
IN_GLUON = [
    pytest.param(name, entry, marks=() if entry.widest == 64 else pytest.mark.slow)
    for entry in load_launches()["sm_90"]
    for name in GLUON_PASSES
    if entry.gluon(name) is not None
]
# One launch always, the others where slow tests are asked for.
MARKED = [
    each
    if each[2].widest == 64 and each[0] == "p2_info"
    else pytest.param(*each, marks=pytest.mark.slow)
    for each in WITH_PRODUCTS
]
# The widths of an entry that are compiled to other code than its widest: not scaled beforehand, or
# one tile of two.
NARROWER = {32: (20,), 64: (60,), 128: (96, 100)}


def by_descriptors(name, entry) -> bool:
    return entry.descriptors and name != "repair"


def recorded() -> dict[tuple, dict]:
    with (FOLDER / "resources.csv").open(newline="") as file:
        return {
            tuple(row[k] for k in ("pass", "architecture", "bits", "widest", "tiles")): row
            for row in csv.DictReader(file)
        }


def label(value):
    return value if isinstance(value, str) else f"{value.bits}-{value.widest}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture", "entry"), ENTRIES, ids=label)
def test_every_launch_fits_and_grows_no_further(name, architecture, entry):
    triton = pytest.importorskip("triton")
    from relation.kernels.common import SHARED_MEMORY
    from relation.kernels.flash_relation.resources import pass_resources

    found = pass_resources(name, architecture, entry, by_descriptors(name, entry))
    assert found.shared <= SHARED_MEMORY[architecture]
    tiles = "descriptors" if by_descriptors(name, entry) else "pointers"
    row = recorded()[name, architecture, str(entry.bits), str(entry.widest), tiles]
    if row["triton"] == triton.__version__:
        assert found.stack <= int(row["stack"])
        assert found.shared <= int(row["shared"])
        assert found.registers <= int(row["registers"])


@pytest.mark.parametrize(("name", "entry"), IN_GLUON, ids=label)
def test_every_gluon_launch_fits_and_grows_no_further(name, entry):
    """Programs that stay side by side share a multiprocessor's registers and shared memory."""
    triton = pytest.importorskip("triton")
    from relation.kernels.common import SHARED_MEMORY
    from relation.kernels.factors import overwritten_factors
    from relation.kernels.fences import count_products, unfenced_products
    from relation.kernels.flash_relation.resources import compile_gluon
    from relation.kernels.resources import resources_of, serialises_products
    from relation.kernels.uniforms import unset_uniforms

    compiled, launch = compile_gluon(name, "sm_90", entry), entry.gluon(name)
    assert not serialises_products(compiled)
    ptx = compiled.asm["ptx"]
    assert count_products(ptx) > 0 and "cp.async.bulk.tensor" in ptx
    # No thread copies a tile. What threads store into one is fenced before its product; at other
    # widths than 64 only block numbers and tiles that change layout are stored.
    stored = {found.written for found in unfenced_products(ptx)}
    assert stored <= (set() if entry.widest == 64 else {"stored"})
    assert overwritten_factors(compiled) == 0
    assert unset_uniforms(compiled) == []
    found = resources_of(compiled)
    # A KiB a program is CUDA's own; of the producer's warp group three warps idle.
    assert launch.programs * (found.shared + 1024) <= SHARED_MEMORY["sm_90"] + 1024
    assert launch.programs * 8 * 32 * launch.registers <= 65_536
    row = recorded()[name, "sm_90", str(entry.bits), str(entry.widest), "gluon"]
    if row["triton"] == triton.__version__:
        assert found.stack <= int(row["stack"])
        assert found.shared <= int(row["shared"])


def test_gluon_is_chosen_for_what_it_can_do(monkeypatch):
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    from relation.kernels.flash_relation import hopper

    entries = load_launches()["sm_90"]
    at = {entry.widest: entry for entry in entries if entry.bits == 16}
    asked = "p1", at[64]
    assert hopper.why_triton(*asked, torch.bfloat16) is None
    assert "bfloat16 only" in hopper.why_triton(*asked, torch.float16)
    assert "no documents" in hopper.why_triton(*asked, torch.bfloat16, documents=True)
    assert "launches.toml" in hopper.why_triton("p1", at[128], torch.bfloat16)
    assert hopper.chosen("p1", at[128], torch.bfloat16, False) is None
    assert hopper.chosen(*asked, torch.bfloat16, False) == at[64].gluon_p1
    assert at[64].in_triton().gluon("p1") is None
    backward = replace(at[48], gluon_forward=None)
    monkeypatch.setattr(hopper, "select_launches", lambda *given: backward)
    told = hopper.describe_passes(torch.device("cuda"), torch.bfloat16, 48)
    assert told.startswith("forward in Triton: launches.toml has no gluon_forward")
    assert told.endswith("p1 in Gluon; p2_info in Gluon")
    with pytest.raises(ValueError, match="gluon_p1 and gluon_p2_info come together"):
        replace(at[48], gluon_p2_info=None)
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    hopper._why_no_gluon.cache_clear()
    assert "this is 3.9.0" in hopper.why_triton(*asked, torch.bfloat16)
    monkeypatch.undo()
    hopper._why_no_gluon.cache_clear()


@pytest.mark.parametrize(("name", "architecture", "entry"), MARKED, ids=label)
def test_tensor_cores_read_arrived_tiles_and_unchanged_factors(name, architecture, entry):
    """The faults that compilers have made of such loops, in the code of every shipped launch."""
    pytest.importorskip("triton")
    from relation.kernels.factors import overwritten_factors
    from relation.kernels.fences import count_products, unfenced_products
    from relation.kernels.flash_relation.resources import compile_pass
    from relation.kernels.uniforms import unset_uniforms

    widths = [(entry.widest, False), *((w, False) for w in NARROWER.get(entry.widest, ()))]
    for width, documents in [*widths, (entry.widest, True)]:
        at = replace(entry, widest=width)
        by = by_descriptors(name, entry)
        compiled = compile_pass(name, architecture, at, by, documents)
        assert count_products(compiled.asm["ptx"]) > 0
        assert unfenced_products(compiled.asm["ptx"]) == []
        assert overwritten_factors(compiled) == 0
        assert unset_uniforms(compiled) == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", OTHERS)
def test_other_architectures_take_what_fits_them(architecture):
    pytest.importorskip("triton")
    from relation.kernels.common import SHARED_MEMORY
    from relation.kernels.flash_relation.resources import pass_resources

    # Of 16 and of 32 bits, the entry and pass that take the most in the recorded table.
    for bits in (16, 32):
        entries = {entry.widest: entry for entry in load_launches()["sm_120"] if entry.bits == bits}
        rows = [key for key in recorded() if key[1:3] == ("sm_120", str(bits))]
        name, _, _, widest, _ = max(rows, key=lambda key: int(recorded()[key]["shared"]))
        found = pass_resources(name, architecture, entries[int(widest)])
        assert found.shared <= SHARED_MEMORY[architecture]


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
