#include "apps/nic/queues.hpp"

#include <random>

#include "apps/common/check.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

constexpr std::uint32_t first_number = 0x1000;  // of a PE's queues

const Heap& in_memory(const Heap& heap) {
  IMBREX_EXPECTS(heap.device() == Device::cpu, "queues for a NIC of software need a heap in memory of hosts");
  return heap;
}

struct KeyPair {
  std::uint32_t local, remote;
};
KeyPair keys_of(std::uint64_t seed, std::uint32_t pe) {
  std::mt19937_64 random(seed * 64 + pe);
  const auto local = static_cast<std::uint32_t>(random());
  return {local, local ^ 0x5a5a0000u};
}

}  // namespace

// What lies in memory of its own, each queue's apart from the others'.
struct Queues::Lines {
  struct alignas(64) Bell {
    std::uint32_t record = 0;
    alignas(64) std::uint64_t doorbell = 0;
  };
  std::vector<Shared> contexts;
  std::vector<Queue> queues;
  std::vector<Request> slots;
  std::vector<Bell> bells;
  std::vector<Completion> completions;
};

Queues::~Queues() { heap_.use_transport(nullptr); }

Queues::Queues(Heap& heap, const QueueOptions& options)
    : heap_(heap),
      layout_(in_memory(heap), options),
      scratch_(heap.array<std::uint64_t>(layout_.scratch_words())),
      lines_(std::make_unique<Lines>()),
      there_(layout_.pes()) {
  const Handle& handle = heap.handle();
  const std::uint32_t count = layout_.count();
  Lines& lines = *lines_;
  lines.queues.resize(count);
  lines.slots.resize(std::size_t{count} * options.slots);
  lines.bells.resize(count);
  lines.completions.resize(count);

  RegionKeys keys{keys_of(options.seed, handle.pe()).local, {}};
  here_.add(keys.local, layout_.begin(), layout_.bytes());
  for (std::uint32_t pe = 0; pe < layout_.pes(); ++pe) {
    keys.remote.push_back(keys_of(options.seed, pe).remote);
    there_[pe].add(keys.remote[pe], device::at_rank(handle.group, layout_.begin(), pe), layout_.bytes());
  }

  std::uint64_t* const scratch = scratch_.data();
  for (std::uint32_t c = 0; c < options.contexts; ++c)
    lines.contexts.push_back(layout_.context(c, lines.queues.data(), scratch));
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t number = first_number + i;
    Request* ring = &lines.slots[std::size_t{i} * options.slots];
    lines.completions[i].word[15] = nothing_yet;
    lines.queues[i] = layout_.queue(
        i, {ring, &lines.bells[i].record, &lines.bells[i].doorbell, &lines.completions[i], number}, scratch);
    layout_.prepare_ring({ring, options.slots}, i, number, keys, scratch);
    ports_.push_back({&lines.queues[i], &lines.completions[i], number, options.slots, layout_.pe_of(i)});
  }
  endpoint_ = layout_.endpoint(lines.contexts.data(), keys);
  heap.use_transport(&endpoint_);
}

}  // namespace imbrex::shmem::mlx5
