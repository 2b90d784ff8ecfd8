"""One GPU as NVML sees it."""

import os
from contextlib import suppress

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
    """One GPU through NVML, of nvidia-ml-py. Nothing here raises: what is not to be had, for want
    of the package, of a driver, of permission, or on a GPU that does not have it, is left out.

    uuid: torch's, so without a prefix; numbers would not do, as CUDA_VISIBLE_DEVICES changes them.
        None where only the driver is asked.
    module: pynvml, or a test's stand-in.
    """

    def __init__(self, uuid, module=None):
        self.module, self.gpu = module, None
        if module is None:
            with suppress(ImportError):
                import pynvml

                self.module = pynvml
        self.ask(lambda nvml, gpu: nvml.nvmlInit())
        self.gpu = self._handle(f"GPU-{uuid}") or self._handle(f"MIG-{uuid}")
        if self.gpu is None and uuid is not None:  # the driver, if there is one, is not this GPU's
            self.module = None

    def _handle(self, name):
        return self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetHandleByUUID(name))

    def ask(self, question):
        """Return question(module, gpu), or None where that is not available."""
        try:
            return question(self.module, self.gpu)
        except Exception:  # NVMLError, or what module and driver of different versions make of it
            return None

    def get(self, name, *constants, field=None, divisor=None):
        """Return nvmlDeviceGet<name> of the GPU, or None.

        constants: names of what it is given further, without NVML_. field: of the structure that it
        returns. divisor: of the number, for another unit.
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
        """The newest CUDA version that the driver runs, as (13, 0)."""
        number = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetCudaDriverVersion())
        return number and (number // 1000, number % 1000 // 10)

    def names(self):
        """Of all GPUs that the driver has."""

        def question(nvml, gpu):
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [nvml.nvmlDeviceGetName(handle) for handle in handles]

        return self.ask(question) or []

    def other_processes(self):
        """Processes on the GPU besides this one, as in ["python3 (pid 4711, 1,234 MiB)"]."""
        computing = self.get("ComputeRunningProcesses") or ()
        drawing = self.get("GraphicsRunningProcesses") or ()
        memory = {process.pid: process.usedGpuMemory for process in [*computing, *drawing]}
        memory.pop(os.getpid(), None)
        return [self._process(pid, used) for pid, used in memory.items()]

    def _process(self, pid, used_bytes):
        command = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetProcessName(pid)) or ""
        name = os.path.basename(command.split(" ")[0])  # some come with their arguments
        facts = f"pid {pid}" if used_bytes is None else f"pid {pid}, {used_bytes / MIB:,.0f} MiB"
        return f"{name} ({facts})" if name else facts

    def counters(self):
        """Readings that only grow: energy_j, and power_violation_s, thermal_violation_s and so
        on, the seconds for which clocks were held down for that reason."""
        counted = {"energy_j": self.get("TotalEnergyConsumption", divisor=1e3)}
        for policy in ("POWER", "THERMAL", "BOARD_LIMIT", "RELIABILITY"):
            constant, time = f"PERF_POLICY_{policy}", {"field": "violationTime", "divisor": 1e9}
            counted[f"{policy.lower()}_violation_s"] = self.get("ViolationStatus", constant, **time)
        return _without_none(counted)

    def readings(self):
        """Readings of the GPU now: sm_clock_mhz, memory_clock_mhz, temperature_c, power_w,
        power_limit_w, used_memory_mib (by whomever), throttle_reasons (of THROTTLE_REASONS)."""
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
        if bits is None:  # the name that drivers before 535 know
            bits = self.get("CurrentClocksThrottleReasons")
        if bits is None:
            return None
        return [reason for bit, reason in THROTTLE_REASONS.items() if bits & bit]


def _without_none(found):
    return {name: value for name, value in found.items() if value is not None}
