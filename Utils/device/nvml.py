"""One GPU as NVML sees it."""

import os
from contextlib import suppress

from Utils.base import turns
from Utils.base.units import MIB

THROTTLE_REASONS = {  # bits of nvml.h; the lowest, "gpu idle", is no reason
    0x002: "applications clocks setting",
    0x004: "sw power cap",
    0x008: "hw slowdown",
    0x010: "sync boost",
    0x020: "sw thermal slowdown",
    0x040: "hw thermal slowdown",
    0x080: "hw power brake slowdown",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}


class Nvml:
    """One GPU through NVML, of nvidia-ml-py. Nothing here raises.

    Values are left out where the package, the driver, the permission or the sensor is missing.

    uuid: torch's, without a prefix, as CUDA_VISIBLE_DEVICES changes numbers; None for the driver
        alone.
    module: pynvml, or a substitute for tests.
    """

    def __init__(self, uuid, module=None):
        self.module, self.gpu = module, None
        if module is None:
            with suppress(ImportError):
                import pynvml

                self.module = pynvml
        self.ask(lambda nvml, gpu: nvml.nvmlInit())
        self.gpu = self._handle(f"GPU-{uuid}") or self._handle(f"MIG-{uuid}")
        if self.gpu is None and uuid is not None:  # a driver would not be that of this GPU
            self.module = None

    def _handle(self, name):
        return self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetHandleByUUID(name))

    def ask(self, question):
        """Return question(module, gpu), or None where that is not available."""
        try:
            return question(self.module, self.gpu)
        except Exception:  # not only NVMLError: versions of module and driver may differ
            return None

    def get(self, name, *constants, field=None, divisor=None):
        """Return nvmlDeviceGet<name> of the GPU, or None.

        constants: further arguments, names without NVML_. field: of the returned structure.
        divisor: of the number, for another unit.
        """

        def question(nvml, gpu):
            given = (getattr(nvml, f"NVML_{constant}") for constant in constants)
            answer = getattr(nvml, f"nvmlDeviceGet{name}")(gpu, *given)
            answer = getattr(answer, field) if field else answer
            return answer / divisor if divisor else answer

        return self.ask(question)

    def driver(self):
        return self.ask(lambda nvml, gpu: nvml.nvmlSystemGetDriverVersion())

    def cuda(self):
        """Return the newest CUDA version that the driver supports, as (13, 0)."""
        number = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetCudaDriverVersion())
        return number and (number // 1000, number % 1000 // 10)

    def names(self):
        """Return the names of all GPUs of the driver."""

        def question(nvml, gpu):
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [nvml.nvmlDeviceGetName(handle) for handle in handles]

        return self.ask(question) or []

    def other_processes(self):
        """Return other processes on the GPU, as in ["python3 (pid 4711, 1,234 MiB)"]."""
        computing = self.get("ComputeRunningProcesses") or ()
        drawing = self.get("GraphicsRunningProcesses") or ()
        memory = {process.pid: process.usedGpuMemory for process in [*computing, *drawing]}
        turn = turns.taken()
        for pid in {os.getpid(), *(turn.partners() if turn else ())}:
            memory.pop(pid, None)
        return [self._process(pid, used) for pid, used in memory.items()]

    def _process(self, pid, used_bytes):
        command = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetProcessName(pid)) or ""
        name = os.path.basename(command.split(" ")[0])  # some include arguments
        facts = f"pid {pid}" if used_bytes is None else f"pid {pid}, {used_bytes / MIB:,.0f} MiB"
        return f"{name} ({facts})" if name else facts

    def counters(self):
        """Return readings that only grow: energy_j, and the seconds of clock throttling by cause,
        power_violation_s, thermal_violation_s and so on."""
        counted = {"energy_j": self.get("TotalEnergyConsumption", divisor=1e3)}
        for policy in ("POWER", "THERMAL", "BOARD_LIMIT", "RELIABILITY"):
            constant, time = f"PERF_POLICY_{policy}", {"field": "violationTime", "divisor": 1e9}
            counted[f"{policy.lower()}_violation_s"] = self.get("ViolationStatus", constant, **time)
        return _without_none(counted)

    def readings(self):
        """Return readings of the GPU now; used_memory_mib is of all processes."""
        read = {
            "sm_clock_mhz": self.get("ClockInfo", "CLOCK_SM"),
            "memory_clock_mhz": self.get("ClockInfo", "CLOCK_MEM"),
            "temperature_c": self.get("Temperature", "TEMPERATURE_GPU"),
            "power_w": self.get("PowerUsage", divisor=1e3),
            "power_limit_w": self.power_limit_w(),
            "used_memory_mib": self.get("MemoryInfo", field="used", divisor=MIB),
            "throttle_reasons": self._throttle_reasons(),
        }
        return _without_none(read)

    def power_limit_w(self):
        return self.get("PowerManagementLimit", divisor=1e3)

    def default_power_limit_w(self):
        return self.get("PowerManagementDefaultLimit", divisor=1e3)

    def _throttle_reasons(self):
        bits = self.get("CurrentClocksEventReasons")
        if bits is None:  # the name before driver 535
            bits = self.get("CurrentClocksThrottleReasons")
        if bits is None:
            return None
        return [reason for bit, reason in THROTTLE_REASONS.items() if bits & bit]


def _without_none(values):
    return {name: value for name, value in values.items() if value is not None}
