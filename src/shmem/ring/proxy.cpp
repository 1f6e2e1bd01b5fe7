#include "shmem/ring/proxy.hpp"

#include <array>
#include <chrono>

#include "runtime/cuda/device_memory.hpp"
#include "runtime/failure.hpp"
#include "runtime/quiet_thread.hpp"

namespace imbrex::shmem::ring {
namespace {

constexpr int batch = 32;  // descriptors of a context before the others have their turn

// Words of a slot that the GPU or another thread stores.
words::Pair look(const words::Pair* slot) {
  return {words::load_acquire(&slot->first), words::load_acquire(&slot->second)};
}
bool is_there(words::Pair slot, std::uint64_t parity) {
  return (slot.first & parity_bit) == parity && (slot.second & parity_bit) == parity;
}

bool has_extension(Template::Shape shape) {
  return shape == Template::Shape::move_signal || shape == Template::Shape::pair || shape == Template::Shape::compared;
}

}  // namespace

Proxy::Proxy(Heap& heap, const RingTrial& options, std::unique_ptr<Wire> wire, std::vector<Port> ports,
             const std::vector<Template>& table)
    : heap_(heap),
      options_(options),
      wire_(std::move(wire)),
      table_(table),
      ordered_(wire_->keeps_order()),
      part_bytes_(
          static_cast<std::uint64_t>(heap.handle().own - reinterpret_cast<std::byte*>(heap.handle().group.own)) +
          heap.handle().bytes),
      part_(reinterpret_cast<std::byte*>(heap.handle().group.own)),
      random_(options.seed * 64 + heap.handle().pe()) {
  for (const Port& port : ports) {
    lanes_.push_back({});
    lanes_.back().port = port;
    lanes_.back().taken = lanes_.back().complete = options.first;
    lanes_.back().under_way.resize(static_cast<std::size_t>(heap.pes()));
  }
  thread_ = runtime::quiet_thread([this] { run(); });
}

Proxy::~Proxy() {
  ending_.store(true);
  thread_.join();
}

bool Proxy::ended() const {
  const device::Group& group = heap_.handle().group;
  const device::Fault& fault = *group.fault;
  return failed_ || device::load_relaxed(&fault.abort) != 0 || device::load_relaxed(&fault.state) != 0 ||
         device::load_relaxed(&fault.ended_early) != 0 ||
         (heap_.device() == Device::cpu && device::load_relaxed(&group.own->abort) != 0);
}

void Proxy::run() {
  // Cores are few: a thread that waits for this one needs one, and so do others while it has nothing to do.
  const std::uint32_t patience = heap_.device() == Device::cuda ? 50000 : 200;
  std::uint32_t idle = 0;
  try {
    if (heap_.device() == Device::cuda) {
      runtime::select_gpu(heap_.gpu());
      runtime::use_during_captures();
    }
    while (!ending_.load()) {
      bool moved = false;
      if (!ended()) {
        const std::size_t first = options_.max_pause > 0 ? random_() % lanes_.size() : 0;
        for (std::size_t i = 0; i < lanes_.size(); ++i)
          moved |= serve(static_cast<std::uint32_t>((first + i) % lanes_.size()));
        moved |= flying_ != 0;
        collect();
      }
      idle = moved ? 0 : idle + 1;
      if (idle < patience)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const std::exception& error) {
    failed_ = true;
    try {
      runtime::fail(heap_.world(),
                    fmt::format("PE {}: the thread that serves its rings: {}", heap_.pe(), error.what()));
    } catch (const Error&) {
      // The world's failure is recorded: its calls throw it.
    }
    device::write_down(heap_.handle().group.fault->abort, 1);
  }
}

// Whether the lane had anything to do.
bool Proxy::serve(std::uint32_t number) {
  Lane& lane = lanes_[number];
  bool moved = false;
  for (int i = 0; i < batch && !failed_; ++i) {
    if (!lane.has_work && !take(number)) break;
    if (!begin(number)) break;
    moved = true;
    pause();
  }
  return moved;
}

void Proxy::pause() {
  if (options_.max_pause > 0 && chance(32))
    std::this_thread::sleep_for(
        std::chrono::duration<double>(options_.max_pause * static_cast<double>(random_() % 1024) / 1024));
}

// The descriptor at the ring's head, once all of its slots are there.
bool Proxy::take(std::uint32_t number) {
  Lane& lane = lanes_[number];
  const std::uint32_t log_slots = lane.port.log_slots, mask = (1u << log_slots) - 1;
  const words::Pair slot = look(lane.port.ring + (lane.taken & mask));
  if (!is_there(slot, parity_of(lane.taken, log_slots))) return false;
  if (descriptors_.load() >= options_.stop_at || ended()) return false;
  const Descriptor descriptor = descriptor_of(slot);
  const bool known = descriptor.number < table_.size();
  const Template& entry = table_[known ? descriptor.number : 0];
  const auto shape = std::atomic_ref(const_cast<Template&>(entry).shape).load(std::memory_order_acquire);
  if (!known || shape == Template::Shape::none) return refuse(number, Refusal::unknown_template, descriptor);
  Extension extension{};
  std::uint32_t slots = 1;
  if (has_extension(shape)) {
    const words::Pair more = look(lane.port.ring + ((lane.taken + 1) & mask));
    if (!is_there(more, parity_of(lane.taken + 1, log_slots))) return false;
    extension = extension_of(more);
    slots = 2;
  }
  if (!decode(number, entry, descriptor, extension)) return false;

  ++descriptors_;
  Work& work = lane.work;
  if (((lane.taken + slots) & mask) < (lane.taken & mask)) ++laps_;
  lane.taken += slots;
  tell(lane);
  work.end = lane.taken;
  if (free_.empty()) {
    free_.push_back(flights_.size());
    flights_.emplace_back();
  }
  lane.flight = free_.back();
  free_.pop_back();
  flights_[lane.flight] = {number, descriptor.pe, work.end, work.count};
  for (int i = 0; i < work.count; ++i) work.transfer[i].token = lane.flight;
  lane.flights.push_back(lane.flight);
  ++flying_;
  return lane.has_work = true;
}

bool Proxy::decode(std::uint32_t number, const Template& entry, const Descriptor& descriptor,
                   const Extension& extension) {
  Lane& lane = lanes_[number];
  Work& work = lane.work = {};
  using Shape = Template::Shape;
  if (entry.shape == Shape::fence_all) {
    work.fenced = true, work.fence = all_pes;
    return true;
  }
  if (descriptor.pe >= static_cast<std::uint32_t>(heap_.pes())) return refuse(number, Refusal::unknown_pe, descriptor);
  if (entry.shape == Shape::fence) {
    work.fenced = true, work.fence = descriptor.pe;
    return true;
  }
  const auto holds = [&](std::uint64_t offset, std::uint64_t bytes) {
    return offset <= part_bytes_ && bytes <= part_bytes_ - offset;
  };
  Refusal wrong{};
  const auto append = [&](const WireTransfer& transfer, bool behind) {
    if (!holds(transfer.there, transfer.bytes)) wrong = Refusal::outside_there;
    if (transfer.verb != Verb::put && transfer.verb != Verb::get && transfer.there % transfer.bytes != 0)
      wrong = Refusal::odd_place;
    work.behind[work.count] = behind;
    work.transfer[work.count++] = transfer;
    work.transfer[work.count - 1].pe = descriptor.pe;
  };
  const auto move = [&](std::uint64_t there, std::uint64_t here, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (!holds(here, bytes)) wrong = Refusal::outside_here;
    append({.verb = entry.verb, .there = there, .here = part_ + here, .bytes = bytes}, false);
  };
  const auto word = [&](std::uint64_t there, std::uint64_t operand, bool add, bool behind) {
    append({.verb = add ? Verb::fetch_add : Verb::put_word, .there = there, .bytes = 8, .operand = operand}, behind);
  };
  switch (entry.shape) {
    case Shape::move: move(descriptor.there, descriptor.here, descriptor.bytes); break;
    case Shape::move_signal:
      move(descriptor.there, descriptor.here, descriptor.bytes);
      word(extension.there, extension.value, extension.add, true);
      break;
    case Shape::pair:
      word(descriptor.there, descriptor.operand, false, false);
      word(descriptor.there + 8, extension.value, false, true);
      if (descriptor.there % 16 != 0) wrong = Refusal::odd_place;
      break;
    case Shape::word:
    case Shape::compared:
      append({.verb = entry.verb,
              .type = entry.type,
              .there = descriptor.there,
              .here = entry.fetches ? part_ + lane.port.stage : nullptr,
              .bytes = entry.word_bytes,
              .operand = descriptor.operand,
              .compare = extension.value},
             false);
      break;
    case Shape::registered:
      move(entry.there, entry.here, entry.bytes);
      word(entry.signal, descriptor.operand, entry.operation == SignalOperation::add, true);
      break;
    default: break;
  }
  return wrong == Refusal{} || refuse(number, wrong, descriptor);
}

// What the descriptor comes to is begun, or as much of it as may be.
bool Proxy::begin(std::uint32_t number) {
  Lane& lane = lanes_[number];
  Work& work = lane.work;
  if (!ordered_ && work.fenced && !may_begin(lane, work.fence)) return false;
  for (; work.begun < work.count; ++work.begun) {
    const WireTransfer& transfer = work.transfer[work.begun];
    if (!ordered_ && work.behind[work.begun] && !may_begin(lane, transfer.pe)) return false;
    if (!wire_->begin(transfer)) return false;
    ++lane.under_way[transfer.pe];
  }
  lane.has_work = false;
  if (work.count == 0) complete(lane);
  return true;
}

bool Proxy::may_begin(const Lane& lane, std::uint32_t pe) const {
  if (pe < lane.under_way.size()) return lane.under_way[pe] == 0;
  for (const std::uint32_t transfers : lane.under_way)
    if (transfers != 0) return false;
  return true;
}

void Proxy::collect() {
  std::array<std::uint64_t, 64> tokens;
  const std::size_t count = wire_->poll(tokens);
  for (std::size_t i = 0; i < count; ++i) {
    Flight& flight = flights_[tokens[i]];
    Lane& lane = lanes_[flight.lane];
    --lane.under_way[flight.pe];
    if (--flight.left == 0) complete(lane);
  }
}

void Proxy::tell(const Lane& lane) {
  words::store(&lane.port.progress->word, progress_word(lane.taken, lane.complete));
}

// Tells of all that is complete up to the first that is not.
void Proxy::complete(Lane& lane) {
  bool any = false;
  while (!lane.flights.empty() && flights_[lane.flights.front()].left == 0) {
    lane.complete = flights_[lane.flights.front()].end;
    free_.push_back(lane.flights.front());
    lane.flights.pop_front();
    --flying_;
    any = true;
  }
  if (any) tell(lane);
}

// Ends all waits of all PEs; nothing is served any more.
bool Proxy::refuse(std::uint32_t number, Refusal why, const Descriptor& descriptor) {
  failed_ = true;
  const auto fill = [&](device::Fault& fault) {
    describe(fault, FaultKind::descriptor, number, descriptor.pe, descriptor.there, static_cast<std::uint32_t>(why),
             lanes_[number].taken);
  };
  const Handle& handle = heap_.handle();
  if (heap_.device() == Device::cpu) {
    give_up(handle, fill);
    return false;
  }
  // NOTE: the lock of the fault lies in the GPU's memory. A kernel's own fault of the same moment may mix with this.
  device::Fault& fault = *handle.group.fault;
  if (fault.state == device::Fault::clear) {
    fill(fault);
    device::write_down(fault.state, device::Fault::timed_out);
  }
  device::write_down(fault.abort, 1);
  return false;
}

}  // namespace imbrex::shmem::ring
