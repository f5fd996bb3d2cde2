"""The state of the device while it is measured: clocks, temperature, what else runs. Only read."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pynvml
import torch

_LOOKS_AT_THE_START = 4
_SECONDS_BETWEEN = 0.3
_BUSY_GPU, _BUSY_CPU = 0.05, 0.25
_THROTTLES = {
    "software power cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "software thermal slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hardware power brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}


def libraries(device: torch.device) -> dict:
    """Versions of the GPU libraries that PyTorch was built with; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


class _Gpu:
    """Readings of one GPU by NVML; None for what the GPU does not report."""

    def __init__(self, device: torch.device):
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def _read(self, function: Callable, *rest: Any) -> Any | None:
        try:
            return function(self._handle, *rest)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
            return None

    def driver(self) -> str:
        return pynvml.nvmlSystemGetDriverVersion()

    def processes(self) -> list[int]:
        found = self._read(pynvml.nvmlDeviceGetComputeRunningProcesses)
        return [process.pid for process in found or ()]

    def utilisation(self) -> float:
        rates = self._read(pynvml.nvmlDeviceGetUtilizationRates)
        return 0.0 if rates is None else rates.gpu / 100

    def clock_limit(self) -> float | None:
        return self._read(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)

    def reading(self) -> dict:
        power = self._read(pynvml.nvmlDeviceGetPowerUsage)
        return {
            "sm_clock": self._read(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            "temperature": self._read(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            "power": None if power is None else power / 1e3,
            "reasons": self._read(pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0,
        }


class Conditions:
    """Watches a device from before the first process of a measurement is on it.

    `began` says that processes of ours are on it from now on, `look` is called while they work,
    `columns` gives what was seen since `began` as the columns of a record.
    """

    def __init__(self, device: torch.device):
        self._gpu, self._unknown = None, None
        self._before: list[str] = []
        self._driver = self._limit = None
        if device.type == "cuda":
            try:
                self._gpu = _Gpu(device)
                self._driver, self._limit = self._gpu.driver(), self._gpu.clock_limit()
                self._before = self._of_gpu()
            except pynvml.NVMLError as error:
                self._gpu, self._unknown = None, f"not observed, NVML: {error}"
        else:
            busy = psutil.cpu_percent(interval=_SECONDS_BETWEEN) / 100
            if busy > _BUSY_CPU:
                self._before = [f"the CPU was {busy:.0%} busy before the start"]
        self.began(list)

    def _of_gpu(self) -> list[str]:
        """What others do to the GPU before any process of ours is on it."""
        told, others = [], set(self._gpu.processes()) - {os.getpid()}
        if others:
            told.append(f"other processes on the GPU before the start: {len(others)}")
        busy = []
        for _ in range(_LOOKS_AT_THE_START):
            time.sleep(_SECONDS_BETWEEN)
            busy.append(self._gpu.utilisation())
        # The least: the work of a measurement that ended just now shows for a moment.
        if min(busy) > _BUSY_GPU:
            told.append(f"the GPU was {min(busy):.0%} busy before the start")
        return told

    def began(self, ours: Callable[[], Sequence[int]], forget: bool = True) -> None:
        """`ours()` are the ids of this measurement's processes; `forget` earlier readings."""
        self._ours = ours
        if forget:
            self._readings, self._others = [], 0

    def look(self) -> None:
        """Take a reading; cheap, and without effect on a CPU."""
        if self._gpu is None:
            return
        try:
            self._readings.append(self._gpu.reading())
            found = self._gpu.processes()
        except pynvml.NVMLError as error:
            self._gpu, self._unknown = None, f"not observed, NVML: {error}"
            return
        ours, listed = set(self._ours()), set(found) - {os.getpid()}
        # In a container NVML may tell the host's ids: then only the number of ours is known.
        known = len(ours & listed) or len(ours)
        self._others = max(self._others, len(listed) - known)

    def _readings_of(self, name: str) -> list[float]:
        return [reading[name] for reading in self._readings if reading[name] is not None]

    def _disturbances(self) -> list[str]:
        told = list(self._before)
        if self._unknown:
            told.append(self._unknown)
        if self._others:
            told.append(f"other processes on the GPU: {self._others}")
        for name, bit in _THROTTLES.items():
            share = sum(bool(r["reasons"] & bit) for r in self._readings)
            if share:
                told.append(f"{name} in {share / len(self._readings):.0%} of the readings")
        return told

    def columns(self) -> dict:
        """Clocks (MHz), highest temperature (C) and power (W), and what disturbed, or None."""
        clocks, told = self._readings_of("sm_clock"), self._disturbances()
        return {
            "driver": self._driver,
            "sm_clock": statistics.median(clocks) if clocks else None,
            "sm_clock_least": min(clocks, default=None),
            "sm_clock_limit": self._limit,
            "temperature": max(self._readings_of("temperature"), default=None),
            "power": max(self._readings_of("power"), default=None),
            "disturbed": "; ".join(told) or None,
        }
