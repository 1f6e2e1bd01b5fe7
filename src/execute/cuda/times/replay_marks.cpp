#include "execute/cuda/times/replay_marks.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "execute/cuda/times/mark.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

ReplayMarks::ReplayMarks() {
  void* words = nullptr;
  IMBREX_CUDA_TRY(cudaHostAlloc(&words, sizeof(Words), cudaHostAllocMapped | cudaHostAllocPortable));
  words_.reset(new (words) Words{});
  void* on_device = nullptr;
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&on_device, words, 0));
  on_device_ = static_cast<Words*>(on_device);
  IMBREX_CUDA_TRY(load_mark());
}

void ReplayMarks::begin(cudaStream_t stream) { add(stream, false); }

void ReplayMarks::end(cudaStream_t stream) { add(stream, true); }

// An epoch's end follows its begin, so that no more have ended than have begun.
void ReplayMarks::add(cudaStream_t stream, bool end) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges =
      nullptr;  // else it would refuse edges that are not plain, and a plain one waits longer
  std::size_t count = 0;
  IMBREX_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, &capture, &graph, &before, &edges, &count));
  auto of_capture = std::find_if(captures_.begin(), captures_.end(),
                                 [&](const OfCapture& known) { return known.capture == capture; });
  if (of_capture == captures_.end()) {
    constexpr std::size_t most_open = 64;
    if (captures_.size() == most_open) captures_.pop_front();
    of_capture = captures_.insert(captures_.end(), {capture});
  }
  std::vector<cudaGraphNode_t> follows(before, before + count);
  for (cudaGraphNode_t mark : {of_capture->begun, of_capture->ended})
    if (mark != nullptr && (end || mark == of_capture->begun)) follows.push_back(mark);
  cudaGraphNode_t& last = end ? of_capture->ended : of_capture->begun;
  IMBREX_CUDA_TRY(add_mark(end ? &on_device_->ended : &on_device_->begun, graph, follows, &last));
}

// What has ended is read first: an epoch may end between the two.
ReplayMarks::Seen ReplayMarks::look() {
  const std::uint64_t ended = words_->ended, begun = words_->begun;
  return {begun - std::exchange(seen_, begun), begun != ended};
}

}  // namespace imbrex::cuda
