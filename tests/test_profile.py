"""The profile of a training step: reading a trace, sorting kernels into parts, the command."""

from pathlib import Path

import pytest
import torch
from conftest import ROOT, campaign

from relation.bench.profile import (
    PARTS,
    Classifier,
    Kernel,
    device_kernels,
    host_operations,
    profile_step,
    summed,
)
from relation.cli import main
from relation.store.layouts import PROFILE
from relation.store.parquet import read_origin, read_parquet
from relation.variants import ModelConfig

CONFIG = ModelConfig.for_variant("mha", layers=6, d_model=384, heads=8, d_ff=768, vocab_size=4096)
TOKENS = 32768
CLASSIFIER = Classifier(CONFIG, TOKENS)


@pytest.mark.parametrize(
    "part, name, within",
    [
        ("operator", "flash_fwd_kernel", ("aten::_scaled_dot_product_flash_attention",)),
        ("operator", "void pytorch_flash::flash_bwd_kernel<traits>", ()),
        ("operator", "p1_kernel", ("CompiledFunction", "relation::flash_relation_backward")),
        ("operator", "aten::bmm", ("_TiledRelationBackward",)),
        ("operator", "triton_poi_fused__scaled_dot_product_flash_attention_view_3", ()),
        ("operator", "triton_poi_fused_flash_relation_backward__to_copy_transpose_8", ()),
        (
            "RoPE and sums",
            "triton_poi_fused__scaled_dot_product_flash_attention_backward_cat_mul_neg_view_5",
            (),
        ),
        ("norm", "triton_per_fused_flash_relation_mean_mul_pow_rsqrt_2", ()),
        ("RoPE and sums", "vectorized_elementwise_kernel", ("relation::cos_sin", "aten::cos")),
        ("RoPE and sums", "triton_poi_fused_arange_cat_cos_sin_pow_0", ()),
        ("RoPE and sums", "triton_poi_fused__to_copy_add_cat_mul_neg_split_3", ()),
        ("RoPE and sums", "triton_poi_fused_add_mul_transpose_view_7", ()),
        ("FFN", "triton_poi_fused__to_copy__unsafe_view_mul_silu_silu_backward_view_2", ()),
        ("norm", "triton_per_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_1", ()),
        ("norm", "triton_red_fused__fused_rms_norm_add_4", ()),
        ("norm", "triton_per_fused__to_copy_add_div_expand_mul_pow_sum_view_4", ()),
        ("norm", "triton_red_fused__to_copy_add_mul_sum_view_13", ()),
        ("casts", "triton_poi_fused__to_copy_14", ()),
        ("casts", "triton_poi_fused__to_copy_t_9", ()),
        ("casts", "triton_poi_fused__to_copy_mul_6", ()),
        ("norm", "triton_per_fused__to_copy_add_mean_mul_sub_view_14", ()),
        ("norm", "triton_red_fused__to_copy_mul_sum_12", ()),
        ("loss", "cross_entropy_kernel", ()),
        ("loss", "triton_red_fused__log_softmax__to_copy_nll_loss_forward_view_10", ()),
        ("loss", "cpp_fused__log_softmax_backward_data_arange_eq_nll_loss_backward_0", ()),
        ("optimiser", "multi_tensor_apply_kernel", ("Optimizer.step#AdamW.step", "aten::x")),
        ("optimiser", "multi_tensor_apply_kernel<FusedAdamMathFunctor>", ()),
        ("clipping", "multi_tensor_apply_kernel", ("clipping", "aten::_foreach_norm")),
        ("clipping", "triton_poi_fused__to_copy_14", ("clipping",)),
        ("unclassified", "vectorized_elementwise_kernel", ("aten::copy_",)),
        ("unclassified", "Memcpy HtoD", ()),
    ],
)
def test_a_kernel_goes_to_the_part_that_its_names_tell(
    part: str, name: str, within: tuple[str, ...]
) -> None:
    assert CLASSIFIER.part(Kernel(name, 1.0, within)) == part


@pytest.mark.parametrize(
    "part, m, k, n",
    [
        ("projections", TOKENS, 384, 384),
        ("projections", TOKENS, 384, 3 * 384),
        ("projections", 3 * 384, TOKENS, 384),  # the gradient of a fused weight
        ("FFN", TOKENS, 384, 768),
        ("FFN", TOKENS, 2 * 768, 384),
        ("FFN", 384, TOKENS, 768),
        ("loss", TOKENS, 384, 4096),
        ("loss", 4096, TOKENS, 384),
        ("unclassified", TOKENS, 384, 100),
        ("unclassified", 100, 384, 384),
    ],
)
def test_a_product_goes_to_the_part_whose_weight_has_its_shape(
    part: str, m: int, k: int, n: int
) -> None:
    assert CLASSIFIER.part(Kernel("nvjet_tst", 1.0, ("aten::mm",), ((m, k), (k, n)))) == part


def test_a_shape_that_two_weights_share_decides_nothing() -> None:
    alike = ModelConfig.for_variant("mha", layers=1, d_model=64, heads=2, d_ff=64, vocab_size=300)
    kernel = Kernel("gemm", 1.0, ("aten::mm",), ((16, 64), (64, 64)))
    assert Classifier(alike, 16).part(kernel) == "unclassified"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args) -> dict:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def test_kernels_are_read_with_what_launched_them() -> None:
    """A launch lies in its operations in time; its thread and the order of events vary."""
    dims = [[TOKENS, 384], [384, 768], [TOKENS, 768]]  # the third is where the result goes
    events = [
        event("kernel", "gemm", 500, 7, 0, correlation=3),
        event("cuda_driver", "cuLaunchKernelEx", 13, 1, correlation=3),
        event("cuda_runtime", "cudaLaunchKernelExC", 12, 3, correlation=3),
        event("cpu_op", "aten::mm", 11, 6, **{"Input Dims": dims}),
        event("user_annotation", "outer", 10, 10),
        event("kernel", "norms", 520, 5, 0, correlation=4),
        event("cuda_runtime", "cudaLaunchKernel", 32, 1, correlation=4),
        event("user_annotation", "clipping", 30, 5),
        event("cpu_op", "aten::relu", 30, 5, 2),  # on another thread
        event("gpu_memcpy", "Memcpy HtoD", 530, 2, 0, correlation=5),
        event("cuda_runtime", "cudaMemcpyAsync", 40, 1, correlation=5),
        event("kernel", "from a graph", 540, 3, 0, correlation=6),  # launched before the trace
        event("gpu_user_annotation", "clipping", 520, 5, 0),  # no kernel
        {"ph": "M", "name": "process_name"},
    ]
    found = {kernel.name: kernel for kernel in device_kernels(events)}
    assert found == {
        "gemm": Kernel("gemm", 7e-6, ("outer", "aten::mm"), ((TOKENS, 384), (384, 768))),
        "norms": Kernel("norms", 5e-6, ("clipping",)),
        "Memcpy HtoD": Kernel("Memcpy HtoD", 2e-6),
        "from a graph": Kernel("from a graph", 3e-6),
    }
    parts = summed(found.values(), CLASSIFIER)
    assert tuple(parts) == PARTS
    assert {part: count for part, (_, count) in parts.items() if count} == {
        "FFN": 1,
        "clipping": 1,
        "unclassified": 2,
    }
    assert parts["unclassified"][0] == pytest.approx(5e-6)


def test_operations_of_a_cpu_count_without_those_they_call() -> None:
    events = [
        event("cpu_op", "aten::addmm", 2, 4, **{"Input Dims": [[5], [16, 8], [8, 5], [], []]}),
        event("cpu_op", "aten::linear", 1, 9),
        event("cpu_op", "aten::copy_", 7, 1),
        event("user_annotation", "clipping", 0, 12),
    ]
    found = {kernel.name: kernel for kernel in host_operations(events)}
    assert found == {
        "aten::linear": Kernel("aten::linear", 4e-6, ("clipping", "aten::linear")),
        "aten::addmm": Kernel(
            "aten::addmm", 4e-6, ("clipping", "aten::linear", "aten::addmm"), ((16, 8), (8, 5))
        ),
        "aten::copy_": Kernel("aten::copy_", 1e-6, ("clipping", "aten::linear", "aten::copy_")),
    }


@pytest.mark.gpu
def test_on_a_gpu_products_are_told_apart() -> None:
    spec = campaign("paper", scales="10M").benchmark("matched", "10M")
    for side in spec.sides:
        found = {r["part"]: r for r in profile_step(spec, side, torch.device("cuda"))}
        wall = found["FFN"]["wall_seconds"]
        for part in ("operator", "projections", "FFN", "norm", "loss", "optimiser", "clipping"):
            assert found[part]["seconds"] > 0
        # Were products not told apart, a third of the step would be.
        assert found["unclassified"]["seconds"] < 0.1 * wall


def test_profile_on_a_cpu_from_command_to_picture(
    elsewhere: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "profile --device cpu --campaign tiny --scales 10M --variants mha,full"
    assert main(command.split()) == 0
    output = capsys.readouterr().out
    path = Path("results/profile/tiny-cpu-choice.parquet")
    rows = read_parquet(path, PROFILE).to_pylist()
    assert read_origin(path)["campaign"] == "tiny"
    assert [row["part"] for row in rows] == [*PARTS, *PARTS]
    rows, full = rows[: len(PARTS)], rows[len(PARTS) :]
    found = {row["part"]: row for row in full}
    assert found["operator"]["seconds"] > 0
    found = {row["part"]: row for row in rows}
    for part in ("operator", "projections", "FFN", "norm", "loss", "optimiser", "clipping"):
        assert found[part]["seconds"] > 0 and found[part]["kernels"] > 0
    wall = rows[0]["wall_seconds"]
    # Operations of one thread follow one another; the profile's clock ends after them.
    assert sum(row["seconds"] for row in rows) == pytest.approx(wall, rel=0.05)
    assert f"operator{1e3 * found['operator']['seconds']:.3f}" in output.replace(" ", "")
    assert "10M mha (flash), micro-batch 4, T 16" in output
    picture = path.with_suffix(".svg").read_text(encoding="utf-8")
    assert all(part in picture for part in (*PARTS, "10M mha"))


@pytest.mark.parametrize(
    "choice, told",
    [
        ("--variants mhaa", "unknown variant 'mhaa'; choose among mha, full"),
        ("--campaign none", "unknown campaign 'none'"),
        ("--scales 1T", "campaign smoke has no such scale"),
    ],
)
def test_what_cannot_be_profiled_is_told_in_one_line(
    choice: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"profile --device cpu --config {ROOT}/config.yaml {choice}".split()) == 2
    output = capsys.readouterr()
    assert output.out == "" and told in output.err and output.err.count("\n") == 1
