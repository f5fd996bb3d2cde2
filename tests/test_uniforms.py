"""Uniform registers that machine code reads before they have a value, by hand-written examples."""

import pytest

pytest.importorskip("triton")

from relation.kernels.uniforms import unset_in


def found(*instructions: str) -> list[tuple[int, ...]]:
    """The registers of each finding; instructions at 0x0000, 0x0010 and so on."""
    lines = (f"        /*{16 * n:04x}*/  {x} ;  /* 0x0 */" for n, x in enumerate(instructions))
    return [unset.registers for unset in unset_in("\n".join(lines))]


PRODUCT = "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4].tnspB, R24"


def test_a_copy_behind_its_use_is_found():
    """As ptxas 12.8 leaves a loop: its second step is right and its first is not."""
    loop = "UIADD3 UR4, UR8, 0x40, URZ", "UMOV UR8, UR9", "@P0 BRA 0x10", "EXIT"
    assert found("UMOV UR9, 0x2000", *loop) == [(8,)]
    assert found("UMOV UR8, 0x2000", *loop) == [(9,)]
    assert found("ULDC.64 UR8, c[0x0][0x210]", *loop) == []


def test_a_product_reads_its_descriptors():
    low, high = "UMOV UR4, 0x1", "UIADD3.64 UR6, UR4, 0x40, URZ"
    assert found(low, PRODUCT) == [(5, 6, 7)]
    assert found(low, "UMOV UR5, 0x1", high, PRODUCT) == []
    assert found(low, "HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR4], RZ, !UPT") == [(6, 7)]


@pytest.mark.parametrize(
    "write",
    [
        "UIMAD.WIDE.U32 UR4, UR6, UR7, URZ",
        "@P1 ULDC.64 UR4, c[0x0][0x210]",
        "UIADD3.64 UR4, UR6, 0x40, URZ",
    ],
)
def test_a_wide_result_is_two_registers(write):
    assert found("ULDC.64 UR6, c[0x0][0x0]", write, "IADD3 R2, R3, UR4, R5", "MOV R2, UR5") == []


def test_every_way_to_an_instruction_counts():
    skipped = "UMOV UR4, 0x1"
    assert found("@P0 BRA 0x20", skipped, "MOV R2, UR4") == [(4,)]
    assert found("BRA.U UP0, 0x20", skipped, "MOV R2, UR4") == [(4,)]
    assert found("UMOV UR5, 0x1", "BRA.DIV UR5, 0x30", skipped, "MOV R2, UR4") == [(4,)]
    assert found("BRA 0x20", "MOV R2, UR4", "EXIT") == []
    assert found(skipped, "@P0 EXIT", "MOV R2, UR4") == []


def test_only_uniform_registers_count():
    assert found("ISETP.GE.AND P0, PT, R3, UR4, PT", "UISETP.NE.AND UP0, UPT, UR5, URZ, UPT") == [
        (4,),
        (5,),
    ]
    assert found("MOV R4, R5", "LDG.E.64 R2, desc[UR4][R2.64]") == [(4, 5)]
    assert found("S2UR UR4, SR_CgaCtaId", "LDS.64 R34, [R8+UR4+0x800]") == []
    assert found("UMOV UR4, 0x10", "ULDC.64 UR8, c[0x0][UR4]") == []
    assert found("CREDUX.MAX.S32 UR6, R13", "MOV R2, UR6") == []
