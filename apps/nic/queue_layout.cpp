#include "apps/nic/queue_layout.hpp"

#include "apps/common/check.hpp"

namespace imbrex::shmem::mlx5 {

QueueLayout::QueueLayout(const Heap& heap, const QueueOptions& options)
    : options_(options), pes_(static_cast<std::uint32_t>(heap.pes())) {
  IMBREX_EXPECTS(options.contexts >= 1 && options.contexts <= 1024, "contexts = {}: there are 1 to 1024",
                 options.contexts);
  IMBREX_EXPECTS(options.slots >= 2 && options.slots <= most_slots && (options.slots & (options.slots - 1)) == 0,
                 "slots = {}: a ring has a power of two of them, from 2 to {}", options.slots, most_slots);
  IMBREX_EXPECTS(options.largest >= 8 && options.largest <= 1u << 30, "largest = {}: a request moves 8 bytes to 1 GiB",
                 options.largest);
  IMBREX_EXPECTS(options.stage_bytes >= 64 && options.stage_bytes <= 1u << 20 && options.stage_bytes % 8 == 0 &&
                     options.stage_bytes <= options.largest,
                 "stage_bytes = {}: it is a multiple of 8 from 64 to 1 MiB, and {} at most, which a request moves",
                 options.stage_bytes, options.largest);
  const Handle& handle = heap.handle();
  begin_ = reinterpret_cast<std::byte*>(handle.group.own);
  bytes_ = static_cast<std::uint64_t>(handle.own - begin_) + handle.bytes;
}

std::size_t QueueLayout::context_words() const {
  return options_.stage_bytes / 8 + std::size_t{options_.slots} * each();
}

const std::uint64_t* QueueLayout::results(std::uint32_t queue, const std::uint64_t* scratch) const {
  return scratch + queue / each() * context_words() + options_.stage_bytes / 8 +
         std::size_t{queue % each()} * options_.slots;
}

Shared QueueLayout::context(std::uint32_t context, Queue* queues, std::uint64_t* scratch) const {
  return {0, 0, queues + std::size_t{context} * each(),
          reinterpret_cast<std::byte*>(scratch + context * context_words())};
}

Queue QueueLayout::queue(std::uint32_t queue, const QueueParts& parts, const std::uint64_t* scratch) const {
  return {.ring = parts.ring,
          .record = parts.record,
          .doorbell = parts.doorbell,
          .completion = parts.completion,
          .results = results(queue, scratch),
          .queue_word = be32(parts.number << 8),
          .mask = options_.slots - 1,
          .posted = 0,
          .completed = 0};
}

void QueueLayout::prepare_ring(std::span<Request> slots, std::uint32_t queue, std::uint32_t number,
                               const RegionKeys& keys, const std::uint64_t* scratch) const {
  const Kind kind = kind_of(queue);
  // A write completes by its signal, where it has one.
  const bool paired = kind == Kind::write_and_set || kind == Kind::write_and_add;
  const auto result =
      keys.base + static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(results(queue, scratch)) - begin_);
  for (std::uint32_t slot = 0; slot < options_.slots; ++slot)
    prepare(slots[slot], verb_of(kind, slot), {number, keys.remote[pe_of(queue)], keys.local, !paired || slot % 2 == 1},
            result + 8 * slot);
}

Endpoint QueueLayout::endpoint(Shared* contexts, const RegionKeys& keys) const {
  return {contexts, options_.contexts, options_.largest, options_.stage_bytes, keys.base};
}

}  // namespace imbrex::shmem::mlx5
