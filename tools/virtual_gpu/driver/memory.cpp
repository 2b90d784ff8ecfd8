// Stands in for the CUDA runtime's memory: allocations up to the card's size, copies, memsets.
//
// The device's memory is the host's, reserved and not touched, so 80 GB cost nothing until
// something is written. A copy happens when it is called; the stream's clock says when it would.
#include "virtual.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <map>

struct Block {
  size_t bytes;
  Memory kind;
  int device;
  Holder* holder = nullptr;
};
static std::map<uintptr_t, Block> blocks;  // by address
constexpr size_t CONTEXT = 500ull << 20;   // what a context takes; it differs by card and version
constexpr size_t PAGE = 2ull << 20;
constexpr size_t TOUCHED = 256ull << 20;  // larger copies between tensors are not carried out

static const Block* block_of(const void* pointer, uintptr_t* base = nullptr) {
  auto next = blocks.upper_bound((uintptr_t)pointer);
  if (next == blocks.begin()) return nullptr;
  auto& [address, block] = *std::prev(next);
  if ((uintptr_t)pointer >= address + block.bytes) return nullptr;
  if (base) *base = address;
  return &block;
}
Memory memory_kind(const void* pointer) {
  std::lock_guard hold(lock);
  auto block = block_of(pointer);
  return block ? block->kind : Memory::PAGEABLE;
}
static bool on_device(Memory kind) { return kind == Memory::DEVICE || kind == Memory::MANAGED; }

Holder* virtual_gpu_holders() {
  static Holder* table = [] {
    const char* path = getenv("VIRTUAL_GPU_MACHINE");
    constexpr size_t BYTES = HOLDERS * sizeof(Holder);
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file >= 0 && ftruncate(file, BYTES)) complain("cannot write %s", path);
    int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void* made = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
    if (file >= 0) close(file);
    return static_cast<Holder*>(made);
  }();
  return table;
}
static Holder* own() {  // of this process on the current device, which it now has a context on
  int pid = getpid(), device = installed_device();
  Holder* table = virtual_gpu_holders();
  for (auto one = table; one < table + HOLDERS; one++)
    if (one->pid == pid && one->device == device) return one;
  for (auto one = table; one < table + HOLDERS; one++) {
    int before = one->pid;
    if (before < 0 || one->alive()) continue;
    if (!__sync_bool_compare_and_swap(&one->pid, before, -1)) continue;
    one->device = device;
    one->bytes = CONTEXT;
    one->pid = pid;
    return one;
  }
  complain("more than %d processes", HOLDERS);
  _exit(2);
}
static size_t room() {
  own();
  size_t others = held(installed_device());
  return profile().memory > others ? profile().memory - others : 0;
}

// Allocation ----------------------------------------------------------------------------------

static cudaError_t allocate(void** to, size_t bytes, Memory kind, const char* call) {
  if (refused_in_capture(call)) return fails(cudaErrorStreamCaptureUnsupported, call);
  std::lock_guard hold(lock);
  *to = nullptr;
  if (!bytes) return cudaSuccess;
  bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  if (kind == Memory::DEVICE && bytes > room()) return fails(cudaErrorMemoryAllocation, call);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (made == MAP_FAILED) return fails(cudaErrorMemoryAllocation, call);
  auto& block = blocks[(uintptr_t)made] = {bytes, kind, current_device()};
  if (kind == Memory::DEVICE) (block.holder = own())->bytes += bytes;
  *to = made;
  return cudaSuccess;
}
static cudaError_t release(void* pointer, const char* call) {
  if (!pointer) return cudaSuccess;
  wait_for_device();
  std::lock_guard hold(lock);
  auto found = blocks.find((uintptr_t)pointer);
  if (found == blocks.end()) return fails(cudaErrorInvalidValue, call);
  auto& block = found->second;
  if (block.holder) block.holder->bytes -= block.bytes;
  munmap(pointer, block.bytes);
  blocks.erase(found);
  return cudaSuccess;
}
API cudaError_t cudaMalloc(void** to, size_t bytes) {
  count(MALLOCS);
  return allocate(to, bytes, Memory::DEVICE, __func__);
}
API cudaError_t cudaMallocAsync(void** to, size_t bytes, cudaStream_t) {
  count(MALLOCS);
  return allocate(to, bytes, Memory::DEVICE, __func__);
}
API cudaError_t cudaMallocManaged(void** to, size_t bytes, unsigned) {
  return allocate(to, bytes, Memory::MANAGED, __func__);
}
API cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  return allocate(to, bytes, Memory::HOST, __func__);
}
API cudaError_t cudaMallocHost(void** to, size_t bytes) {
  return allocate(to, bytes, Memory::HOST, __func__);
}
API cudaError_t cudaFree(void* pointer) {
  count(FREES, pointer != nullptr);
  return release(pointer, __func__);
}
API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
API cudaError_t cudaFreeHost(void* pointer) { return release(pointer, __func__); }
API cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  std::lock_guard hold(lock);
  blocks[(uintptr_t)pointer] = {bytes, Memory::HOST, current_device()};
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* pointer) {
  std::lock_guard hold(lock);
  blocks.erase((uintptr_t)pointer);
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard hold(lock);
  *free = room();
  *total = profile().memory;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* pointer) {
  std::lock_guard hold(lock);
  auto block = block_of(pointer);
  Memory kind = block ? block->kind : Memory::PAGEABLE;
  memset(to, 0, sizeof *to);
  to->type = static_cast<cudaMemoryType>(kind);  // the same four, in the same order
  to->device = block ? block->device : -2;
  if (block) to->devicePointer = const_cast<void*>(pointer);
  if (kind != Memory::DEVICE) to->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  return *pool = reinterpret_cast<cudaMemPool_t>(0x1000), cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  return *static_cast<uint64_t*>(value) = 0, cudaSuccess;
}

API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr pointer) {
  std::lock_guard hold(lock);
  uintptr_t base = 0;
  auto block = block_of(reinterpret_cast<void*>(pointer), &base);
  if (!block) return CUDA_ERROR_INVALID_VALUE;  // Triton asks, and so finds a pointer of the host's
  auto number = static_cast<int*>(value);
  switch (which) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = pointer; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *number = block->kind == Memory::HOST ? 1 : 2; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *number = block->device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(value) = block->bytes; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *number = block->kind == Memory::MANAGED; break;
    default: *number = 0;
  }
  return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr* start, size_t* bytes, CUdeviceptr pointer) {
  std::lock_guard hold(lock);
  uintptr_t base = 0;
  auto block = block_of(reinterpret_cast<void*>(pointer), &base);
  if (!block) return CUDA_ERROR_NOT_FOUND;
  if (start) *start = base;
  if (bytes) *bytes = block->bytes;
  return CUDA_SUCCESS;
}

// Virtual memory: addresses first, then pages mapped to them, as expandable segments do ---------

struct Pages {
  size_t bytes;
  Holder* holder;
};
API CUresult cuMemAddressReserve(CUdeviceptr* to, size_t bytes, size_t, CUdeviceptr,
                                 unsigned long long) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, bytes, PROT_NONE, flags, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *to = reinterpret_cast<CUdeviceptr>(made);
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* to, size_t bytes,
                         const CUmemAllocationProp*, unsigned long long) {
  std::lock_guard hold(lock);
  if (bytes % PAGE) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > room()) return CUDA_ERROR_OUT_OF_MEMORY;
  count(MALLOCS);
  auto pages = new Pages{bytes, own()};
  pages->holder->bytes += bytes;
  *to = reinterpret_cast<CUmemGenericAllocationHandle>(pages);
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard hold(lock);
  count(FREES);
  auto pages = reinterpret_cast<Pages*>(handle);
  pages->holder->bytes -= pages->bytes;
  delete pages;
  return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle,
                      unsigned long long) {
  std::lock_guard hold(lock);
  if (block_of(reinterpret_cast<void*>(address))) return CUDA_ERROR_INVALID_VALUE;
  blocks[address] = {bytes, Memory::DEVICE, current_device()};
  return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
  return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  wait_for_device();
  std::lock_guard hold(lock);
  blocks.erase(blocks.lower_bound(address), blocks.lower_bound(address + bytes));
  auto start = reinterpret_cast<void*>(address);
  madvise(start, bytes, MADV_DONTNEED);
  mprotect(start, bytes, PROT_NONE);
  return CUDA_SUCCESS;
}

// Copies --------------------------------------------------------------------------------------

static cudaError_t copy(void* to, const void* from, size_t bytes, void* stream, bool async) {
  if (!bytes) return cudaSuccess;
  auto into = memory_kind(to), outof = memory_kind(from);
  bool pageable = into == Memory::PAGEABLE || outof == Memory::PAGEABLE;
  Work work{Work::COPY, "copy", cudaMemcpyHostToHost, !pageable, bytes};
  if (on_device(into) && on_device(outof)) {
    work.detail = cudaMemcpyDeviceToDevice;
    count(D2D);
  } else if (on_device(into)) {
    work.detail = cudaMemcpyHostToDevice;
    count(pageable ? H2D_PAGEABLE : H2D_PINNED);
  } else if (on_device(outof)) {
    work.detail = cudaMemcpyDeviceToHost;
    count(pageable ? D2H_PAGEABLE : D2H_PINNED);
  }
  auto queue = stream_of(stream);
  if (queue->capture && pageable) return fails(cudaErrorStreamCaptureUnsupported, "cudaMemcpy");
  if (bytes <= TOUCHED || work.detail != cudaMemcpyDeviceToDevice) memmove(to, from, bytes);
  enqueue(stream, work, async ? "cudaMemcpyAsync" : "cudaMemcpy");
  // From the device to pageable memory even a copy called asynchronous waits; to the device one
  // does only until the host's memory has been read.
  if (!async || (pageable && work.detail == cudaMemcpyDeviceToHost)) {
    count(BLOCKING_COPIES);
    wait_until(queue->busy_until);
  }
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr, false);
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                cudaStream_t stream) {
  return copy(to, from, bytes, stream, true);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                    cudaStream_t stream) {
  return copy(to, from, bytes, stream, true);
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                  size_t width, size_t height, cudaMemcpyKind,
                                  cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  launch_of_library("memcpy2D", stream);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  count(MEMSETS);
  if (bytes <= TOUCHED) memset(to, value, bytes);
  enqueue(stream, Work{Work::MEMSET, "memset", value, false, bytes}, "cudaMemsetAsync");
  return cudaSuccess;
}
API cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
