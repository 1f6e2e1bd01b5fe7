#include "execute/cuda/times/replay_marks.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "execute/cuda/times/mark.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

namespace {

constexpr std::size_t page_bytes = 4096;

}  // namespace

MarkRoom::Place MarkRoom::take() {
  const std::lock_guard guard(lock_);
  if (free_.empty()) {
    constexpr std::size_t places = page_bytes / sizeof(EpochCounts);
    IMBREX_CUDA_TRY(load_mark());
    Page page;
    void* memory = nullptr;
    IMBREX_CUDA_TRY(cudaHostAlloc(&memory, page_bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    page.counts.reset(static_cast<EpochCounts*>(memory));
    void* on_device = nullptr;
    IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&on_device, memory, 0));
    page.on_device = static_cast<EpochCounts*>(on_device);
    free_.reserve((pages_.size() + 1) * places);
    for (std::size_t i = places; i-- > 0;) free_.push_back({page.counts.get() + i, page.on_device + i});
    pages_.push_back(std::move(page));
  }
  const Place place = free_.back();
  free_.pop_back();
  new (place.counts) EpochCounts{};
  return place;
}

void MarkRoom::give_back(Place place) noexcept {
  const std::lock_guard guard(lock_);
  free_.push_back(place);
}

ReplayMarks::ReplayMarks(std::shared_ptr<MarkRoom> room) : room_(std::move(room)), place_(room_->take()) {}

ReplayMarks::~ReplayMarks() {
  if (room_ != nullptr) room_->give_back(place_);
}

void ReplayMarks::leak() noexcept { static_cast<void>(new std::shared_ptr<MarkRoom>(std::exchange(room_, nullptr))); }

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
  IMBREX_CUDA_TRY(add_mark(end ? &place_.on_device->ended : &place_.on_device->begun, graph, follows, &last));
}

// What has ended is read first: an epoch may end between the two.
ReplayMarks::Seen ReplayMarks::look() {
  const std::uint64_t ended = place_.counts->ended, begun = place_.counts->begun;
  return {begun - std::exchange(seen_, begun), begun != ended};
}

}  // namespace imbrex::cuda
