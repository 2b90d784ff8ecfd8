// The cards that the virtual GPU can be, and which processes hold their memory. VIRTUAL_GPU_PROFILE
// names a card, VIRTUAL_GPU_DEVICES says how many there are.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Profile {  // memory is what the driver leaves of it; the bus is in bits
  const char *key, *name;
  int major, minor, multiprocessors;
  size_t memory;
  int shared_optin, shared_multiprocessor, l2, clock_khz, memory_clock_khz, bus;
};
constexpr Profile PROFILES[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 85045149696, 232448, 233472, 50 << 20, 1980000,
     2619000, 5120},
    {"a100", "NVIDIA A100-SXM4-40GB", 8, 0, 108, 42297786368, 166912, 167936, 40 << 20, 1410000,
     1215000, 5120},
    {"l4", "NVIDIA L4", 8, 9, 58, 23580639232, 101376, 102400, 48 << 20, 2040000, 6251000, 192},
    {"3050", "NVIDIA GeForce RTX 3050 Laptop GPU", 8, 6, 16, 4294508544, 101376, 102400, 2 << 20,
     1057000, 5501000, 128},
    {"3090", "NVIDIA GeForce RTX 3090", 8, 6, 82, 25438126080, 101376, 102400, 6 << 20, 1695000,
     9751000, 384},
    {"4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 25386352640, 101376, 102400, 72 << 20, 2520000,
     10501000, 384},
    {"t4", "Tesla T4", 7, 5, 40, 15642329088, 65536, 65536, 4 << 20, 1590000, 5001000, 256},
    {"5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 33661911040, 101376, 102400, 96 << 20, 2407000,
     14001000, 512},
    {"b200", "NVIDIA B200", 10, 0, 148, 191503138816, 232448, 233472, 126 << 20, 1965000, 3996000,
     8192},
};
inline const Profile& profile() {
  static const Profile& chosen = []() -> const Profile& {
    const char* key = getenv("VIRTUAL_GPU_PROFILE");
    for (auto& known : PROFILES)
      if (!key || !strcmp(key, known.key)) return known;
    fprintf(stderr, "VIRTUAL_GPU_PROFILE=%s: there is no such profile\n", key);
    _exit(2);
  }();
  return chosen;
}
inline long number_from_environment(const char* name, long otherwise) {
  const char* value = getenv(name);
  return value ? atol(value) : otherwise;
}
inline int devices_installed() { return number_from_environment("VIRTUAL_GPU_DEVICES", 1); }

// A process with a context on a device. All processes with the same VIRTUAL_GPU_MACHINE, a path,
// share one table; others have one of their own. In memory.cpp.
struct Holder {
  int pid, device;  // -1 while its process writes it
  size_t bytes;  // with the context
  bool alive() const {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE* file = pid > 0 ? fopen(path, "r") : nullptr;
    if (!file) return false;
    bool some = fgetc(file) != EOF;  // one that has ended and is not waited for has none
    return fclose(file), some;
  }
};
constexpr int HOLDERS = 64;
extern "C" __attribute__((visibility("default"), weak)) Holder* virtual_gpu_holders();
inline size_t held(int device) {
  size_t bytes = 0;
  for (int i = 0; i < HOLDERS; i++) {
    Holder& one = virtual_gpu_holders()[i];
    if (one.device == device && one.alive()) bytes += one.bytes;
  }
  return bytes;
}
