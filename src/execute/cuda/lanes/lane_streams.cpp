#include "execute/cuda/lanes/lane_streams.hpp"

#include <algorithm>
#include <utility>

#include "runtime/cuda/asks_during_captures.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

bool in_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (stream != nullptr) IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

LaneStreams::~LaneStreams() {
  captured_.push_back({0, std::move(direct_)});
  for (const OfCapture& set : captured_)
    for (cudaStream_t stream : set.lanes)
      if (stream != nullptr) cudaStreamDestroy(stream);
}

const LaneStreams::Lanes& LaneStreams::direct(std::size_t count) { return grown(direct_, count); }

const LaneStreams::Lanes& LaneStreams::captured(cudaStream_t stream, std::size_t count) {
  const AsksDuringCaptures asks;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  IMBREX_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, &capture));
  const auto same = [&](const OfCapture& set) { return set.capture == capture; };
  const auto idle = [](const OfCapture& set) { return std::none_of(set.lanes.begin(), set.lanes.end(), in_capture); };
  auto set = std::find_if(captured_.begin(), captured_.end(), same);
  if (set == captured_.end()) set = std::find_if(captured_.begin(), captured_.end(), idle);
  if (set == captured_.end()) set = captured_.insert(set, {0, Lanes(first_is_callers_ ? 1 : 0)});
  set->capture = capture;
  return grown(set->lanes, count);
}

bool LaneStreams::busy() const {
  return std::any_of(direct_.begin(), direct_.end(),
                     [](cudaStream_t s) { return cudaStreamQuery(s) == cudaErrorNotReady; });
}

void LaneStreams::leak() noexcept {
  direct_.clear();
  captured_.clear();
}

const LaneStreams::Lanes& LaneStreams::grown(Lanes& lanes, std::size_t count) const {
  int least = 0, greatest = 0;
  if (lanes.size() < count) IMBREX_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  while (lanes.size() < count) {
    // A collective must not wait until the blocks of a product have all started.
    const bool products = first_is_callers_ && lanes.empty();
    cudaStream_t stream = nullptr;
    IMBREX_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, products ? least : greatest));
    lanes.push_back(stream);
  }
  return lanes;
}

}  // namespace imbrex::cuda
