"""NVIDIA's GPUs and driver as NVML sees them."""

import os
from contextlib import suppress

import psutil

from Utils.base.units import MIB

# Bits of nvml.h without the lowest, "gpu idle".
THROTTLE_REASONS = {
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
# Constants of nvml.h by key, without their prefix NVML_FI_DEV_CLOCKS_EVENT_REASON_.
SLOWDOWN_FIELDS = {
    "sw_thermal_slowdown_s": "SW_THERM_SLOWDOWN",
    "hw_thermal_slowdown_s": "HW_THERM_SLOWDOWN",
    "hw_power_brake_slowdown_s": "HW_POWER_BRAKE_SLOWDOWN",
}


class Nvml:
    """One GPU as NVML sees it. Readings that are missing or refused are left out, or None.

    uuid: torch's, without a prefix, as CUDA_VISIBLE_DEVICES changes numbers; None for the driver
        alone. module: pynvml (the package nvidia-ml-py), or a substitute for tests.
    """

    def __init__(self, uuid, module=None):
        self.module = module
        if module is None:
            with suppress(ImportError):
                import pynvml  # noqa: PLC0415  (an optional package)

                self.module = pynvml

        self.call("Init")
        handles = [self.call("DeviceGetHandleByUUID", f"{kind}-{uuid}") for kind in ("GPU", "MIG")]
        self.gpu = handles[0] or handles[1]
        if self.gpu is None and uuid is not None:  # the driver would not be this GPU's
            self.module = None

    def call(self, name, *arguments):
        """Return nvml<name>(*arguments), or None if that is not available."""
        try:
            return getattr(self.module, f"nvml{name}")(*arguments)
        except Exception:  # not only NVMLError: versions of module and driver may differ
            return None

    def constant(self, name):
        return getattr(self.module, f"NVML_{name}", None)

    def get(self, name, *constants, field=None, divisor=1):
        """Return nvmlDeviceGet<name> of the GPU, or None.

        constants: names of further arguments, without NVML_. field: an attribute of the returned
        structure. divisor: converts the number to another unit.
        """
        answer = self.call(f"DeviceGet{name}", self.gpu, *map(self.constant, constants))
        if field and answer is not None:
            answer = getattr(answer, field)
        return answer if answer is None or divisor == 1 else answer / divisor

    def other_processes(self, partners):
        """Return the other processes on the GPU, such as ["python3 (pid 4711, 1,234 MiB)"].

        partners: process ids of runs that take turns with this one, which are left out. In a
        container NVML may give the host's pids. Then for each partner that NVML does not list, one
        process with an unknown pid is left out.
        """
        processes = self.get("ComputeRunningProcesses") or []
        missing_partners = set(partners).difference(process.pid for process in processes)

        descriptions = []
        for process in processes:
            if process.pid == os.getpid() or process.pid in partners:
                continue
            if missing_partners and not psutil.pid_exists(process.pid):
                missing_partners.pop()
                continue

            details = f"pid {process.pid}"
            if process.usedGpuMemory is not None:
                details += f", {process.usedGpuMemory / MIB:,.0f} MiB"

            command = self.call("SystemGetProcessName", process.pid) or ""
            name = os.path.basename(command.split(" ")[0])  # some commands include arguments
            descriptions.append(f"{name} ({details})" if name else details)
        return descriptions

    def counters(self):
        """Return readings that only grow: energy_j, and seconds of clock throttling by cause.

        Older drivers count thermal_violation_s alone, newer ones also the keys of SLOWDOWN_FIELDS.
        """
        thermal = ("ViolationStatus", "PERF_POLICY_THERMAL")
        counters = {
            "energy_j": self.get("TotalEnergyConsumption", divisor=1e3),
            "thermal_violation_s": self.get(*thermal, field="violationTime", divisor=1e9),
        }

        causes = SLOWDOWN_FIELDS.values()
        fields = [self.constant(f"FI_DEV_CLOCKS_EVENT_REASON_{cause}") for cause in causes]
        answers = self.call("DeviceGetFieldValues", self.gpu, fields) or []
        for name, answer in zip(SLOWDOWN_FIELDS, answers, strict=False):
            if answer.nvmlReturn == self.constant("SUCCESS"):
                counters[name] = answer.value.ullVal / 1e9

        return _without_none(counters)

    def readings(self):
        """Return the GPU's present state; used_memory_mib is the sum over all processes."""
        bits = self.get("CurrentClocksEventReasons")
        reasons = [reason for bit, reason in THROTTLE_REASONS.items() if bits and bits & bit]

        readings = {
            "sm_clock_mhz": self.get("ClockInfo", "CLOCK_SM"),
            "temperature_c": self.get("Temperature", "TEMPERATURE_GPU"),
            "power_w": self.get("PowerUsage", divisor=1e3),
            "power_limit_w": self.get("PowerManagementLimit", divisor=1e3),
            "used_memory_mib": self.get("MemoryInfo", field="used", divisor=MIB),
            "throttle_reasons": None if bits is None else reasons,
        }
        return _without_none(readings)


def _without_none(values):
    return {name: value for name, value in values.items() if value is not None}
