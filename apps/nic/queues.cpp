#include "apps/nic/queues.hpp"

#include <random>

#include "apps/common/check.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

constexpr std::uint32_t first_number = 0x1000;  // of a PE's queues

// 8-byte words of scratch that a context takes.
std::size_t words_of(const Heap& heap, const QueueOptions& options) {
  apps::expect(heap.device() == Device::cpu, "queues for a NIC of software need a heap in memory of hosts");
  apps::expect(options.contexts >= 1 && options.contexts <= 1024, "contexts = {}: there are 1 to 1024",
               options.contexts);
  apps::expect(options.slots >= 2 && options.slots <= most_slots && (options.slots & (options.slots - 1)) == 0,
               "slots = {}: a ring has a power of two of them, from 2 to {}", options.slots, most_slots);
  apps::expect(options.largest >= 8 && options.largest <= 1u << 30, "largest = {}: a request moves 8 bytes to 1 GiB",
               options.largest);
  apps::expect(options.stage_bytes >= 64 && options.stage_bytes <= 1u << 20 && options.stage_bytes % 8 == 0 &&
                   options.stage_bytes <= options.largest,
               "stage_bytes = {}: it is a multiple of 8 from 64 to 1 MiB, and {} at most, which a request moves",
               options.stage_bytes, options.largest);
  return options.stage_bytes / 8 + std::size_t{options.slots} * static_cast<std::size_t>(heap.pes()) * kinds;
}

struct Keys {
  std::uint32_t local, remote;
};
Keys keys_of(std::uint64_t seed, std::uint32_t pe) {
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
      scratch_(heap.array<std::uint64_t>(words_of(heap, options) * options.contexts)),
      lines_(std::make_unique<Lines>()),
      there_(static_cast<std::size_t>(heap.pes())) {
  const Handle& handle = heap.handle();
  const auto pes = static_cast<std::uint32_t>(heap.pes());
  const std::uint32_t each = pes * kinds, count = options.contexts * each;
  Lines& lines = *lines_;
  lines.contexts.resize(options.contexts);
  lines.queues.resize(count);
  lines.slots.resize(std::size_t{count} * options.slots);
  lines.bells.resize(count);
  lines.completions.resize(count);

  const Keys own = keys_of(options.seed, handle.pe());
  // What is registered begins with what the heap's teams need.
  auto* const begin = reinterpret_cast<std::byte*>(handle.group.own);
  const auto bytes = static_cast<std::uint64_t>(handle.own - begin) + handle.bytes;
  here_.add(own.local, begin, bytes);
  for (std::uint32_t pe = 0; pe < pes; ++pe)
    there_[pe].add(keys_of(options.seed, pe).remote, device::at_rank(handle.group, begin, pe), bytes);

  std::uint64_t* scratch = scratch_.data();
  for (std::uint32_t c = 0; c < options.contexts; ++c) {
    lines.contexts[c] = {0, 0, &lines.queues[c * each], reinterpret_cast<std::byte*>(scratch)};
    scratch += options.stage_bytes / 8;
    for (std::uint32_t q = 0; q < each; ++q, scratch += options.slots) {
      const std::uint32_t i = c * each + q, pe = q / kinds;
      const auto kind = static_cast<Kind>(q % kinds);
      const std::uint32_t number = first_number + i;
      Queue& queue = lines.queues[i];
      queue.ring = &lines.slots[std::size_t{i} * options.slots];
      queue.record = &lines.bells[i].record;
      queue.doorbell = &lines.bells[i].doorbell;
      lines.completions[i].word[15] = nothing_yet;
      queue.completion = &lines.completions[i];
      queue.results = scratch;
      queue.queue_word = be32(number << 8);
      queue.mask = options.slots - 1;
      // A write completes by its signal, where it has one.
      const bool paired = kind == Kind::write_and_set || kind == Kind::write_and_add;
      for (std::uint32_t slot = 0; slot < options.slots; ++slot)
        prepare(queue.ring[slot], verb_of(kind, slot),
                {number, keys_of(options.seed, pe).remote, own.local, !paired || slot % 2 == 1},
                static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(scratch + slot) - begin));
      ports_.push_back({&queue, &lines.completions[i], number, options.slots, pe});
    }
  }
  endpoint_ = {lines.contexts.data(), options.contexts, options.largest, options.stage_bytes};
  heap.use_transport(&endpoint_);
}

}  // namespace imbrex::shmem::mlx5
