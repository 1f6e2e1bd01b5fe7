#include "execute/cuda/fused/rank_protocol.hpp"

#include <cstring>
#include <vector>

#include "base/narrow.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/fault_pool.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "runtime/group.hpp"

namespace imbrex::cuda {

Protocol protocol_of(const World& world, const HeapHandle& heap, const execute::HeapLayout& layout, std::size_t offset,
                     std::size_t state_offset, device::Fault* fault, const TestOptions& testing, int signal_copies) {
  Protocol p{};
  static_cast<device::Group&>(p) = runtime::group_of(world, heap, state_offset, runtime::FaultPool::on_device(fault),
                                                     {testing.delays, testing.max_delay});
  p.counters = heap.at(world.rank(), offset + layout.counter(0, 0));
  p.set_stride = layout.counter(0, 1) - layout.counter(0, 0);
  p.counter_stride = execute::HeapLayout::counter_stride;
  p.copies = base::narrow<std::uint32_t>(signal_copies, "sets of counters");
  return p;
}

void start_words(const Protocol& protocol, const execute::HeapLayout& layout, std::uint64_t epoch) {
  const auto rank = static_cast<int>(protocol.rank);
  if (epoch > 0) {
    const std::size_t begin = layout.counter(0, 0);
    std::vector<std::byte> sets(layout.bytes() - begin);
    for (std::uint64_t next = epoch; next < epoch + protocol.copies; ++next)
      for (int signal = 0; signal < layout.signals(rank); ++signal) {
        const std::uint32_t value = layout.base(rank, signal, next);
        std::memcpy(sets.data() + layout.counter(signal, next) - begin, &value, sizeof value);
      }
    cuda::upload(protocol.counters, sets.data(), sets.size());
  }
  struct {
    device::State state{};
    CopyState copies{};
  } words;
  words.state.epoch = epoch;
  words.state.entered = static_cast<std::uint32_t>(epoch & 0xffffffff);
  for (const std::uint64_t next : {epoch, epoch + 1})
    words.copies.turns[next % 2] = static_cast<std::uint32_t>(next / protocol.copies) + 1;
  static_assert(sizeof words <= state_bytes);
  cuda::upload(protocol.own, &words, sizeof words);
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

}  // namespace imbrex::cuda
