// A build without CUDA.
#include "imbrex/device/memory.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/survey.hpp"

namespace imbrex {
namespace {

constexpr const char* absent = "this build of Imbrex has no CUDA parts; build it where nvcc is found";

}  // namespace

GpuSurvey survey_gpus() {
  GpuSurvey survey;
  survey.reason = absent;
  return survey;
}

namespace device {

struct Memory::Parts {};

Memory::Memory(World&, const MemoryOptions&) { throw Error(ErrorCode::invalid_input, absent); }
Memory::~Memory() = default;
int Memory::gpu() const { return -1; }
void* Memory::allocate(std::size_t) { return nullptr; }
void Memory::release(void*) {}
Group Memory::group(std::uint32_t, std::function<std::string(const Fault&)>, bool) { return {}; }
void Memory::check() {}
void Memory::end_waits() noexcept {}
void Memory::finish(CUstream_st*) {}

}  // namespace device

namespace runtime {

GpuSurvey survey_gpus_here() { return survey_gpus(); }

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) { throw Error(ErrorCode::invalid_input, absent); }
std::unique_ptr<DeviceMemory> DeviceMemory::beside_captures(std::size_t bytes) {
  return std::make_unique<DeviceMemory>(bytes);
}
std::size_t DeviceMemory::left() { return 0; }
void DeviceMemory::synchronize() {}
void DeviceMemory::fill(unsigned char) {}
void DeviceMemory::upload(const std::vector<std::byte>&) {}
void DeviceMemory::upload(const void*) {}
void DeviceMemory::download(std::vector<std::byte>&) const {}
void DeviceMemory::download(void*) const {}
void DeviceMemory::download_rows(void*, std::size_t, std::size_t, std::size_t) const {}

int current_gpu() { return -1; }
int multiprocessors_of(int) { return 0; }
void select_gpu(int) {}
void use_during_captures() {}
bool is_captured(CUstream_st*, int) { return false; }
bool on_gpu(const void*, int) { return false; }

}  // namespace runtime
}  // namespace imbrex
