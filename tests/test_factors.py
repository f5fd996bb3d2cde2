"""Left factors that a loop reads again: the check finds what the assembler overwrites."""

import pytest

pytest.importorskip("triton")
from interpreter import INTERPRETED

if INTERPRETED:
    pytest.skip("nothing is compiled here", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from relation.kernels.factors import kept_factors, lost_factors, overwritten_factors
from relation.kernels.resources import compile_kernel

PRODUCTS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
FACTORS = gl.constexpr(gl.DotOperandLayout(0, PRODUCTS.value, 2))
TILES = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def attend(out, steps, NAMED: gl.constexpr):
    """The smallest loop that was seen to lose its left factor; NAMED: each wait gives it back."""
    tile = gl.allocate_shared_memory(gl.bfloat16, [64, 64], TILES)
    i = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, PRODUCTS)), 1)
    j = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, PRODUCTS)), 0)
    left = (tile.load(FACTORS) * 0.0625).to(gl.bfloat16)
    weights = gl.zeros([64, 64], gl.bfloat16, FACTORS)
    sums = warpgroup_mma_init(gl.zeros([64, 64], gl.float32, PRODUCTS))
    for step in range(steps):
        u = gl.zeros([64, 64], gl.float32, PRODUCTS)
        u = warpgroup_mma(left, tile.permute((1, 0)), u, use_acc=False, is_async=True)
        if NAMED:
            u, sums, weights, left = warpgroup_mma_wait(0, deps=[u, sums, weights, left])
        else:
            u, sums, weights = warpgroup_mma_wait(0, deps=[u, sums, weights])
        if step == steps - 1:
            u = gl.where(j < i, u * gl.exp2(u), 0.0)
        weights = gl.convert_layout(gl.exp2(u * (gl.exp2(u) + 1.0)).to(gl.bfloat16), FACTORS)
        sums = warpgroup_mma(weights, tile, sums, is_async=True)
    sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
    gl.store(out + i * 64 + j, sums)


def compiled(named: bool):
    types = {"out": "*fp32", "steps": "i32"}
    return compile_kernel(attend, {"NAMED": named}, types, {"num_warps": 4}, "sm_90")


def test_a_factor_that_the_assembler_overwrites_is_found():
    """With the assemblers of Triton 3.6 to 3.8; where this fails, a right one has come."""
    assert overwritten_factors(compiled(named=False)) == 4


def test_a_factor_that_every_wait_gives_back_is_safe():
    assert overwritten_factors(compiled(named=True)) == 0


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


def test_a_product_outside_of_loops_keeps_nothing():
    assert kept_factors(PTX.format(between="").replace("bra $loop", "bra $end")) == 0


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
