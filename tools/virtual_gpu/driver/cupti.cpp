// Stands in for CUPTI's activity API, through which torch's profiler (kineto) sees kernels, copies,
// memsets and calls. Times are the virtual clock's; names are the real kernels'.
#include <cupti.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "virtual.h"

struct Record {
  enum { CALL, CORRELATION, WORK } what;
  uint32_t correlation;
  uint64_t begin, end;
  Work work;              // of WORK
  int device, stream;     // of WORK
  uint32_t graph;         // of WORK
  int callback, thread;   // of CALL
  bool driver;            // of CALL
  CUpti_ExternalCorrelationKind kind;  // of CORRELATION
  uint64_t external;                   // of CORRELATION
};
struct Callback {
  const char* name;
  int number;
  bool driver;
};
#define RUNTIME(name, version) {#name, CUPTI_RUNTIME_TRACE_CBID_##name##_v##version, false}
#define DRIVER(name) {#name, CUPTI_DRIVER_TRACE_CBID_##name, true}
static const Callback CALLBACKS[] = {
    RUNTIME(cudaLaunchKernel, 7000), RUNTIME(cudaLaunchKernelExC, 11060),
    RUNTIME(cudaLaunchCooperativeKernel, 9000), RUNTIME(cudaGraphLaunch, 10000),
    RUNTIME(cudaMemcpyAsync, 3020), RUNTIME(cudaMemcpy, 3020), RUNTIME(cudaMemsetAsync, 3020),
    RUNTIME(cudaStreamSynchronize, 3020), RUNTIME(cudaDeviceSynchronize, 3020),
    DRIVER(cuLaunchKernel), DRIVER(cuLaunchKernelEx)};

static std::set<int> enabled;  // kinds of activity
static std::vector<Record> records;
static uint32_t correlation = 1;
static thread_local std::map<CUpti_ExternalCorrelationKind, std::vector<uint64_t>> externals;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_TimestampCallbackFunc timestamp;
static uint64_t first_timestamp, first_ns;  // taken together, on the profiler's clock and on ours
static uint8_t* buffer;
static size_t buffer_size;

bool profiler_attached() { return !enabled.empty(); }

void profiler_call(const char* api, uint64_t begin, uint64_t end) {
  if (!profiler_attached()) return;
  std::lock_guard hold(lock);
  size_t most = 0;
  if (!buffer && request) request(&buffer, &buffer_size, &most);  // at the first activity
  correlation++;
  for (auto& [kind, ids] : externals)
    if (!ids.empty()) {
      Record record{Record::CORRELATION, correlation};
      record.kind = kind;
      record.external = ids.back();
      records.push_back(record);
    }
  Record record{Record::CALL, correlation, begin, end};
  record.thread = syscall(SYS_gettid);
  for (auto& callback : CALLBACKS)
    if (!strcmp(callback.name, api))
      record.callback = callback.number, record.driver = callback.driver;
  records.push_back(record);
}
void profiler_work(const Work& work, uint64_t begin, uint64_t end, const Stream& stream,
                   uint32_t graph) {
  std::lock_guard hold(lock);
  records.push_back({Record::WORK, correlation, begin, end, work, stream.device, stream.id, graph});
}

// What the profiler calls ---------------------------------------------------------------------

API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  return enabled.insert(kind), CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  return enabled.erase(kind), CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc ask,
                                               CUpti_BuffersCallbackCompleteFunc hand_over) {
  request = ask;
  complete = hand_over;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function) {
  timestamp = function;
  first_timestamp = function();
  first_ns = now_ns();
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                       uint64_t id) {
  return externals[kind].push_back(id), CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                      uint64_t* id) {
  auto& ids = externals[kind];
  if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (id) *id = ids.back();
  return ids.pop_back(), CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* number) {
  return *number = 0, CUPTI_SUCCESS;
}
API CUptiResult cuptiGetVersion(uint32_t* version) {
  return *version = CUPTI_API_VERSION, CUPTI_SUCCESS;
}
API CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  return *text = "an error of the virtual GPU", CUPTI_SUCCESS;
}
API CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t number,
                                     const char** name) {
  *name = "another_call";
  for (auto& callback : CALLBACKS)
    if (callback.number == (int)number && callback.driver == (domain == CUPTI_CB_DOMAIN_DRIVER_API))
      *name = callback.name;
  return CUPTI_SUCCESS;
}

// Handing records over ------------------------------------------------------------------------

constexpr size_t SLOT = 384;  // bytes; no record of CUPTI's is larger

template <class Activity>
static Activity* fill(uint8_t* slot, const Record& record, CUpti_ActivityKind kind, double rate) {
  auto activity = reinterpret_cast<Activity*>(slot);
  auto converted = [&](uint64_t ns) {
    return first_timestamp + (int64_t)(((double)ns - (double)first_ns) * rate);
  };
  activity->kind = kind;
  activity->start = converted(record.begin);
  activity->end = converted(record.end);
  activity->correlationId = record.correlation;
  return activity;
}
template <class Activity>
static Activity* fill_work(uint8_t* slot, const Record& record, CUpti_ActivityKind kind,
                           double rate) {
  auto activity = fill<Activity>(slot, record, kind, rate);
  activity->deviceId = record.device;
  activity->contextId = 1;
  activity->streamId = record.stream;
  return activity;
}
static void write(uint8_t* slot, const Record& record, double rate) {
  auto& work = record.work;
  if (record.what == Record::CORRELATION) {
    auto activity = reinterpret_cast<CUpti_ActivityExternalCorrelation*>(slot);
    activity->kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    activity->externalKind = record.kind;
    activity->externalId = record.external;
    activity->correlationId = record.correlation;
  } else if (record.what == Record::CALL) {
    auto kind = record.driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
    auto activity = fill<CUpti_ActivityAPI>(slot, record, kind, rate);
    activity->cbid = record.callback;
    activity->processId = getpid();
    activity->threadId = record.thread;
  } else if (work.kind == Work::KERNEL) {
    auto kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    auto activity = fill_work<CUpti_ActivityKernel10>(slot, record, kind, rate);
    activity->name = work.name;
    activity->gridX = work.grid.x, activity->gridY = work.grid.y, activity->gridZ = work.grid.z;
    activity->blockX = work.block.x, activity->blockY = work.block.y;
    activity->blockZ = work.block.z;
    activity->dynamicSharedMemory = work.shared;
    activity->registersPerThread = 32;
    activity->graphId = record.graph;
  } else if (work.kind == Work::COPY) {
    auto kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    auto activity = fill_work<CUpti_ActivityMemcpy6>(slot, record, kind, rate);
    auto device = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    auto host = CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
    if (work.pinned) host = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
    bool into = work.detail == cudaMemcpyHostToDevice;
    bool within = work.detail == cudaMemcpyDeviceToDevice;
    activity->copyKind = within ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD
                         : into ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                                : CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
    activity->srcKind = into ? host : device;
    activity->dstKind = into || within ? device : host;
    activity->bytes = work.bytes;
  } else {
    auto kind = CUPTI_ACTIVITY_KIND_MEMSET;
    auto activity = fill_work<CUpti_ActivityMemset4>(slot, record, kind, rate);
    activity->bytes = work.bytes;
    activity->value = work.detail;
    activity->memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  }
}
API CUptiResult cuptiActivityFlushAll(uint32_t) {
  std::vector<Record> taken;
  {
    std::lock_guard hold(lock);
    taken.swap(records);
  }
  if (!buffer) return CUPTI_SUCCESS;
  double rate = 1;  // of the profiler's clock to ours
  if (timestamp && now_ns() > first_ns)
    rate = (double)(timestamp() - first_timestamp) / (double)(now_ns() - first_ns);
  for (size_t next = 0; next < taken.size() || buffer;) {
    size_t used = 0, most = 0;
    if (!buffer) request(&buffer, &buffer_size, &most);
    if (!buffer || buffer_size < SLOT) break;
    memset(buffer, 0, buffer_size);
    for (; next < taken.size() && used + SLOT <= buffer_size; used += SLOT)
      write(buffer + used, taken[next++], rate);
    complete(nullptr, 0, std::exchange(buffer, nullptr), buffer_size, used);
  }
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityGetNextRecord(uint8_t* from, size_t valid, CUpti_Activity** record) {
  uint8_t* next = *record ? reinterpret_cast<uint8_t*>(*record) + SLOT : from;
  if (next + SLOT > from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  return *record = reinterpret_cast<CUpti_Activity*>(next), CUPTI_SUCCESS;
}
