// Stands in for the CUDA runtime's streams, events, stream capture and graphs.
//
// The virtual clock is the host's: every piece of work lasts DURATION_NS, begins when its stream is
// free, and a wait sleeps until it is done.
#include "virtual.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

std::recursive_mutex lock;
static std::set<Stream*> all_streams;
static int next_stream = 7;
static uint32_t next_graph = 1;
static std::map<uint32_t, Graph*> captures;  // those that have begun and not ended, by id

struct Event {
  unsigned flags;
  uint64_t time = 0;
  bool recorded = false;
  uint32_t capture = 0;  // the graph's id; an event may outlive it
  Counts counts{};
  bool timed() const { return !(flags & cudaEventDisableTiming); }
};

// Counters ------------------------------------------------------------------------------------

static Counts counters;
void count(Counter what, uint64_t times) {
  std::lock_guard hold(lock);
  counters[what] += times;
}
Counts counts() {
  std::lock_guard hold(lock);
  return counters;
}
// For each pair of events whose distance is asked for, what was counted between them: the harness
// asks for all of its steps, in order, after the last.
static void trace(const Event& begin, const Event& end) {
  static FILE* file = [] {
    const char* path = getenv("VIRTUAL_GPU_TRACE");
    if (!path) return (FILE*)nullptr;
    return fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "a");
  }();
  if (!file) return;
  for (int i = 0; i < COUNTERS; i++)
    fprintf(file, "%s\"%s\": %ld", i ? ", " : "{", COUNTER_NAMES[i],
            (long)(end.counts[i] - begin.counts[i]));
  fprintf(file, "}\n");
  fflush(file);
}

// Streams -------------------------------------------------------------------------------------

Stream* stream_of(void* handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return static_cast<Stream*>(handle);
  static Stream* defaults[16];  // of each device; 1 and 2 are the legacy and the per-thread one
  std::lock_guard hold(lock);
  auto& stream = defaults[current_device()];
  if (!stream) all_streams.insert(stream = new Stream{7, current_device(), 0});
  return stream;
}
std::vector<Stream*> streams() {
  std::lock_guard hold(lock);
  return {all_streams.begin(), all_streams.end()};
}
void wait_until(uint64_t time) {
  uint64_t now = now_ns();
  if (time > now) usleep((time - now + 999) / 1000);
}
void wait_for_device() {
  uint64_t time = 0;
  for (auto stream : streams())
    if (stream->device == current_device()) time = std::max(time, stream->busy_until);
  wait_until(time);
}
static uint64_t occupy(Stream* stream) {  // for one piece of work; returns when it begins
  static const uint64_t DURATION_NS = number_from_environment("VIRTUAL_GPU_KERNEL_NS", 5000);
  uint64_t begin = std::max(stream->busy_until, now_ns());
  stream->busy_until = begin + DURATION_NS;
  return begin;
}
void enqueue(void* handle, const Work& work, const char* api) {
  std::lock_guard hold(lock);
  auto stream = stream_of(handle);
  if (stream->capture) return stream->capture->work.push_back(work);
  uint64_t called = now_ns(), begin = occupy(stream);
  if (!profiler_attached()) return;
  profiler_call(api, called, now_ns());
  profiler_work(work, begin, stream->busy_until, *stream);
}
static cudaError_t create(cudaStream_t* to, int priority) {
  std::lock_guard hold(lock);
  auto made = new Stream{++next_stream, current_device(), priority};
  all_streams.insert(made);
  return *to = reinterpret_cast<cudaStream_t>(made), cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t* to) { return create(to, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned) { return create(to, 0); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* to, unsigned, int priority) {
  return create(to, priority);
}
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard hold(lock);
  all_streams.erase(stream_of(stream));
  delete stream_of(stream);
  return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return *priority = stream_of(stream)->priority, cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  count(STREAM_SYNCS);
  auto stream = stream_of(handle);
  if (stream->capture) return fails(cudaErrorStreamCaptureUnsupported, __func__);
  uint64_t begin = now_ns();
  wait_until(stream->busy_until);
  profiler_call(__func__, begin, now_ns());
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  count(DEVICE_SYNCS);
  if (refused_in_capture(__func__)) return fails(cudaErrorStreamCaptureUnsupported, __func__);
  uint64_t begin = now_ns();
  wait_for_device();
  profiler_call(__func__, begin, now_ns());
  return cudaSuccess;
}
API CUresult cuStreamSynchronize(CUstream stream) {
  return (CUresult)cudaStreamSynchronize(stream);
}
API CUresult cuCtxSynchronize() { return (CUresult)cudaDeviceSynchronize(); }
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream)->busy_until > now_ns() ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (!stream_of(stream)->capture) function(data);
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function,
                                      void* data, unsigned) {
  return function(stream, cudaSuccess, data), cudaSuccess;
}

// Events --------------------------------------------------------------------------------------

static Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned flags) {
  return *to = reinterpret_cast<cudaEvent_t>(new Event{flags}), cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* to) { return cudaEventCreateWithFlags(to, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event_of(event), cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t queue) {
  std::lock_guard hold(lock);
  auto event = event_of(handle);
  auto stream = stream_of(queue);
  event->capture = stream->capture ? stream->capture->id : 0;
  event->recorded = true;
  if (stream->capture) return cudaSuccess;
  event->time = std::max(stream->busy_until, now_ns());
  event->counts = counters;
  count(EVENTS);
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  count(EVENT_SYNCS);
  auto event = event_of(handle);
  if (event->recorded && !event->capture) wait_until(event->time);
  return cudaSuccess;
}
API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  auto event = event_of(handle);
  if (event->capture) return fails(cudaErrorCapturedEvent, __func__);
  return event->recorded && event->time > now_ns() ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t second) {
  auto begin = event_of(first), end = event_of(second);
  if (!begin->timed() || !end->timed() || !begin->recorded || !end->recorded)
    return fails(cudaErrorInvalidResourceHandle, __func__);
  if (std::max(begin->time, end->time) > now_ns()) return cudaErrorNotReady;
  trace(*begin, *end);
  return *ms = ((double)end->time - (double)begin->time) / 1e6, cudaSuccess;
}
API cudaError_t cudaEventElapsedTime_v2(float* ms, cudaEvent_t first, cudaEvent_t second) {
  return cudaEventElapsedTime(ms, first, second);
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t queue, cudaEvent_t handle, unsigned) {
  std::lock_guard hold(lock);
  auto stream = stream_of(queue);
  auto event = event_of(handle);
  if (event->capture) {  // joins the stream to the capture
    auto found = captures.find(event->capture);
    if (found == captures.end()) return fails(cudaErrorCapturedEvent, __func__);
    stream->capture = found->second;
  } else if (event->recorded) {
    stream->busy_until = std::max(stream->busy_until, event->time);
  }
  return cudaSuccess;
}

// Capture and graphs --------------------------------------------------------------------------

static thread_local auto thread_mode = cudaStreamCaptureModeGlobal;
bool refused_in_capture(const char* call) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  for (auto stream : streams())
    if (stream->origin && stream->mode == cudaStreamCaptureModeGlobal) {
      complain("%s during a capture in global mode", call);
      return true;
    }
  return false;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return std::swap(thread_mode, *mode), cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t queue, cudaStreamCaptureMode mode) {
  std::lock_guard hold(lock);
  auto stream = stream_of(queue);
  if (reinterpret_cast<uintptr_t>(queue) <= 2 || stream->capture)
    return fails(cudaErrorStreamCaptureUnsupported, __func__);
  stream->capture = captures[next_graph] = new Graph{next_graph, {}};
  next_graph++;
  stream->origin = true;
  stream->mode = mode;
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t queue, cudaGraph_t* to) {
  std::lock_guard hold(lock);
  auto graph = stream_of(queue)->capture;
  if (!graph) return fails(cudaErrorIllegalState, __func__);
  captures.erase(graph->id);
  for (auto stream : all_streams)
    if (stream->capture == graph) stream->capture = nullptr, stream->origin = false;
  return *to = reinterpret_cast<cudaGraph_t>(graph), cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  bool capturing = stream_of(stream)->capture;
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                         unsigned long long* id, cudaGraph_t* to,
                                         const cudaGraphNode_t** dependencies,
                                         const cudaGraphEdgeData** edges, size_t* number) {
  static cudaGraphNode_t last_node = reinterpret_cast<cudaGraphNode_t>(1);
  auto graph = stream_of(stream)->capture;
  if (status) cudaStreamIsCapturing(stream, status);
  if (id) *id = graph ? graph->id : 0;
  if (to) *to = reinterpret_cast<cudaGraph_t>(graph);
  if (dependencies) *dependencies = &last_node;
  if (edges) *edges = nullptr;
  if (number) *number = graph && !graph->work.empty();
  return cudaSuccess;
}
static Graph* graph_of(void* handle) { return static_cast<Graph*>(handle); }
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* to, size_t* number) {
  size_t have = graph_of(graph)->work.size();
  for (size_t i = 0; to && i < std::min(*number, have); i++)
    to[i] = reinterpret_cast<cudaGraphNode_t>(i + 1);
  return *number = have, cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* to, cudaGraph_t graph,
                                              unsigned long long) {
  return *to = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph))), cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph_of(graph), cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return delete graph_of(graph), cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t queue) {
  std::lock_guard hold(lock);
  auto graph = graph_of(handle);
  auto stream = stream_of(queue);
  if (stream->capture) return fails(cudaErrorStreamCaptureUnsupported, __func__);
  count(GRAPH_LAUNCHES);
  count(GRAPH_KERNELS, graph->work.size());
  uint64_t called = now_ns();
  if (profiler_attached()) profiler_call(__func__, called, now_ns());
  for (auto& work : graph->work) {
    uint64_t begin = occupy(stream);
    if (profiler_attached()) profiler_work(work, begin, stream->busy_until, *stream, graph->id);
  }
  return cudaSuccess;
}
