"""The launches of both operators, compiled without a GPU: their resources, and compiler faults.

`machine_code` explains the faults. Hand-written examples of each come first.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from interpreter import INTERPRETED
from machine_code import (
    SHARED_MEMORY,
    assert_sound,
    dropped_variables,
    has_products,
    overwritten_factors,
    serialises_products,
    unfenced_products,
    unset_uniforms,
)

pytest.importorskip("triton")
if INTERPRETED:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import triton
import triton.language as tl
from fake_gpu import UTILS, fake_gpu
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from relation.kernels import common
from relation.kernels.available import NARROWEST, WIDEST
from relation.kernels.flash_relation import launch as flash
from relation.kernels.flash_relation import launches as flash_launches
from relation.kernels.flash_relation.launches import LAUNCHES, Launches
from relation.kernels.linear_relation import launch, launches

PRODUCT = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 0;"
FENCE = "fence.proxy.async.shared::cta;"
WAIT = "cp.async.wait_group 2;"
STORE = "st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5};"
# Triton 3.6 compiles a pipelined loop like this. Triton 3.7.1 begins it with a fence.
LOOP = ("$L__BB0_1:", PRODUCT, WAIT, "bar.sync 0;", "@%p1 bra $L__BB0_1;", "ret;")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((STORE, FENCE, PRODUCT), []),
        ((FENCE, WAIT, STORE, PRODUCT, FENCE), [(4, "copied"), (4, "stored")]),
        ((WAIT, FENCE, *LOOP), [(4, "copied")]),
        ((WAIT, LOOP[0], FENCE, *LOOP[1:]), []),
        ((STORE, "@%p1 bra $L__BB0_2;", FENCE, "$L__BB0_2:", PRODUCT), [(5, "stored")]),
    ],
)
def test_a_fence_lies_on_every_way_from_a_write_to_a_product(lines, expected):
    assert unfenced_products("\n".join(lines)) == expected


PTX = """
    mov.b32 %r1, %r9;
$loop:
    {between}
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{%r5,%r6}}, {{%r1,%r2}}, %rd1, 1;
    @%p1 bra $loop;
"""
CODE = """
        /*0010*/                   MOV R8, R1 ;  /* 0x0 */
        /*0020*/                   {before} ;  /* 0x0 */
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], RZ ;  /* 0x0 */
        /*0040*/                   {behind} ;  /* 0x0 */
        /*0050*/              @P0  BRA 0x20 ;  /* 0x0 */
"""
KEPT, OTHER = "add.f32 %r3, %r4, %r5;", "FADD R2, R8, R3"


@pytest.mark.parametrize(
    ("between", "before", "behind", "lost"),
    [
        (KEPT, OTHER, "FADD R2, R9, R3", 0),
        (KEPT, OTHER, "MUFU.EX2 R11, R3", 1),
        # PTX itself changes the factor, or the loop writes it again before the product.
        ("cvt.rn.bf16x2.f32 %r2, %r3, %r4;", OTHER, "MUFU.EX2 R11, R3", 0),
        (KEPT, "LDSM.16.M88.4 R8, [R3]", "MUFU.EX2 R11, R3", 0),
        (KEPT, OTHER, "HGMMA.64x16x16.F32.BF16 R4, R56, gdesc[UR8], R4", 1),
    ],
)
def test_a_factor_that_ptx_keeps_is_lost_where_code_writes_behind_its_product(
    between, before, behind, lost
):
    ptx, code = PTX.format(between=between), CODE.format(before=before, behind=behind)
    assert overwritten_factors(ptx, code) == lost
    assert overwritten_factors(ptx.replace("@%p1 bra $loop;", "ret;"), code) == 0


UNIFORM_LOOP = ("UIADD3 UR4, UR8, 0x40, URZ", "UMOV UR8, UR9", "@P0 BRA 0x10", "EXIT")
HGMMA = "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4].tnspB, R24"
LEFT_IN_REGISTERS = "HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR4], RZ, !UPT"
LOW = "UMOV UR4, 0x1"


@pytest.mark.parametrize(
    ("instructions", "unset"),
    [
        # ptxas 12.8 can put the copy after its use, so the loop's first step is wrong.
        (("UMOV UR9, 0x2000", *UNIFORM_LOOP), [[8]]),
        (("ULDC.64 UR8, c[0x0][0x210]", *UNIFORM_LOOP), []),
        # A product reads its descriptors. A 64-bit result takes two registers.
        ((LOW, HGMMA), [[5, 6, 7]]),
        ((LOW, "UMOV UR5, 0x1", "UIADD3.64 UR6, UR4, 0x40, URZ", HGMMA), []),
        ((LOW, LEFT_IN_REGISTERS), [[6, 7]]),
        # Every path to an instruction counts.
        (("BRA.U UP0, 0x20", LOW, "MOV R2, UR4"), [[4]]),
        (("BRA 0x20", "MOV R2, UR4", "EXIT"), []),
    ],
)
def test_a_uniform_register_has_a_value_before_it_is_read(instructions, unset):
    lines = (f"     /*{16 * n:04x}*/  {x} ;  /* 0x0 */" for n, x in enumerate(instructions))
    assert [registers for _, registers in unset_uniforms("\n".join(lines))] == unset


@gluon.jit
def drops_before(out, steps):
    stage = 0
    before = stage
    for step in range(steps):
        gl.store(out + before, step)
        before = stage
        stage += 2


@gluon.jit
def carries_before(out, steps):
    stage = 0
    for step in range(steps):
        before = stage
        stage += 2
        gl.store(out + before, step)


@pytest.mark.parametrize(("kernel", "names"), [(drops_before, {"before"}), (carries_before, set())])
def test_a_loop_that_drops_a_variable_is_found(kernel, names, monkeypatch):
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", True)  # not from the cache
    with fake_gpu("sm_90"), dropped_variables() as dropped:
        kernel[(1,)](torch.zeros(8, dtype=torch.int32), 8)
    assert dropped == names


def call_flash(launches: Launches, documents=False, dtype=torch.bfloat16) -> None:
    """Launch a forward and backward call at the entry's widest head."""
    p1, p2, info, dy = torch.zeros(4, 1, 130, 2, launches.widest, dtype=dtype).transpose(2, 3)
    starts = torch.zeros(1, 130, dtype=torch.int32) if documents else None
    given = 2.0, True, starts, starts
    with patch.object(flash, "select_launches") as selected:
        selected.return_value = launches
        kept = flash.launch_forward(p1, p2, info, torch.ones(()), *given)
        flash.launch_backward(dy, p1, p2, info, *kept, *given)


def test_a_call_that_comes_again_is_launched_as_triton_launched_it(monkeypatch):
    """`common.start` finds the compiled kernel and passes the same arguments in the same order."""
    launched = []
    monkeypatch.setattr(UTILS, "launch", lambda *given: launched.append(given))
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: 4096)  # results have other addresses

    def seen(x):
        if isinstance(x, tuple | list):
            return [seen(part) for part in x]
        if isinstance(x, torch.Tensor):
            return x.dtype, x.shape
        return x if isinstance(x, int | float | bytes) else type(x)

    with fake_gpu("sm_90"):
        for _ in range(2):
            call_flash(next(entry for entry in LAUNCHES["sm_90", 2] if entry.widest == 64))
    first, second = launched[:4], launched[4:]
    assert len(second) == 4 and seen(first) == seen(second)


@triton.jit
def scales(out, x, n, factor, K: tl.constexpr):
    i = tl.arange(0, 512)
    if n is not None:
        x += n
    tl.store(out + i, tl.load(x + i) * factor * K)


def test_a_call_of_another_kind_runs_the_kernel_that_triton_compiles_for_it(monkeypatch):
    """Other dtypes, alignment, integers, constants and options, each after calls of all kinds."""
    launched = []
    load = lambda name, code, *given: (None, hash(code), 0, 0, 1024)  # noqa: E731
    monkeypatch.setattr(UTILS, "load_binary", load)
    monkeypatch.setattr(UTILS, "launch", lambda *given: launched.append(given[4]))
    x, usual = torch.zeros(64), {"K": 1, "num_warps": 4}
    kinds = [(x, x, n, usual) for n in (2, 1, 16, None)]
    kinds += [(x, x.half(), 16, usual), (x, x[1:], None, usual)]
    kinds += [(x, x, 16, usual | other) for other in ({"K": 2}, {"num_warps": 8})]
    with fake_gpu("sm_90"):
        for *arguments, constants in 2 * kinds:
            common.start(scales, (1,), *arguments, 0.5, **constants)
        for *arguments, constants in kinds:
            scales[(1,)](*arguments, 0.5, **constants)
    first, again, direct = torch.tensor(launched).view(3, -1).tolist()
    assert first == again == direct and len(set(direct)) == len(kinds)


@pytest.mark.parametrize("module", [flash_launches, launches], ids=["flash", "linear"])
def test_every_head_width_has_the_narrowest_launches_that_fit(module, monkeypatch):
    for n, ((gpu, size), entries) in enumerate(module.LAUNCHES.items()):
        monkeypatch.setattr(module, "architecture", lambda device, gpu=gpu: gpu)
        for width in range(NARROWEST, WIDEST + 1):
            widest = module.select_launches(torch.device("cuda", 100 + n), size, width).widest
            assert widest == min(entry.widest for entry in entries if entry.widest >= width)


@pytest.mark.parametrize(
    ("dtype", "shape", "documents", "passes"),  # the group counts of passes in Gluon
    [
        (torch.bfloat16, (1, 2, 130), False, [1, 1, 1]),
        (torch.bfloat16, (8, 4, 2048), False, [3, 2, 2]),
        (torch.bfloat16, (8, 4, 2048), True, [1, 1, 1]),
        (torch.bfloat16, (1, 2, 4096), False, [1, 1, 1]),
        (torch.bfloat16, (64, 4, 1024), False, [1, 1, 2]),
        (torch.bfloat16, (64, 4, 448), False, [1, 1, 1]),
        (torch.float16, (8, 4, 2048), False, [None, 2, 2]),
        (torch.float32, (8, 4, 2048), False, [None, None, None]),
    ],
)
def test_passes_run_in_gluon_where_it_is_right_and_faster(dtype, shape, documents, passes):
    """Without a running maximum FP16 overflows, and groups that share tiles take no documents."""
    (entry,) = (entry for entry in ENTRIES if entry.widest == 128)
    x = torch.empty(*shape, 128, dtype=dtype, device="meta")
    chosen = [flash.chosen(name, entry, x, documents) for name in ("forward", "p1", "p2_info")]
    assert [launch and launch.groups for launch in chosen] == passes


def test_results_of_gluon_have_no_gaps_between_heads(monkeypatch):
    """TMA pads heads of 60 channels to 64."""
    from relation.kernels.flash_relation import hopper_launch, triton_forward

    for module in (hopper_launch, triton_forward):
        monkeypatch.setattr(module, "start", lambda *given, **options: None)
    monkeypatch.setattr(flash, "select_launches", lambda *given: ENTRIES[0])
    p1, p2, info, dy = torch.zeros(4, 1, 20, 2, 60).bfloat16().transpose(2, 3)
    kept = flash.launch_forward(p1, p2, info, torch.ones(()), 2.0, True)
    *gradients, _ = flash.launch_backward(dy, p1, p2, info, *kept, 2.0, True)
    for x in (kept[0], *gradients):
        assert x.shape == p1.shape and x.transpose(1, 2).is_contiguous()


def first_ones(cases: list[tuple], ordinary: int) -> list:
    """Mark all cases slow but the first ones."""
    slow = pytest.mark.slow
    return [
        pytest.param(*case, marks=slow if n >= ordinary else ()) for n, case in enumerate(cases)
    ]


def name_of(given: Launches | torch.dtype | str) -> str:
    """The words of a case in the name of its test."""
    if not isinstance(given, Launches):
        return str(given).removeprefix("torch.")
    return f"{given.widest}-for-many-rows" if given in MANY_ROWS else str(given.widest)


ENTRIES = sorted(LAUNCHES["sm_90", 2], key=lambda entry: entry.widest != 64)
# Launches for many rows replace the ordinary launches. They take no documents.
MANY_ROWS = [
    replace(entry, widest=entry.widest - narrower, gluon={**entry.gluon, **entry.gluon_large})
    for entry in reversed(ENTRIES)
    for narrower in (0, 8)
    if entry.gluon_large
]
HOPPER = [ENTRIES[0], *MANY_ROWS, *ENTRIES[1:]]
FLASH = [("sm_90", torch.bfloat16, entry) for entry in HOPPER]
FLASH += [("sm_90", torch.float16, entry) for entry in (*ENTRIES, *MANY_ROWS[::2])]
FLASH += [("sm_90", torch.float32, entry) for entry in LAUNCHES["sm_90", 4]]
FLASH += [
    (architecture, dtype, entry)
    for architecture in ("sm_80", "sm_89", "sm_100", "sm_120")
    for dtype in (torch.bfloat16, torch.float32)
    for entry in LAUNCHES["sm_120", dtype.itemsize]
]


@pytest.mark.parametrize(
    ("architecture", "dtype", "launches"), first_ones(FLASH, ordinary=2), ids=name_of
)
def test_flash_relations_launches(architecture, dtype, launches, monkeypatch):
    in_bf16 = architecture == "sm_90" and dtype == torch.bfloat16
    # Triton reads no loop of a kernel that it takes from its cache.
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", in_bf16)
    compiled = []
    with dropped_variables() as dropped:
        for documents in (False,) if launches in MANY_ROWS else (False, True):
            with fake_gpu(architecture) as kernels:
                call_flash(launches, documents, dtype)
            compiled += [(name, kernel) for name, each in kernels.items() for kernel in each]
    assert dropped == set()
    for name, kernel in compiled:
        in_gluon = name.startswith("hopper_")
        # Two groups of p2_info at 128 columns spill outside of their loops, but are faster.
        spills = name == "hopper_p2_info_kernel" and launches.gluon["p2_info"].groups > 1
        bounded = in_bf16 and launches.gluon and name != "repair_kernel"
        stack = (160 if spills else 96) if bounded else None
        in_triton = dtype.itemsize == 2 and not in_gluon
        assert_sound(name, kernel, architecture, stack, stores=in_triton)
        assert has_products(kernel) or not in_bf16, name
        if in_gluon:
            launch = launches.gluon[name.removeprefix("hopper_").removesuffix("_kernel")]
            assert not serialises_products(kernel), name
            # CUDA takes 1 KiB per program. Three warps of the producer's warp group idle.
            shared = launch.programs * (kernel.metadata.shared + 1024)
            assert shared <= SHARED_MEMORY["sm_90"] + 1024
            threads = launch.programs * (launch.groups + 1) * 4 * 32
            assert threads * launch.registers <= 65_536


LINEAR = [
    ("sm_90", torch.bfloat16, 48, 128),
    ("sm_90", torch.bfloat16, 60, 128),
    ("sm_90", torch.bfloat16, 64, 130),
    ("sm_90", torch.bfloat16, 80, 128),
    ("sm_90", torch.bfloat16, 128, 130),
    ("sm_90", torch.float16, 64, 128),
    ("sm_90", torch.float32, 128, 130),
    ("sm_80", torch.bfloat16, 128, 130),
    ("sm_120", torch.bfloat16, 128, 130),
    ("sm_120", torch.float32, 128, 130),
]


@pytest.mark.parametrize(
    ("architecture", "dtype", "width", "length"), first_ones(LINEAR, ordinary=1), ids=name_of
)
def test_linear_relations_launches(architecture, dtype, width, length, monkeypatch):
    entries = launches.LAUNCHES["sm_90" if architecture == "sm_90" else "sm_120", dtype.itemsize]
    entry = next(entry for entry in entries if entry.widest >= width)
    monkeypatch.setattr(launch, "select_launches", lambda *given: entry)
    p1, p2, info = torch.zeros(3, 1, length, 8, width, dtype=dtype).transpose(2, 3)
    g = torch.zeros(1, length, 8, width).transpose(1, 2)
    with fake_gpu(architecture) as compiled:
        y, _, *kept = launch.launch_forward(p1, p2, info, g, None, 2.0)
        launch.launch_backward(y, None, p1, p2, info, g, kept, 2.0)
    assert {"prepare_kernel", "output_kernel", "coordinates_kernel"} < compiled.keys()
    for name, kernels in compiled.items():
        for kernel in kernels:
            assert_sound(name, kernel, architecture, 400)
