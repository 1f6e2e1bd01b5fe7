#include "shmem/ring/rings.hpp"

#include <bit>
#include <cstring>
#include <exception>

#include "base/check.hpp"
#include "shmem/ring/proxy.hpp"

namespace imbrex::shmem::ring {
namespace {

const RingTrial& validated(const Heap& heap, const RingTrial& options) {
  IMBREX_EXPECTS(options.contexts >= 1 && options.contexts <= 1u << 16, "contexts = {}: there are 1 to 65536",
                 options.contexts);
  IMBREX_EXPECTS(options.slots >= 4 && options.slots <= 1u << 16 && std::has_single_bit(options.slots),
                 "slots = {}: a ring has a power of two of them, from 4 to 65536", options.slots);
  IMBREX_EXPECTS(options.stage_bytes >= 64 && options.stage_bytes <= 1u << 20 && options.stage_bytes % 64 == 0,
                 "stage_bytes = {}: it is a multiple of 64 from 64 to 1 MiB", options.stage_bytes);
  IMBREX_EXPECTS(options.templates <= 65000, "templates = {}: there are up to 65000", options.templates);
  IMBREX_EXPECTS(options.first % options.slots == 0, "first = {}: it must be a multiple of the {} slots", options.first,
                 options.slots);
  IMBREX_EXPECTS(options.max_pause >= 0 && options.max_pause <= 1, "max_pause = {} s: it must be from 0 to 1",
                 options.max_pause);
  const Handle& handle = heap.handle();
  const auto states = static_cast<std::uint64_t>(handle.own - reinterpret_cast<std::byte*>(handle.group.own));
  IMBREX_EXPECTS(handle.bytes + states <= offsets_end, "a heap of {} bytes a PE: descriptors reach {}", handle.bytes,
                 offsets_end - states);
  return options;
}

// What lies in the heap, each context's apart from the others'.
std::size_t heap_bytes(const RingTrial& options) {
  return sizeof(Shared) + options.contexts * (sizeof(Shared) + options.stage_bytes);
}

std::vector<Template> standard_table(std::size_t own) {
  using Shape = Template::Shape;
  std::vector<Template> table(first_own + own);
  const auto at = [&](std::uint32_t number) -> Template& { return table.at(number); };
  at(number_of<Standard::fence>()).shape = Shape::fence;
  at(number_of<Standard::fence_all>()).shape = Shape::fence_all;
  at(number_of<Standard::put>()) = {.shape = Shape::move, .verb = Verb::put};
  at(number_of<Standard::put_signal>()) = {.shape = Shape::move_signal, .verb = Verb::put};
  at(number_of<Standard::get>()) = {.shape = Shape::move, .verb = Verb::get};
  at(number_of<Standard::put_pair>()).shape = Shape::pair;
  for (std::uint32_t log = 0; log < 4; ++log)
    at(number_of<Standard::put_word>() + log) = {
        .shape = Shape::word, .verb = Verb::put_word, .word_bytes = static_cast<std::uint8_t>(1u << log)};
  for (std::uint32_t code = 0; code < atomic_codes; ++code)
    for (std::uint32_t word = 0; word < word_codes; ++word) {
      const auto atomic = static_cast<AtomicCode>(code);
      const auto type = static_cast<WordCode>(word);
      const bool floating = type == WordCode::f32 || type == WordCode::f64;
      Template entry{.shape = Shape::word,
                     .type = floating ? WordType::floating_point : WordType::unsigned_integer,
                     .word_bytes = static_cast<std::uint8_t>(word % 2 == 0 ? 4 : 8),
                     .fetches = true};
      switch (atomic) {
        case AtomicCode::set: entry.verb = Verb::swap, entry.fetches = false; break;
        case AtomicCode::swap: entry.verb = Verb::swap; break;
        case AtomicCode::add: entry.verb = Verb::fetch_add, entry.fetches = false; break;
        case AtomicCode::fetch_add: entry.verb = Verb::fetch_add; break;
        case AtomicCode::fetch_and: entry.verb = Verb::fetch_and; break;
        case AtomicCode::fetch_or: entry.verb = Verb::fetch_or; break;
        case AtomicCode::fetch_xor: entry.verb = Verb::fetch_xor; break;
        case AtomicCode::compare_swap: entry.verb = Verb::compare_swap, entry.shape = Shape::compared; break;
      }
      if (atomic >= AtomicCode::fetch_and && floating) continue;  // no API has them
      at(number_of_atomic(atomic, type)) = entry;
    }
  return table;
}

}  // namespace

struct Rings::Parts {
  Parts(Heap& its, const RingTrial& options, std::unique_ptr<Wire> wire)
      : heap(its),
        exceptions(std::uncaught_exceptions()),
        table(standard_table(validated(its, options).templates)),
        scratch(its.array<std::uint64_t>(heap_bytes(options) / 8)) {
    const std::size_t ring_bytes = options.slots * sizeof(words::Pair);
    memory = memory_for(heap, options.contexts * (sizeof(Progress) + ring_bytes));
    const auto log_slots = static_cast<std::uint32_t>(std::countr_zero(options.slots));
    auto* const own = reinterpret_cast<std::byte*>(scratch.data());
    auto* const begin = reinterpret_cast<std::byte*>(heap.handle().group.own);
    auto* const shared = reinterpret_cast<Shared*>(own + sizeof(Shared));
    std::byte* stage = reinterpret_cast<std::byte*>(shared + options.contexts);
    auto* progress = reinterpret_cast<Progress*>(memory.get());
    auto* ring = reinterpret_cast<words::Pair*>(progress + options.contexts);
    std::vector<Shared> contexts;
    std::vector<Port> ports;
    for (std::uint32_t c = 0; c < options.contexts;
         ++c, ++progress, ring += options.slots, stage += options.stage_bytes) {
      *progress = {progress_word(options.first, options.first)};
      contexts.push_back(
          {ring, progress, stage, log_slots, options.first, options.first + options.slots, options.first, 0, 0});
      ports.push_back({ring, progress, static_cast<std::uint64_t>(stage - begin), log_slots});
    }
    if (wire == nullptr)
      wire = heap.world().hosts() > 1        ? fabric_wire(heap)
             : heap.device() == Device::cuda ? gpu_wire(heap)
                                             : mapped_wire(heap);
    std::uint64_t near = 0;
    for (int pe = 0; pe < heap.pes(); ++pe)
      if (heap.pointer(own, pe) != nullptr) near |= std::uint64_t{1} << pe;
    const Endpoint endpoint{shared, options.contexts, options.stage_bytes, wire->keeps_order() ? 1u : 0u,
                            (near & ~options.far) | std::uint64_t{1} << heap.pe()};
    heap.write(own, &endpoint, sizeof endpoint, heap.pe());
    heap.write(shared, contexts.data(), contexts.size() * sizeof(Shared), heap.pe());
    heap.use_transport(own);
    proxy.emplace(heap, options, std::move(wire), std::move(ports), table);
    heap.world().barrier();  // no kernel waits while another PE still sets up
  }

  Heap& heap;
  int exceptions;
  std::vector<Template> table;
  std::uint32_t known = first_own;
  Array<std::uint64_t> scratch;  // endpoint, contexts, stages
  std::shared_ptr<std::byte> memory;
  std::optional<Proxy> proxy;
};

Rings::Rings(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Rings::Rings(Heap& heap, const RingOptions& options)
    : Rings(std::make_unique<Parts>(heap,
                                    RingTrial{.contexts = options.contexts,
                                              .slots = options.slots,
                                              .stage_bytes = options.stage_bytes,
                                              .templates = options.templates},
                                    nullptr)) {}

TrialRings::TrialRings(Heap& heap, const RingTrial& trial, std::unique_ptr<Wire> wire)
    : Rings(std::make_unique<Parts>(heap, trial, std::move(wire))) {}

Rings::~Rings() {
  if (std::uncaught_exceptions() == parts_->exceptions) try {
      parts_->heap.world().barrier();  // peers' transfers may need this PE's thread
    } catch (const Error&) {
      // The world has failed, and its next call says so.
    }
  parts_->proxy.reset();
  parts_->heap.use_transport(nullptr);
}

std::uint32_t Rings::add(const RegisteredPut& put) {
  Parts& parts = *parts_;
  IMBREX_EXPECTS(parts.known < parts.table.size(), "a template beyond the {} that there may be",
                 parts.table.size() - first_own);
  const auto offset = [&](const void* address, std::uint64_t bytes, const char* what) {
    IMBREX_EXPECTS(parts.heap.holds(address, bytes), "{} of {} bytes at {}: the symmetric heap does not hold them",
                   what, bytes, address);
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) -
                                      reinterpret_cast<const std::byte*>(parts.heap.handle().group.own));
  };
  Template entry{.verb = Verb::put, .operation = put.operation, .bytes = put.bytes};
  if (put.bytes != 0) {
    entry.there = offset(put.there, put.bytes, "data there");
    entry.here = offset(put.here, put.bytes, "data here");
  }
  entry.signal = offset(put.signal, sizeof(Signal), "a signal");
  IMBREX_EXPECTS(entry.signal % sizeof(Signal) == 0, "a signal at {}: it must be aligned to 8 bytes",
                 static_cast<const void*>(put.signal));
  Template& place = parts.table[parts.known];
  place = entry;
  std::atomic_ref(place.shape).store(Template::Shape::registered, std::memory_order_release);
  return parts.known++;
}

RingCounts Rings::counts() const { return parts_->proxy->counts(); }

}  // namespace imbrex::shmem::ring
