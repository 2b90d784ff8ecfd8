// Stands in for libnvidia-ml.so.1: what NVML tells of each card, which draws 350 W and is at 55 C.
//
// VIRTUAL_GPU_NVML, words joined by commas: "poor" (a laptop's, which tells neither energy nor
// limits), "broken" (the library does not initialize), "throttled" (by heat, and by power half of
// the time), "desktop" (process 1 draws), "container" (processes have the pids of another
// namespace). VIRTUAL_GPU_OTHER: the pid of another process on the card.
#include <cstdint>
#include <ctime>

#include "profiles.h"

#define API extern "C" __attribute__((visibility("default")))
enum Result {
  SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9
};
using Handle = long;  // a device's index and 1 more

static bool told(const char* word) {
  const char* words = getenv("VIRTUAL_GPU_NVML");
  return words && strstr(words, word);
}
static bool poor() { return told("poor") || !strcmp(profile().key, "3050"); }
static double seconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}
// Those that grow, from the machine's start on.
static uint64_t energy_mj() { return seconds() * 350e3; }
static uint64_t violation_ns(bool may) { return told("throttled") && may ? seconds() * 5e8 : 0; }

API int nvmlInitWithFlags(unsigned) { return told("broken") ? NO_DRIVER : SUCCESS; }
API int nvmlInit_v2() { return nvmlInitWithFlags(0); }
API int nvmlShutdown() { return SUCCESS; }
API const char* nvmlErrorString(int error) {
  return error == NOT_SUPPORTED ? "Not Supported" : error == NOT_FOUND ? "Not Found" : "Error";
}
API int nvmlSystemGetDriverVersion(char* to, unsigned size) {
  return snprintf(to, size, "580.95.05"), SUCCESS;
}
API int nvmlSystemGetCudaDriverVersion(int* version) { return *version = 13000, SUCCESS; }
API int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, SUCCESS; }
API int nvmlSystemGetProcessName(unsigned pid, char* to, unsigned size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE* file = fopen(path, "r");
  if (!file) return NOT_FOUND;
  to[fread(to, 1, size - 1, file)] = 0;
  fclose(file);
  return SUCCESS;
}

// Which device --------------------------------------------------------------------------------

API int nvmlDeviceGetCount_v2(unsigned* count) { return *count = devices_installed(), SUCCESS; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* to) {
  return index < (unsigned)devices_installed() ? (*to = index + 1, SUCCESS) : INVALID;
}
API int nvmlDeviceGetUUID(Handle device, char* to, unsigned size) {  // the same as in device.cpp
  snprintf(to, size, "GPU-10111213-1415-1617-1819-1a1b1c1d1e%02lx", device - 1);
  return SUCCESS;
}
API int nvmlDeviceGetHandleByUUID(const char* wanted, Handle* to) {
  char uuid[64];
  for (Handle device = 1; device <= devices_installed(); device++) {
    nvmlDeviceGetUUID(device, uuid, sizeof uuid);
    if (!strcmp(uuid, wanted)) return *to = device, SUCCESS;
  }
  return NOT_FOUND;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Handle* to) {
  unsigned domain, number;
  sscanf(bus, "%x:%x", &domain, &number);
  return *to = number, SUCCESS;
}
API int nvmlDeviceGetIndex(Handle device, unsigned* to) { return *to = device - 1, SUCCESS; }
API int nvmlDeviceGetName(Handle, char* to, unsigned size) {
  return snprintf(to, size, "%s", profile().name), SUCCESS;
}
API int nvmlDeviceGetCudaComputeCapability(Handle, int* major, int* minor) {
  return *major = profile().major, *minor = profile().minor, SUCCESS;
}

// How it is doing -----------------------------------------------------------------------------

API int nvmlDeviceGetTotalEnergyConsumption(Handle, unsigned long long* mj) {
  return poor() ? NOT_SUPPORTED : (*mj = energy_mj(), SUCCESS);
}
struct Violation { unsigned long long reference_us, violation_ns; };
API int nvmlDeviceGetViolationStatus(Handle, int policy, Violation* to) {
  if (poor()) return NOT_SUPPORTED;
  if (policy > 11) return INVALID;
  return *to = {(unsigned long long)(seconds() * 1e6), violation_ns(policy <= 1)}, SUCCESS;
}
API int nvmlDeviceGetClockInfo(Handle, int clock, unsigned* mhz) {
  return *mhz = clock == 2 ? 2619 : 1755, SUCCESS;
}
API int nvmlDeviceGetMaxClockInfo(Handle, int clock, unsigned* mhz) {
  return *mhz = clock == 2 ? 2619 : 1980, SUCCESS;
}
API int nvmlDeviceGetTemperature(Handle, int, unsigned* celsius) { return *celsius = 55, SUCCESS; }
API int nvmlDeviceGetPowerUsage(Handle, unsigned* mw) { return *mw = 350000, SUCCESS; }
API int nvmlDeviceGetPowerManagementLimit(Handle, unsigned* mw) {
  return poor() ? NOT_SUPPORTED : (*mw = 700000, SUCCESS);
}
API int nvmlDeviceGetPowerManagementDefaultLimit(Handle, unsigned* mw) {
  return nvmlDeviceGetPowerManagementLimit(0, mw);
}
struct MemoryInfo { unsigned long long total, free, used; };
API int nvmlDeviceGetMemoryInfo(Handle device, MemoryInfo* to) {
  unsigned long long total = profile().memory, used = held(device - 1);
  return *to = {total, total - used, used}, SUCCESS;
}
API int nvmlDeviceGetCurrentClocksEventReasons(Handle, unsigned long long* bits) {
  return *bits = told("throttled") ? 0x24 : 0, SUCCESS;  // power cap, software's thermal slowdown
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(Handle, unsigned long long* bits) {
  return nvmlDeviceGetCurrentClocksEventReasons(0, bits);
}
API int nvmlDeviceGetUtilizationRates(Handle, unsigned* percent) {
  return percent[0] = 90, percent[1] = 50, SUCCESS;
}
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int type, result;
  union { double d; unsigned long long number; } value;
};
API int nvmlDeviceGetFieldValues(Handle, int number, FieldValue* values) {
  enum { POWER = 74, THERMAL, ENERGY = 83, EVENT_REASONS = 269, LAST_EVENT_REASON = 271 };
  for (int i = 0; i < number; i++) {
    auto& to = values[i];
    bool reason = to.field >= EVENT_REASONS && to.field <= LAST_EVENT_REASON;
    bool policy = to.field == POWER || to.field == THERMAL;
    to.type = 3;  // unsigned long long
    to.result = poor() || !(reason || policy || to.field == ENERGY) ? NOT_SUPPORTED : SUCCESS;
    bool held = policy || to.field == EVENT_REASONS;  // of the reasons the software's thermal one
    to.value.number = to.field == ENERGY ? energy_mj() : violation_ns(held);
  }
  return SUCCESS;
}

// Who holds it --------------------------------------------------------------------------------

struct Process { unsigned pid; unsigned long long used; unsigned instance, compute_instance; };
API int nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned* number, Process* to) {
  unsigned room = to ? *number : 0, found = 0;
  auto add = [&](unsigned pid, size_t bytes) {
    if (found++ < room) to[found - 1] = {pid, bytes, ~0u, ~0u};
  };
  for (int i = 0; i < HOLDERS; i++) {
    Holder& one = virtual_gpu_holders()[i];
    if (one.device == device - 1 && one.alive())
      add(one.pid + (told("container") ? 10'000'000 : 0), one.bytes);
  }
  if (const char* other = getenv("VIRTUAL_GPU_OTHER")) add(atoi(other), 1234ull << 20);
  *number = found;
  return found > room ? TOO_SMALL : SUCCESS;
}
API int nvmlDeviceGetComputeRunningProcesses_v2(Handle device, unsigned* number, Process* to) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, number, to);
}
API int nvmlDeviceGetComputeRunningProcesses(Handle device, unsigned* number, Process* to) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, number, to);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle, unsigned* number, Process* to) {
  unsigned room = *number;
  *number = told("desktop");
  if (!*number) return SUCCESS;
  if (!to || !room) return TOO_SMALL;
  return *to = {1, 60ull << 20, ~0u, ~0u}, SUCCESS;
}

// What torch's allocator looks up, expandable or out of memory -------------------------------

API int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, unsigned*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(Handle, unsigned* to) {  // a card of no NVLink fabric
  return memset(to + 1, 0, (*to & 0xffffff) - sizeof *to), SUCCESS;  // its version has its size
}
API int nvmlDeviceGetP2PStatus(Handle, Handle, int, int* status) { return *status = 0, SUCCESS; }
