// Stands in for NCCL: ranks of one machine exchange through shared memory, when the call is made.
// What is larger than EXCHANGED is not: without kernels its values mean nothing, and it takes long.
#include "virtual.h"

#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
struct __half { unsigned short bits; };
struct __nv_bfloat16 { unsigned short bits; };
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

constexpr size_t CHUNK = 4 << 20;  // bytes that each rank lays out at once
constexpr size_t EXCHANGED = 64 << 20;
constexpr int MOST_RANKS = 16;

struct Shared {  // at the start of the memory; then each rank's chunk, then one of each pair
  std::atomic<int> joined, arrived, turn, mail[MOST_RANKS * MOST_RANKS];
};
struct Communicator {
  int rank, ranks;
  std::string name;
  int splits = 0;
  Shared* shared = nullptr;
  char* chunk(int index) { return reinterpret_cast<char*>(shared) + 4096 + index * CHUNK; }
};
static void rest() { usleep(20); }

static ncclComm_t join(const std::string& name, int rank, int ranks) {
  auto made = new Communicator{rank, ranks, name};
  size_t bytes = 4096 + (ranks + ranks * ranks) * CHUNK;
  int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (ftruncate(file, bytes)) complain("%s: no shared memory", name.c_str());
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  made->shared = static_cast<Shared*>(memory);
  close(file);
  made->shared->joined++;
  while (made->shared->joined < ranks) rest();
  if (!rank) shm_unlink(name.c_str());
  return reinterpret_cast<ncclComm_t>(made);
}
static Communicator& of(ncclComm_t handle) { return *reinterpret_cast<Communicator*>(handle); }
static void barrier(Communicator& all) {
  int turn = all.shared->turn;
  if (++all.shared->arrived == all.ranks) {
    all.shared->arrived = 0;
    all.shared->turn++;
  }
  while (all.shared->turn == turn) rest();
}

// Communicators -------------------------------------------------------------------------------

API ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  snprintf(id->internal, sizeof id->internal, "/virtual_gpu_%d_%lx", getpid(), (long)now_ns());
  return ncclSuccess;
}
API ncclResult_t ncclCommInitRankConfig(ncclComm_t* to, int ranks, ncclUniqueId id, int rank,
                                        ncclConfig_t*) {
  return *to = join(id.internal, rank, ranks), ncclSuccess;
}
API ncclResult_t ncclCommInitRank(ncclComm_t* to, int ranks, ncclUniqueId id, int rank) {
  return *to = join(id.internal, rank, ranks), ncclSuccess;
}
API ncclResult_t ncclCommInitRankScalable(ncclComm_t* to, int ranks, int rank, int,
                                          ncclUniqueId* ids, ncclConfig_t*) {
  return *to = join(ids[0].internal, rank, ranks), ncclSuccess;
}
API ncclResult_t ncclCommCount(const ncclComm_t handle, int* ranks) {
  return *ranks = of(handle).ranks, ncclSuccess;
}
API ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  return *rank = of(handle).rank, ncclSuccess;
}
API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  return *error = ncclSuccess, ncclSuccess;
}
API const char* ncclGetErrorString(ncclResult_t) { return "an error of the virtual GPU"; }
API const char* ncclGetLastError(ncclComm_t) { return ""; }

// Collectives ---------------------------------------------------------------------------------

static size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 1;
  }
}
struct Bfloat16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    return memcpy(&value, &wide, 4), value;
  }
  Bfloat16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bits = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;  // to nearest, ties to even
  }
};
template <class T, class Sum>
static void reduce(Communicator& all, char* to, size_t bytes, ncclRedOp_t operation) {
  for (size_t i = 0; i < bytes / sizeof(T); i++) {
    auto value = [&](int rank) { return (Sum) reinterpret_cast<T*>(all.chunk(rank))[i]; };
    Sum sum = value(0);
    for (int rank = 1; rank < all.ranks; rank++) {
      Sum next = value(rank);
      sum = operation == ncclMax ? std::max(sum, next) : operation == ncclMin ? std::min(sum, next)
            : operation == ncclProd ? sum * next : sum + next;
    }
    if (operation == ncclAvg) sum = sum / all.ranks;
    reinterpret_cast<T*>(to)[i] = sum;
  }
}
static void reduce(Communicator& all, char* to, size_t bytes, ncclDataType_t type,
                   ncclRedOp_t operation) {
  switch (type) {
    case ncclFloat32: return reduce<float, float>(all, to, bytes, operation);
    case ncclFloat64: return reduce<double, double>(all, to, bytes, operation);
    case ncclFloat16: return reduce<_Float16, float>(all, to, bytes, operation);
    case ncclBfloat16: return reduce<Bfloat16, float>(all, to, bytes, operation);
    case ncclInt32:
    case ncclUint32: return reduce<int32_t, int32_t>(all, to, bytes, operation);
    case ncclInt64:
    case ncclUint64: return reduce<int64_t, int64_t>(all, to, bytes, operation);
    case ncclInt8: return reduce<int8_t, int8_t>(all, to, bytes, operation);
    case ncclUint8: return reduce<uint8_t, uint8_t>(all, to, bytes, operation);
    default: complain("no reduction of NCCL's type %d", type);
  }
}
// Lays out a rank's bytes, chunk by chunk; take(offset, bytes) finds everyone's in all.chunk(rank).
template <class Take>
static void exchange(Communicator& all, const void* mine, size_t bytes, Take take) {
  if (bytes > EXCHANGED) return;
  for (size_t offset = 0; offset < bytes; offset += CHUNK) {
    size_t part = std::min(CHUNK, bytes - offset);
    memcpy(all.chunk(all.rank), static_cast<const char*>(mine) + offset, part);
    barrier(all);
    take(offset, part);
    barrier(all);
  }
}
static char* at(void* start, size_t offset) { return static_cast<char*>(start) + offset; }

API ncclResult_t ncclAllReduce(const void* from, void* to, size_t number, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  launch_of_library("ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream);
  exchange(of(handle), from, number * width(type), [&](size_t offset, size_t part) {
    reduce(of(handle), at(to, offset), part, type, operation);
  });
  return ncclSuccess;
}
API ncclResult_t ncclReduce(const void* from, void* to, size_t number, ncclDataType_t type,
                            ncclRedOp_t operation, int root, ncclComm_t handle,
                            cudaStream_t stream) {
  launch_of_library("ncclDevKernel_Reduce_Sum_f32_RING_LL", stream);
  exchange(of(handle), from, number * width(type), [&](size_t offset, size_t part) {
    if (of(handle).rank == root) reduce(of(handle), at(to, offset), part, type, operation);
  });
  return ncclSuccess;
}
API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t number, ncclDataType_t type,
                                   ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  launch_of_library("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", stream);
  auto& all = of(handle);
  size_t bytes = number * width(type);
  for (int rank = 0; rank < all.ranks; rank++)  // rank's part, which may lie where the sum goes
    exchange(all, (const char*)from + rank * bytes, bytes, [&](size_t offset, size_t part) {
      if (all.rank == rank) reduce(all, at(to, offset), part, type, operation);
    });
  return ncclSuccess;
}
API ncclResult_t ncclAllGather(const void* from, void* to, size_t number, ncclDataType_t type,
                               ncclComm_t handle, cudaStream_t stream) {
  launch_of_library("ncclDevKernel_AllGather_RING_LL", stream);
  auto& all = of(handle);
  size_t bytes = number * width(type);
  exchange(all, from, bytes, [&](size_t offset, size_t part) {
    for (int rank = 0; rank < all.ranks; rank++)
      memcpy(at(to, rank * bytes + offset), all.chunk(rank), part);
  });
  return ncclSuccess;
}
API ncclResult_t ncclBroadcast(const void* from, void* to, size_t number, ncclDataType_t type,
                               int root, ncclComm_t handle, cudaStream_t stream) {
  launch_of_library("ncclDevKernel_Broadcast_RING_LL", stream);
  exchange(of(handle), from, number * width(type), [&](size_t offset, size_t part) {
    memcpy(at(to, offset), of(handle).chunk(root), part);
  });
  return ncclSuccess;
}
API ncclResult_t ncclBcast(void* buffer, size_t number, ncclDataType_t type, int root,
                           ncclComm_t handle, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, number, type, root, handle, stream);
}
API ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int, ncclComm_t* to, ncclConfig_t*) {
  auto& all = of(handle);
  std::vector<int> colors(all.ranks);
  ncclAllGather(&color, colors.data(), 1, ncclInt32, handle, nullptr);
  int rank = 0, ranks = 0;
  for (int other = 0; other < all.ranks; other++)
    if (colors[other] == color) rank += other < all.rank, ranks++;
  auto name = all.name + "_" + std::to_string(++all.splits) + "_" + std::to_string(color);
  *to = color < 0 ? nullptr : join(name, rank, ranks);
  return ncclSuccess;
}

// Point to point: a box for each pair of ranks; within a group all sends go first -------------

struct Letter {
  Communicator* all;
  char* at;
  size_t bytes;
  int peer;
  bool sent;
};
static thread_local std::vector<Letter> letters;
static thread_local int groups = 0;

static void deliver(Letter& letter) {
  auto& all = *letter.all;
  int from = letter.sent ? all.rank : letter.peer, to = letter.sent ? letter.peer : all.rank;
  auto& full = all.shared->mail[from * all.ranks + to];
  char* box = all.chunk(all.ranks + from * all.ranks + to);
  for (size_t offset = 0; offset < letter.bytes; offset += CHUNK) {
    size_t part = std::min(CHUNK, letter.bytes - offset);
    while (full == letter.sent) rest();
    letter.sent ? memcpy(box, letter.at + offset, part) : memcpy(letter.at + offset, box, part);
    full = letter.sent;
  }
}
static ncclResult_t end_of_group() {
  for (bool sent : {true, false})
    for (auto& letter : letters)
      if (letter.sent == sent) deliver(letter);
  return letters.clear(), ncclSuccess;
}
API ncclResult_t ncclGroupStart() { return groups++, ncclSuccess; }
API ncclResult_t ncclGroupEnd() { return --groups ? ncclSuccess : end_of_group(); }
static ncclResult_t post(const void* at, size_t bytes, int peer, ncclComm_t handle, bool sent,
                         cudaStream_t stream) {
  launch_of_library("ncclDevKernel_SendRecv", stream);
  letters.push_back({&of(handle), (char*)at, bytes, peer, sent});
  return groups ? ncclSuccess : end_of_group();
}
API ncclResult_t ncclSend(const void* from, size_t number, ncclDataType_t type, int peer,
                          ncclComm_t handle, cudaStream_t stream) {
  return post(from, number * width(type), peer, handle, true, stream);
}
API ncclResult_t ncclRecv(void* to, size_t number, ncclDataType_t type, int peer,
                          ncclComm_t handle, cudaStream_t stream) {
  return post(to, number * width(type), peer, handle, false, stream);
}
