#include "runtime/cuda/device_memory.hpp"

#include <algorithm>

#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::runtime {

DeviceMemory::DeviceMemory(std::size_t bytes)
    : data_(cuda::raw_memory(std::max<std::size_t>(bytes, 1))), bytes_(bytes) {}

std::size_t DeviceMemory::left() {
  std::size_t left = 0, all = 0;
  IMBREX_CUDA_TRY(cudaMemGetInfo(&left, &all));
  return left;
}

std::unique_ptr<DeviceMemory> DeviceMemory::beside_captures(std::size_t bytes) {
  // What may disturb a capture is refused while one in global mode is under way anywhere, and ends it.
  struct Relaxed {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
    ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
    Relaxed(const Relaxed&) = delete;
    Relaxed& operator=(const Relaxed&) = delete;
  };
  const Relaxed relaxed;
  return std::make_unique<DeviceMemory>(bytes);
}

void DeviceMemory::synchronize() { IMBREX_CUDA_TRY(cudaDeviceSynchronize()); }

void DeviceMemory::fill(unsigned char byte) {
  IMBREX_CUDA_TRY(cudaMemset(data_.get(), byte, bytes_));
  // The executor's streams do not wait for the default one.
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

void DeviceMemory::upload(const std::vector<std::byte>& from) {
  IMBREX_EXPECTS(from.size() == bytes_, "upload of {} bytes to device memory of {}", from.size(), bytes_);
  upload(from.data());
}

void DeviceMemory::upload(const void* from) {
  IMBREX_CUDA_TRY(cudaMemcpy(data_.get(), from, bytes_, cudaMemcpyHostToDevice));
  // A copy from pageable memory may return before its last part has arrived.
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

void DeviceMemory::download(std::vector<std::byte>& to) const {
  to.resize(bytes_);
  download(to.data());
}

void DeviceMemory::download(void* to) const {
  IMBREX_CUDA_TRY(cudaMemcpy(to, data_.get(), bytes_, cudaMemcpyDeviceToHost));
}

void DeviceMemory::download_rows(void* to, std::size_t rows, std::size_t width, std::size_t pitch) const {
  IMBREX_CUDA_TRY(cudaMemcpy2D(to, pitch, data_.get(), pitch, width, rows, cudaMemcpyDeviceToHost));
}

int current_gpu() {
  int device = 0;
  IMBREX_CUDA_TRY(cudaGetDevice(&device));
  return device;
}

int multiprocessors_of(int gpu) {
  int count = 0;
  IMBREX_CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, gpu));
  return count;
}

void select_gpu(int gpu) { IMBREX_CUDA_TRY(cudaSetDevice(gpu)); }

void use_during_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  IMBREX_CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
}

bool is_captured(CUstream_st* stream, int gpu) {
  select_gpu(gpu);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

bool on_gpu(const void* p, int gpu) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (attributes.type == cudaMemoryTypeManaged) return true;
  if (attributes.type != cudaMemoryTypeDevice) return false;
  IMBREX_EXPECTS(attributes.device == gpu,
                 "operand at {}: it lies in the memory of GPU {}, and the rank works on GPU {}", p, attributes.device,
                 gpu);
  return true;
}

}  // namespace imbrex::runtime
