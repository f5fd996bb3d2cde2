"""A GPU's clock, temperature and power during a benchmark, and what disturbed the timing."""

import statistics
import time
from typing import Any

import pynvml
import torch

_THROTTLES = {
    "software power cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "software thermal slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hardware power brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
_READINGS = {
    "sm_clock": ("ClockInfo", pynvml.NVML_CLOCK_SM),
    "temperature": ("Temperature", pynvml.NVML_TEMPERATURE_GPU),
    "power": ("PowerUsage",),
    "reasons": ("CurrentClocksEventReasons",),
}


class Conditions:
    """Reads a GPU's clock, temperature and power from NVML during a benchmark.

    Create it before the first side uses the GPU, because it checks that the GPU is idle.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._gpu = self._driver = self._limit = self._before = None
        self._seen: dict[str, list] = {name: [] for name in _READINGS}
        if device.type != "cuda":
            return
        try:
            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(device).uuid
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            self._before = f"not observed, NVML: {error}"
            return
        self._driver = pynvml.nvmlSystemGetDriverVersion()
        self._limit = self._read("MaxClockInfo", pynvml.NVML_CLOCK_SM)
        busy = 100  # the minimum counts, because work that has just ended still shows for a moment
        for _ in range(4):
            time.sleep(0.3)
            rates = self._read("UtilizationRates")
            busy = min(busy, 0 if rates is None else rates.gpu)
        if busy > 5:
            self._before = f"the GPU was {busy}% busy before the start"

    def _read(self, name: str, *arguments: Any) -> Any | None:
        """Return an NVML reading, or None if the GPU does not report it."""
        try:
            return getattr(pynvml, f"nvmlDeviceGet{name}")(self._gpu, *arguments)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
            return None

    def look(self) -> None:
        """Take one reading. This is cheap, and does nothing on a CPU."""
        if self._gpu is None:
            return
        for name, query in _READINGS.items():
            if (value := self._read(*query)) is not None:
                self._seen[name].append(value)

    def columns(self) -> dict:
        """Return driver, clocks (MHz), highest temperature (C) and power (W), and what disturbed.

        Readings since the last call count. Without any, or if nothing disturbed, a value is None.
        """
        seen, self._seen = self._seen, {name: [] for name in _READINGS}
        clocks, reasons, powers = seen["sm_clock"], seen["reasons"], seen["power"]
        disturbances = [self._before] if self._before else []
        for name, bit in _THROTTLES.items():
            if throttled := sum(bool(reason & bit) for reason in reasons):
                disturbances.append(f"{name} in {throttled / len(reasons):.0%} of the readings")
        return {
            "driver": self._driver,
            "sm_clock": statistics.median(clocks) if clocks else None,
            "sm_clock_least": min(clocks, default=None),
            "sm_clock_limit": self._limit,
            "temperature": max(seen["temperature"], default=None),
            "power": max(powers) / 1e3 if powers else None,
            "disturbed": "; ".join(disturbances) or None,
        }
