// What the parts of the virtual GPU share: its counters, its streams and their work.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "profiles.h"

#define API extern "C" __attribute__((visibility("default")))

int device_count();  // those that CUDA_VISIBLE_DEVICES shows
int current_device();
int installed_device();  // its number among all that are installed

uint64_t now_ns();
void complain(const char* format, ...);  // on stderr, with our name before it

// Counted between two timing events, for VIRTUAL_GPU_TRACE. In the order of COUNTER_NAMES.
enum Counter {
  LAUNCHES, GRAPH_LAUNCHES, GRAPH_KERNELS, H2D_PAGEABLE, H2D_PINNED, D2H_PAGEABLE, D2H_PINNED, D2D,
  MEMSETS, STREAM_SYNCS, DEVICE_SYNCS, EVENT_SYNCS, BLOCKING_COPIES, MALLOCS, FREES, EVENTS,
  COUNTERS
};
constexpr const char* COUNTER_NAMES[COUNTERS] = {
    "launches", "graph_launches", "graph_kernels", "h2d_pageable", "h2d_pinned", "d2h_pageable",
    "d2h_pinned", "d2d", "memsets", "stream_syncs", "device_syncs", "event_syncs",
    "blocking_copies", "mallocs", "frees", "events"};
using Counts = std::array<uint64_t, COUNTERS>;
void count(Counter what, uint64_t times = 1);
Counts counts();

struct Work {  // one thing that a stream does
  enum Kind { KERNEL, COPY, MEMSET } kind;
  const char* name;
  int detail = 0;  // a copy's cudaMemcpyKind, or a memset's value
  bool pinned = false;
  size_t bytes = 0;
  dim3 grid{}, block{};
  unsigned shared = 0;
};
struct Graph {
  uint32_t id;
  std::vector<Work> work;
};
struct Stream {
  int id, device, priority;
  uint64_t busy_until = 0;  // on the virtual clock, which is the host's monotonic one
  Graph* capture = nullptr;
  bool origin = false;  // it began the capture, others were joined to it by events
  cudaStreamCaptureMode mode{};
};
extern std::recursive_mutex lock;
Stream* stream_of(void* handle);  // also of the default stream
std::vector<Stream*> streams();
void wait_until(uint64_t ns);
void wait_for_device();
void enqueue(void* stream, const Work& work, const char* api);
bool refused_in_capture(const char* call);  // what a global-mode capture forbids

cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t shared, void* stream,
                   const char* api);
void launch_of_library(const char* name, void* stream);

enum class Memory { PAGEABLE, HOST, DEVICE, MANAGED };
Memory memory_kind(const void* pointer);

cudaError_t fails(cudaError_t error, const char* call);  // remembers it for cudaGetLastError

// Of cupti.cpp: what a profiler sees.
bool profiler_attached();
void profiler_call(const char* api, uint64_t begin, uint64_t end);  // the work that follows is its
void profiler_work(const Work&, uint64_t begin, uint64_t end, const Stream&, uint32_t graph = 0);
