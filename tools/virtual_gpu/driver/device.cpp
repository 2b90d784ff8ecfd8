// Stands in for the CUDA driver and runtime where they are asked about the device: its properties,
// its attributes, versions, errors, and the addresses of the driver's entry points.
#include "virtual.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

static const std::vector<int>& visible() {
  static const std::vector<int> devices = [] {
    std::vector<int> found;
    const char* wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted)
      for (int i = 0; i < devices_installed(); i++) found.push_back(i);
    else
      for (const char* at = wanted; *at >= '0' && *at <= '9'; at += *at == ',') {
        long index = strtol(at, const_cast<char**>(&at), 10);
        if (index >= devices_installed()) break;  // as CUDA does: those before it stay
        found.push_back(index);
      }
    return found;
  }();
  return devices;
}
int device_count() { return visible().size(); }

static thread_local int current = 0;
static thread_local cudaError_t last_error = cudaSuccess;
int current_device() { return current; }
int installed_device() { return visible()[current]; }
static bool exists(int device) { return device >= 0 && device < device_count(); }

cudaError_t fails(cudaError_t error, const char* call) {
  last_error = error;
  if (error != cudaErrorMemoryAllocation) complain("error %d in %s", error, call);
  return error;
}
void complain(const char* format, ...) {
  va_list values;
  va_start(values, format);
  fputs("[virtual GPU] ", stderr);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  va_end(values);
}
uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ull + time.tv_nsec;
}

// The device ---------------------------------------------------------------------------------

static int threads_of_multiprocessor() {
  auto& card = profile();
  if (card.major == 7) return 1024;
  return card.major == 12 || (card.major == 8 && card.minor) ? 1536 : 2048;
}

static int attribute(int which) {
  auto& card = profile();
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrTotalConstantMemory:
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrClockRate: return card.clock_khz;
    case cudaDevAttrMultiProcessorCount: return card.multiprocessors;
    case cudaDevAttrMemoryClockRate: return card.memory_clock_khz;
    case cudaDevAttrGlobalMemoryBusWidth: return card.bus;
    case cudaDevAttrL2CacheSize: return card.l2;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return threads_of_multiprocessor();
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrComputeCapabilityMajor: return card.major;
    case cudaDevAttrComputeCapabilityMinor: return card.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return card.shared_multiprocessor;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return card.shared_optin;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return card.major >= 9 ? 32 : 16;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported: return 1;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return card.major >= 9;
  }
  return 0;
}

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count ? cudaSuccess : fails(cudaErrorNoDevice, __func__);
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return device_count() ? cudaSuccess : fails(cudaErrorNoDevice, __func__);
}
API cudaError_t cudaSetDevice(int device) {
  if (!exists(device)) return fails(cudaErrorInvalidDevice, __func__);
  current = device;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (!exists(device)) return fails(cudaErrorInvalidDevice, __func__);
  *value = attribute(which);
  return cudaSuccess;
}
static void write_uuid(char* bytes, int device) {  // the same as in nvml.cpp
  for (int i = 0; i < 15; i++) bytes[i] = 0x10 + i;
  bytes[15] = visible()[device];
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  if (!exists(device)) return fails(cudaErrorInvalidDevice, __func__);
  auto& card = profile();
  memset(to, 0, sizeof *to);
  strcpy(to->name, card.name);
  write_uuid(to->uuid.bytes, device);
  to->totalGlobalMem = card.memory;
  to->major = card.major;
  to->minor = card.minor;
  to->multiProcessorCount = card.multiprocessors;
  to->l2CacheSize = card.l2;
  to->memoryBusWidth = card.bus;
  to->sharedMemPerBlock = 49152;
  to->sharedMemPerBlockOptin = card.shared_optin;
  to->sharedMemPerMultiprocessor = card.shared_multiprocessor;
  to->reservedSharedMemPerBlock = 1024;
  to->regsPerBlock = to->regsPerMultiprocessor = 65536;
  to->warpSize = 32;
  to->maxThreadsPerBlock = to->maxThreadsDim[0] = to->maxThreadsDim[1] = 1024;
  to->maxThreadsDim[2] = 64;
  to->maxThreadsPerMultiProcessor = threads_of_multiprocessor();
  to->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
  to->maxGridSize[0] = to->memPitch = 2147483647;
  to->maxGridSize[1] = to->maxGridSize[2] = 65535;
  to->totalConstMem = 65536;
  to->canMapHostMemory = to->concurrentKernels = to->unifiedAddressing = 1;
  to->streamPrioritiesSupported = to->managedMemory = to->concurrentManagedAccess = 1;
  to->cooperativeLaunch = to->memoryPoolsSupported = 1;
  to->asyncEngineCount = 3;
  to->clusterLaunch = card.major >= 9;
  to->pciBusID = 1 + visible()[device];
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char* to, int size, int device) {
  snprintf(to, size, "0000:%02x:00.0", 1 + visible()[device]);
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* to) { return *to = CUDART_VERSION, cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int* to) { return *to = CUDART_VERSION, cudaSuccess; }

API cudaError_t cudaGetLastError() {
  auto error = last_error;
  last_error = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError() { return last_error; }
API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorStreamCaptureUnsupported: return "not permitted when a stream is capturing";
    default: return "an error of the virtual GPU";
  }
}
API const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

// The driver's side of the same ---------------------------------------------------------------

API CUresult cuInit(unsigned) { return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API CUresult cuDriverGetVersion(int* version) { return *version = CUDART_VERSION, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int* count) { return *count = device_count(), CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice* device, int index) {
  return exists(index) ? (*device = index, CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetName(char* to, int size, CUdevice) {
  return snprintf(to, size, "%s", profile().name), CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  return *bytes = profile().memory, CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  return *value = attribute(which), CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid* to, CUdevice device) {
  return write_uuid(to->bytes, device), CUDA_SUCCESS;
}
static CUcontext context(int device) { return reinterpret_cast<CUcontext>(0x10ul + device); }
API CUresult cuCtxGetCurrent(CUcontext* to) { return *to = context(current), CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice* device) { return *device = current, CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext* to, CUdevice device) {
  return *to = context(device), CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  return *active = 1, CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
  return *text = cudaGetErrorString(static_cast<cudaError_t>(error)), CUDA_SUCCESS;
}

static long without_effect() { return 0; }
static void* entry_point(const char* name) {  // the newest version that we have
  void* here = dlopen("libcuda.so.1", RTLD_LAZY);
  void* found = dlsym(here, (std::string(name) + "_v2").c_str());
  if (!found) found = dlsym(here, name);
  return found ? found : reinterpret_cast<void*>(without_effect);
}
API CUresult cuGetProcAddress_v2(const char* name, void** to, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult* result) {
  *to = entry_point(name);
  if (result) *result = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** to, unsigned,
                                                 unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
  *to = entry_point(name);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
