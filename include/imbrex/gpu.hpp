// The GPUs of this machine, as its driver tells them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace imbrex {

struct Gpu {
  std::string name, uuid;  ///< "NVIDIA H200", "GPU-0f3b..."
  std::size_t memory_bytes = 0;
  int sms = 0;
  int major = 0, minor = 0;     ///< compute capability
  bool maps_memory = false;     ///< virtual memory management: allocations at addresses of the program's choice
  bool exports_memory = false;  ///< such allocations travel to other processes as file descriptors
};

/// How a GPU reaches another one's memory.
enum class GpuLink : std::uint8_t {
  none,    ///< not at all
  pcie,    ///< by loads and stores, without atomic operations
  nvlink,  ///< by loads, stores and native atomic operations
};

constexpr std::string_view name_of(GpuLink link) {
  return link == GpuLink::nvlink ? "nvlink" : link == GpuLink::pcie ? "pcie" : "none";
}

struct GpuSurvey {
  std::vector<Gpu> gpus;       ///< by CUDA's number: those that CUDA_VISIBLE_DEVICES leaves
  std::vector<GpuLink> links;  ///< from gpu i to gpu j at i * gpus.size() + j; `nvlink` from one to itself
  std::string reason;          ///< why there are none, in words; empty if there are some

  GpuLink link(std::size_t from, std::size_t to) const { return links[from * gpus.size() + to]; }
};

/// Asks the driver in a process of its own, so that this one can still be forked: CUDA does not survive a fork. Takes
/// a second or two where there are GPUs. Throws nothing but std::bad_alloc.
GpuSurvey survey_gpus();

}  // namespace imbrex
