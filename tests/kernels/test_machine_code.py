"""The checks of compiled code: what compilers have broken, by hand-written examples.

A product that reads a tile before it has arrived (`fences`), a left factor that the assembler
overwrites (`factors`), a uniform register that is read before it has a value (`uniforms`).
FlashRelation's own launches pass them in test_flash_launches, Linear Relation's here.
"""

import importlib

import pytest
import torch
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation.kernels.factors import kept_factors, lost_factors, overwritten_factors
from relation.kernels.fences import Unfenced, count_products, unfenced_products
from relation.kernels.uniforms import unset_in, unset_uniforms

PRODUCT = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 0;"
FENCE = "fence.proxy.async.shared::cta;"
WAIT = "cp.async.wait_group 2;"
STORE = "st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5};"
SYNC = "bar.sync 0;"
COPY = "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [x];"
ARRIVED = "mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;"
# As Triton 3.6 compiles a pipelined loop, and as 3.7.1 does.
LOOP = ("$L__BB0_1:", PRODUCT, WAIT, SYNC, "@%p1 bra $L__BB0_1;", "ret;")
FENCED_LOOP = (LOOP[0], FENCE, *LOOP[1:])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((WAIT, SYNC, FENCE, PRODUCT), []),
        ((STORE, FENCE, SYNC, PRODUCT), []),
        ((FENCE, WAIT, SYNC, PRODUCT), [(4, "copied")]),
        ((WAIT, STORE, PRODUCT), [(3, "copied"), (3, "stored")]),
        ((PRODUCT, STORE, WAIT), []),
        ((COPY, "wait:", ARRIVED, "@!complete bra.uni wait;", PRODUCT), []),
        (("cp.async.bulk.wait_group.read 0;", PRODUCT), []),
        ((WAIT, FENCE, *LOOP), [(4, "copied")]),
        ((WAIT, *FENCED_LOOP), []),
        ((STORE, "@%p1 bra $L__BB0_2;", FENCE, "$L__BB0_2:", PRODUCT), [(5, "stored")]),
        (("bra.uni $L__BB0_2;", STORE, "$L__BB0_2:", PRODUCT), []),
        (("@%p1 bra $L__BB0_3;", STORE, "ret;", "$L__BB0_3:", PRODUCT), []),
        ((f"// {STORE}", PRODUCT), []),
        ((STORE, f"{PRODUCT} // {FENCE}"), [(2, "stored")]),
    ],
)
def test_a_fence_lies_on_every_way_from_a_write_to_a_product(lines, expected):
    assert unfenced_products("\n".join(lines)) == [Unfenced(*each) for each in expected]
    assert count_products("\n".join(lines)) == 1


PTX = """
    mov.b32 %r1, %r9;
$loop:
    {between}
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{%r5,%r6}}, {{%r1,%r2}}, %rd1, 1;
    @%p1 bra $loop;
"""


@pytest.mark.parametrize(
    ("between", "kept"),
    [
        ("add.f32 %r3, %r4, %r5;", 1),
        ("mov.b32 %r1, %r7;", 1),
        ("mov.b32 %r1, {%rs1, %rs2};", 0),
        ("cvt.rn.bf16x2.f32 %r2, %r3, %r4;", 0),
    ],
)
def test_a_factor_is_kept_where_the_loop_leaves_its_registers_alone(between, kept):
    assert kept_factors(PTX.format(between=between)) == kept
    assert kept_factors(PTX.format(between=between).replace("bra $loop", "bra $end")) == 0


CODE = """
        /*0010*/                   MOV R8, R1 ;  /* 0x0 */
        /*0020*/                   {before} ;  /* 0x0 */
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], RZ ;  /* 0x0 */
        /*0040*/                   {behind} ;  /* 0x0 */
        /*0050*/              @P0  BRA 0x20 ;  /* 0x0 */
"""


@pytest.mark.parametrize(
    ("before", "behind", "lost"),
    [
        ("FADD R2, R8, R3", "FADD R2, R9, R3", 0),
        ("FADD R2, R8, R3", "MUFU.EX2 R11, R3", 1),
        ("FADD R2, R8, R3", "@!P1 FMUL R9, R2, R3", 1),
        ("F2FP.BF16.F32.PACK_AB R8, R2, R3", "MUFU.EX2 R8, R3", 0),
        ("FADD R2, R8, R3", "STS [R8+0x10], R9", 0),
        ("LDSM.16.M88.4 R8, [R3]", "MUFU.EX2 R11, R3", 0),
        ("LDG.E.64 R8, desc[UR4][R2.64]", "MUFU.EX2 R11, R3", 1),
        ("FADD R2, R8, R3", "LDS.128 R4, [R3]", 0),
        ("FADD R2, R8, R3", "LDS.128 R8, [R3]", 1),
        ("FADD R2, R8, R3", "HGMMA.64x16x16.F32.BF16 R4, R56, gdesc[UR8], R4", 1),
        ("FADD R2, R8, R3", "HGMMA.64x16x16.F32.BF16 R0, R56, gdesc[UR8], R0", 0),
    ],
)
def test_a_factor_is_lost_where_it_is_written_behind_its_product_alone(before, behind, lost):
    assert lost_factors(CODE.format(before=before, behind=behind)) == lost


UNIFORM_LOOP = ("UIADD3 UR4, UR8, 0x40, URZ", "UMOV UR8, UR9", "@P0 BRA 0x10", "EXIT")
HGMMA = "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4].tnspB, R24"
LEFT_IN_REGISTERS = "HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR4], RZ, !UPT"
LOW = "UMOV UR4, 0x1"


@pytest.mark.parametrize(
    ("instructions", "unset"),
    [
        # A copy behind its use, as ptxas 12.8 leaves a loop: its first step is wrong.
        (("UMOV UR9, 0x2000", *UNIFORM_LOOP), [(8,)]),
        (("UMOV UR8, 0x2000", *UNIFORM_LOOP), [(9,)]),
        (("ULDC.64 UR8, c[0x0][0x210]", *UNIFORM_LOOP), []),
        # A product reads its descriptors.
        ((LOW, HGMMA), [(5, 6, 7)]),
        ((LOW, "UMOV UR5, 0x1", "UIADD3.64 UR6, UR4, 0x40, URZ", HGMMA), []),
        ((LOW, LEFT_IN_REGISTERS), [(6, 7)]),
        # A wide result is two registers.
        (("UIMAD.WIDE.U32 UR4, UR6, UR7, URZ", "MOV R2, UR5"), [(6, 7)]),
        (("@P1 ULDC.64 UR4, c[0x0][0x210]", "MOV R2, UR5"), []),
        # Every way to an instruction counts.
        (("@P0 BRA 0x20", LOW, "MOV R2, UR4"), [(4,)]),
        (("BRA.U UP0, 0x20", LOW, "MOV R2, UR4"), [(4,)]),
        (("UMOV UR5, 0x1", "BRA.DIV UR5, 0x30", LOW, "MOV R2, UR4"), [(4,)]),
        (("BRA 0x20", "MOV R2, UR4", "EXIT"), []),
        ((LOW, "@P0 EXIT", "MOV R2, UR4"), []),
        # Only uniform registers count.
        (("MOV R4, R5", "LDG.E.64 R2, desc[UR4][R2.64]"), [(4, 5)]),
        (("S2UR UR4, SR_CgaCtaId", "LDS.64 R34, [R8+UR4+0x800]"), []),
        (("CREDUX.MAX.S32 UR6, R13", "MOV R2, UR6"), []),
    ],
)
def test_a_uniform_register_has_a_value_before_it_is_read(instructions, unset):
    lines = (f"     /*{16 * n:04x}*/  {x} ;  /* 0x0 */" for n, x in enumerate(instructions))
    assert [found.registers for found in unset_in("\n".join(lines))] == unset


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("width", [60, 64, 80])
def test_linear_relations_launches_pass_them(width, monkeypatch):
    """Stores are left out: tiles that change their layout through shared memory look like them."""
    from fake_gpu import fake_gpu

    forward, backward, launches = (
        importlib.import_module(f"relation.kernels.linear_relation.{name}")
        for name in ("forward", "backward", "launches")
    )
    entry = next(e for e in launches.LAUNCHES["sm_90", 2] if e.widest >= width)
    for module in (forward, backward):
        monkeypatch.setattr(module, "select_launches", lambda *given: entry)
    p1, p2, info, g = torch.zeros(4, 1, 130, 2, width, dtype=torch.bfloat16).transpose(2, 3)
    with fake_gpu("sm_90") as compiled:
        y, _, *kept = forward.launch_forward(p1, p2, info, g, None, 2.0)
        backward.launch_backward(y, None, p1, p2, info, g, *kept, 2.0)
    assert len(compiled) >= 8
    for name, kernels in compiled.items():
        for kernel in kernels:
            unfenced = unfenced_products(kernel.asm["ptx"])
            assert [u for u in unfenced if u.written == "copied"] == [], name
            assert overwritten_factors(kernel) == 0, name
            assert unset_uniforms(kernel) == [], name
