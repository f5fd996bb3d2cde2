"""What is read of a device while it is measured, and which kernels a profile proves."""

import re
from types import SimpleNamespace

import psutil
import pynvml
import pytest
import torch
from benchmarks import CPU, CUDA
from conftest import ROOT

from relation.bench import conditions
from relation.bench.conditions import Conditions
from relation.bench.steps import check_kernels, named_kernels
from relation.errors import RunError


class FakeGpu:
    """Stands behind the functions of NVML that are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.pids: list[int] = []
        self.busy, self.clock, self.reasons = 0, 1980, 0
        self.power = lambda: 310_500
        given = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetMaxClockInfo": lambda handle, which: 1980,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=pid) for pid in self.pids
            ],
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=self.busy),
            "nvmlDeviceGetClockInfo": lambda handle, which: self.clock,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
            "nvmlDeviceGetPowerUsage": lambda handle: self.power(),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.reasons,
        }
        for name, function in given.items():
            monkeypatch.setattr(pynvml, name, function)
        properties = SimpleNamespace(uuid="1234")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(conditions, "_SECONDS_BETWEEN", 0.0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_a_quiet_gpu_is_told_by_its_readings(gpu: FakeGpu) -> None:
    watched = Conditions(CUDA)
    gpu.pids = [11, 12]
    watched.began(lambda: [11, 12])
    for gpu.clock in (1980, 1755, 1965):
        watched.look()
    assert watched.columns() == {
        "driver": "580.1",
        "sm_clock": 1965,
        "sm_clock_least": 1755,
        "sm_clock_limit": 1980,
        "temperature": 41,
        "power": 310.5,
        "disturbed": None,
    }


def test_a_busy_gpu_is_told(gpu: FakeGpu) -> None:
    gpu.pids, gpu.busy = [77], 60
    watched = Conditions(CUDA)
    watched.began(lambda: [11])
    gpu.pids = [77, 11]
    watched.look()
    assert watched.columns()["disturbed"] == (
        "other processes on the GPU before the start: 1; "
        "the GPU was 60% busy before the start; other processes on the GPU: 1"
    )


def test_where_nvml_tells_the_hosts_ids_ours_are_counted(gpu: FakeGpu) -> None:
    watched = Conditions(CUDA)
    watched.began(lambda: [11, 12])
    gpu.pids = [4011, 4012]
    watched.look()
    assert watched.columns()["disturbed"] is None
    gpu.pids = [4011, 4012, 4077]
    watched.look()
    assert watched.columns()["disturbed"] == "other processes on the GPU: 1"


def test_a_throttled_gpu_is_told_with_its_share(gpu: FakeGpu) -> None:
    watched = Conditions(CUDA)
    idle, cap = pynvml.nvmlClocksEventReasonGpuIdle, pynvml.nvmlClocksEventReasonSwPowerCap
    for gpu.reasons in (idle, cap, cap | idle, 0):
        watched.look()
    assert watched.columns()["disturbed"] == "software power cap in 50% of the readings"
    # A side that is measured again, alone, does not wipe out what the others met.
    watched.began(list, forget=False)
    gpu.reasons = 0
    for _ in range(4):
        watched.look()
    assert watched.columns()["disturbed"] == "software power cap in 25% of the readings"
    watched.began(list)
    assert watched.columns()["disturbed"] is None


def test_what_a_gpu_does_not_tell_is_null(gpu: FakeGpu) -> None:
    def refused() -> int:
        raise pynvml.NVMLError_NotSupported()

    gpu.power = refused
    watched = Conditions(CUDA)
    watched.look()
    found = watched.columns()
    assert found["power"] is None and found["temperature"] == 41 and found["disturbed"] is None


def test_a_machine_without_nvml_says_so(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError_LibraryNotFound()

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    watched = Conditions(CUDA)
    watched.look()
    assert watched.columns()["disturbed"].startswith("not observed, NVML: ")


def test_a_busy_cpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 80.0)
    assert Conditions(CPU).columns()["disturbed"] == "the CPU was 80% busy before the start"
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 3.0)
    watched = Conditions(CPU)
    watched.look()
    assert set(watched.columns().values()) == {None}


FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
EFFICIENT = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)"
OURS = ["forward_kernel", "p1_kernel", "p2_info_kernel"]
MOVES = "triton_poi_fused__scaled_dot_product_flash_attention_view_3"
MOVES_FOR_CUDNN = "triton_poi_fused__scaled_dot_product_cudnn_attention_backward_cat_mul_neg_view_5"
FLEX = "triton_tem_fused_flex_attention_1"


@pytest.mark.parametrize(
    "operator, backend, ran, told",
    [
        ("mha", "flash", [GEMM, FLASH], None),
        ("mha", "flash", [MOVES, FLASH], None),
        ("mha", "flash", [MOVES], "no kernel of its name ran"),
        ("mha", "flash", [GEMM, CUDNN], "cudnn_generated"),
        ("mha", "flash", [EFFICIENT], "fmha_cutlassF"),
        ("mha", "flash", [GEMM], "no kernel of its name ran"),
        ("mha", "cudnn", [CUDNN, GEMM], None),
        ("mha", "cudnn", [FLASH], "pytorch_flash"),
        ("mha", "cudnn", [MOVES_FOR_CUDNN], "no kernel of its name ran"),
        ("full", "flash", [*OURS, GEMM], None),
        ("full", "flash", [*OURS, FLASH], "pytorch_flash"),
        ("full", "flash", [*OURS, FLEX], "triton_tem_fused_flex_attention"),
        ("full", "reference", [GEMM], None),
        ("full", "reference", [FLASH], "pytorch_flash"),
        ("linear", "flash", ["weak_output_kernel_0", "chunk_states_kernel"], None),
        ("linear", "flash", ["forward_kernel"], "forward_kernel ran"),
    ],
)
def test_the_forced_kernel_ran_and_no_other(
    operator: str, backend: str, ran: list[str], told: str | None
) -> None:
    kernels = named_kernels(ran, CUDA)
    assert GEMM not in kernels
    if told is None:
        check_kernels(operator, backend, CUDA, kernels)
    else:
        with pytest.raises(RunError, match=told):
            check_kernels(operator, backend, CUDA, kernels)


@pytest.mark.parametrize("operator, folder", [
    ("full", "flash_relation"), ("linear", "linear_relation"),
])  # fmt: skip
def test_every_kernel_of_ours_is_known_by_its_name(operator: str, folder: str) -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "kernels" / folder).glob("*.py")]
    ours = sorted(re.findall(r"^def (\w+_kernel)\(", "\n".join(sources), re.M))
    assert ours and named_kernels(ours, CUDA) == ours
    check_kernels(operator, "flash", CUDA, ours)


def test_every_pass_that_a_gpu_takes_proves_itself() -> None:
    """Those of Linear Relation that no GPU takes have names of another form."""
    pytest.importorskip("triton")
    from relation.kernels.linear_relation.launches import LAUNCHES
    from relation.kernels.linear_relation.resources import PASSES, passes_of

    entries = [entry for entries in LAUNCHES.values() for entry in entries]
    names = {PASSES[name].__name__ for entry in entries for name in passes_of(entry)}
    assert named_kernels(sorted(names), CUDA) == sorted(names)
