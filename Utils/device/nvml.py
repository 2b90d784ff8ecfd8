"""One GPU as NVML sees it."""

import os
from contextlib import suppress

import psutil

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
        self.module = module
        self.gpu = None
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
            arguments = [getattr(nvml, f"NVML_{constant}") for constant in constants]
            answer = getattr(nvml, f"nvmlDeviceGet{name}")(gpu, *arguments)
            answer = getattr(answer, field) if field else answer
            return answer / divisor if divisor else answer

        return self.ask(question)

    def driver(self):
        """Return the driver's version, such as "580.95.05", or None."""
        return self.ask(lambda nvml, gpu: nvml.nvmlSystemGetDriverVersion())

    def cuda(self):
        """Return the newest CUDA version that the driver supports, as (13, 0), or None."""
        number = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetCudaDriverVersion())
        return number and (number // 1000, number % 1000 // 10)

    def first_name(self):
        """Return the name of the driver's first GPU, or None."""
        return self.ask(
            lambda nvml, gpu: nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))
        )

    def other_processes(self, partners=()):
        """Return others that compute on the GPU, as in ["python3 (pid 4711, 1,234 MiB)"].

        partners: process ids of runs that take turns with this one, which are no others. In a
        container NVML may give the host's pids: then as many unknown processes are taken for them.
        """
        processes = self.get("ComputeRunningProcesses") or []
        unseen = set(partners).difference(process.pid for process in processes)
        texts = []
        for process in processes:
            if process.pid == os.getpid() or process.pid in partners:
                continue
            if unseen and not psutil.pid_exists(process.pid):
                unseen.pop()
                continue
            facts = f"pid {process.pid}"
            if process.usedGpuMemory is not None:
                facts += f", {process.usedGpuMemory / MIB:,.0f} MiB"
            pid = process.pid
            command = self.ask(lambda nvml, gpu, pid=pid: nvml.nvmlSystemGetProcessName(pid)) or ""
            name = os.path.basename(command.split(" ")[0])  # some include arguments
            texts.append(f"{name} ({facts})" if name else facts)
        return texts

    def counters(self):
        """Return readings that only grow: energy_j, and seconds of clock throttling by cause.

        Older drivers have power_violation_s and thermal_violation_s; newer ones also
        sw_thermal_slowdown_s, hw_thermal_slowdown_s, hw_power_brake_slowdown_s.
        """
        counters = {"energy_j": self.get("TotalEnergyConsumption", divisor=1e3)}
        for policy in ("POWER", "THERMAL"):
            counters[f"{policy.lower()}_violation_s"] = self.get(
                "ViolationStatus", f"PERF_POLICY_{policy}", field="violationTime", divisor=1e9
            )
        return _without_none(counters) | (self.ask(_slowdowns) or {})

    def readings(self):
        """Return readings of the GPU now; used_memory_mib is of all processes."""
        readings = {
            "sm_clock_mhz": self.get("ClockInfo", "CLOCK_SM"),
            "temperature_c": self.get("Temperature", "TEMPERATURE_GPU"),
            "power_w": self.get("PowerUsage", divisor=1e3),
            "power_limit_w": self.power_limit_w(),
            "used_memory_mib": self.get("MemoryInfo", field="used", divisor=MIB),
            "throttle_reasons": self._throttle_reasons(),
        }
        return _without_none(readings)

    def power_limit_w(self):
        return self.get("PowerManagementLimit", divisor=1e3)

    def _throttle_reasons(self):
        bits = self.get("CurrentClocksEventReasons")
        if bits is None:  # the name before driver 535
            bits = self.get("CurrentClocksThrottleReasons")
        if bits is None:
            return None
        return [reason for bit, reason in THROTTLE_REASONS.items() if bits & bit]


def _slowdowns(nvml, gpu):
    """Return seconds of clock throttling by cause, those that the driver counts."""
    causes = {
        "sw_thermal_slowdown_s": "SW_THERM_SLOWDOWN",
        "hw_thermal_slowdown_s": "HW_THERM_SLOWDOWN",
        "hw_power_brake_slowdown_s": "HW_POWER_BRAKE_SLOWDOWN",
    }
    prefix = "NVML_FI_DEV_CLOCKS_EVENT_REASON"
    fields = [getattr(nvml, f"{prefix}_{cause}") for cause in causes.values()]
    answers = nvml.nvmlDeviceGetFieldValues(gpu, fields)
    seconds = {}
    for name, answer in zip(causes, answers, strict=True):
        if answer.nvmlReturn == nvml.NVML_SUCCESS:
            seconds[name] = answer.value.ullVal / 1e9
    return seconds


def _without_none(values):
    return {name: value for name, value in values.items() if value is not None}
