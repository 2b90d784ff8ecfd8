// Stands in for what registers, loads and launches kernels, in the runtime and in the driver. A
// launch checks what the hardware would refuse, is counted and takes its time; one kernel runs.
#include "virtual.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <unordered_map>

struct Function {  // the driver's CUfunction
  const char* name;
  int dynamic_shared;
};
using Names = std::unordered_map<const void*, const char*>;
static Names& kernel_names() {  // filled by constructors of libraries, before any of ours has run
  static auto* names = new Names;
  return *names;
}
static auto& variables() {
  static auto* addresses = new std::unordered_map<const void*, char*>;
  return *addresses;
}
static const char* kernel_name(const void* kernel) {
  std::lock_guard hold(lock);
  auto found = kernel_names().find(kernel);
  return found == kernel_names().end() ? "unknown_kernel" : found->second;
}

// Launches ------------------------------------------------------------------------------------

static void log_name(const char* name) {  // VIRTUAL_GPU_KERNELS: a file that has each, in order
  static FILE* file = [] {
    const char* path = getenv("VIRTUAL_GPU_KERNELS");
    return path ? fopen(path, "a") : nullptr;
  }();
  if (file) fprintf(file, "%s\n", name), fflush(file);
}
cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t shared, void* stream,
                   const char* api) {
  count(LAUNCHES);
  log_name(name);
  bool empty = !grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z;
  bool large = (size_t)block.x * block.y * block.z > 1024 || grid.y > 65535 || grid.z > 65535;
  if (empty || large) {
    complain("%s: grid %u,%u,%u of blocks %u,%u,%u", name, grid.x, grid.y, grid.z, block.x, block.y,
             block.z);
    return fails(cudaErrorInvalidConfiguration, api);
  }
  if (shared > (size_t)profile().shared_optin) {
    complain("%s: %zu bytes of shared memory", name, shared);
    return fails(cudaErrorInvalidValue, api);
  }
  Work work{Work::KERNEL, name};
  work.grid = grid;
  work.block = block;
  work.shared = shared;
  enqueue(stream, work, api);
  return cudaSuccess;
}
void launch_of_library(const char* name, void* stream) {
  launch(name, dim3(64), dim3(128), 0, stream, "cudaLaunchKernel");
}
// Fills a scalar, as no other kernel has an effect: Inductor reads such constants of a graph.
static void fill_scalar(const char* name, void** args) {
  auto functor = strstr(name, "FillFunctorI");
  if (!functor || !strstr(name, "vectorized_elementwise") || *static_cast<int*>(args[0]) != 1) return;
  char type = functor[strlen("FillFunctorI")];
  size_t bytes = type == 'f' || type == 'i' ? 4 : type == 'l' || type == 'd' ? 8 : type == 'b';
  memcpy(*static_cast<void**>(args[2]), args[1], bytes);
}
API cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared,
                                 cudaStream_t stream) {
  return launch(kernel_name(kernel), grid, block, shared, stream, __func__);
}
API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void**,
                                            size_t shared, cudaStream_t stream) {
  return launch(kernel_name(kernel), grid, block, shared, stream, __func__);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return launch(kernel_name(kernel), config->gridDim, config->blockDim, config->dynamicSmemBytes,
                config->stream, __func__);
}
API cudaError_t __cudaGetKernel(cudaKernel_t* to, const void* kernel) {
  return *to = (cudaKernel_t)kernel, cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                                   size_t shared, cudaStream_t stream) {
  fill_scalar(kernel_name(kernel), args);
  return launch(kernel_name(kernel), grid, block, shared, stream, "cudaLaunchKernel");
}
API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                            unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            CUstream stream, void**, void**) {
  auto name = reinterpret_cast<Function*>(function)->name;
  return (CUresult)launch(name, {gx, gy, gz}, {bx, by, bz}, shared, stream, __func__);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void**, void**) {
  auto name = reinterpret_cast<Function*>(function)->name;
  return (CUresult)launch(name, {c->gridDimX, c->gridDimY, c->gridDimZ},
                          {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, c->hStream,
                          __func__);
}

// What nvcc's code does around a launch, and as its library is loaded -------------------------

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local std::vector<Configuration> configurations;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  auto top = configurations.back();
  configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<void**>(stream) = top.stream;
  return cudaSuccess;
}
API void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                                uint3*, dim3*, dim3*, int*) {
  std::lock_guard hold(lock);
  kernel_names()[kernel] = name;
}
API void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t bytes, int, int) {
  std::lock_guard hold(lock);
  variables()[host] = static_cast<char*>(calloc(1, bytes));
}
API void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, size_t bytes, int,
                                  int) {
  *host = calloc(1, bytes);
}
API cudaError_t cudaGetSymbolAddress(void** to, const void* symbol) {
  *to = variables()[symbol];
  return *to ? cudaSuccess : fails(cudaErrorInvalidSymbol, __func__);
}
API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes,
                                   size_t offset, cudaMemcpyKind) {
  if (auto to = variables()[symbol]) memcpy(to + offset, from, bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                        size_t offset, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}

// Attributes, occupancy -----------------------------------------------------------------------

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void*) {
  auto& card = profile();
  memset(to, 0, sizeof *to);
  to->maxThreadsPerBlock = 1024;
  to->numRegs = 32;
  // The newest of torch's builds that runs: it has none for 8.9.
  to->binaryVersion = card.major == 8 && card.minor == 9 ? 86 : card.major * 10 + card.minor;
  to->ptxVersion = to->binaryVersion;
  to->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute which, int value) {
  bool shared = which == cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (shared && value > profile().shared_optin) return fails(cudaErrorInvalidValue, __func__);
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                              size_t) {
  return *blocks = 2, cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                       int, size_t, unsigned) {
  return *blocks = 2, cudaSuccess;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  return *blocks = 2, CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  return *clusters = 16, CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
  *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : which == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 64
           : which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
               ? reinterpret_cast<Function*>(function)->dynamic_shared
               : 0;
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > profile().shared_optin) return CUDA_ERROR_INVALID_VALUE;
  return reinterpret_cast<Function*>(function)->dynamic_shared = value, CUDA_SUCCESS;
}

// Modules: of Triton's cubins and of libraries that load their kernels by name ----------------

static const auto MODULE = reinterpret_cast<CUmodule>(0x3000);
API CUresult cuModuleLoad(CUmodule* to, const char*) { return *to = MODULE, CUDA_SUCCESS; }
API CUresult cuModuleLoadData(CUmodule* to, const void*) { return *to = MODULE, CUDA_SUCCESS; }
API CUresult cuModuleLoadDataEx(CUmodule* to, const void*, unsigned, CUjit_option*, void**) {
  return *to = MODULE, CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(CUfunction* to, CUmodule, const char* name) {
  return *to = reinterpret_cast<CUfunction>(new Function{strdup(name), 0}), CUDA_SUCCESS;
}
API CUresult cuModuleGetGlobal_v2(CUdeviceptr* to, size_t* bytes, CUmodule, const char*) {
  static char memory[4096];
  if (to) *to = reinterpret_cast<CUdeviceptr>(memory);
  if (bytes) *bytes = sizeof memory;
  return CUDA_SUCCESS;
}
API cudaError_t cudaLibraryLoadData(cudaLibrary_t* to, const void*, cudaJitOption*, void**,
                                    unsigned, cudaLibraryOption*, void**, unsigned) {
  return *to = reinterpret_cast<cudaLibrary_t>(0x2000), cudaSuccess;
}
API cudaError_t cudaLibraryGetKernel(cudaKernel_t* to, cudaLibrary_t, const char* name) {
  static std::set<std::string> names;
  std::lock_guard hold(lock);
  const char* kept = names.insert(name).first->c_str();
  kernel_names()[kept] = kept;
  return *to = (cudaKernel_t)kept, cudaSuccess;
}
API CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType, cuuint32_t, void*,
                                    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return memset(to, 0, sizeof *to), CUDA_SUCCESS;
}
