#include "apps/nic/software_nic.hpp"

#include <chrono>
#include <cstring>

#include "apps/common/check.hpp"
#include "apps/nic/syndromes.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

template <typename Word>
bool copy_word(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const auto both = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (bytes != sizeof(Word) || both % sizeof(Word) != 0) return false;
  words::store(reinterpret_cast<Word*>(to), words::load(reinterpret_cast<const Word*>(from)));
  return true;
}

// Words of 1 to 8 bytes are written at once, as peers may look at them; else byte by byte.
void copy_between(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (copy_word<std::uint64_t>(to, from, bytes) || copy_word<std::uint32_t>(to, from, bytes) ||
      copy_word<std::uint16_t>(to, from, bytes) || copy_word<std::uint8_t>(to, from, bytes))
    return;
  std::memcpy(to, from, bytes);
}

std::uint64_t number_of(const std::uint32_t* words) { return std::uint64_t{be32(words[0])} << 32 | be32(words[1]); }

}  // namespace

SoftwareNic::SoftwareNic(const Queues& queues, const NicOptions& options)
    : SoftwareNic(queues.ports(), queues.here(), queues.there(), options) {}

SoftwareNic::SoftwareNic(std::vector<Port> ports, MemoryKeys here, std::vector<MemoryKeys> there,
                         const NicOptions& options)
    : ports_(std::move(ports)),
      here_(std::move(here)),
      there_(std::move(there)),
      options_(options),
      random_(options.seed) {
  IMBREX_EXPECTS(options.max_delay >= 0 && options.max_delay <= 1, "max_delay = {} s: it must be from 0 to 1",
                 options.max_delay);
  for (const Port& port : ports_) lanes_.push_back({&port});
  thread_ = std::thread([this] { run(); });
}

SoftwareNic::~SoftwareNic() {
  ending_.store(true);
  thread_.join();
}

NicCounts SoftwareNic::counts() const {
  return {live_.requests.load(), live_.refused.load(), live_.flushed.load(), live_.doubled.load(), live_.laps.load()};
}

void SoftwareNic::run() {
  for (std::uint32_t idle = 0;;) {
    const bool last = ending_.load();  // before the look: what was told until then is found
    bool moved = false;
    const std::size_t first = options_.any_order ? random_() % lanes_.size() : 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (live_.requests.load() >= options_.stop_at) return;
      moved |= serve(lanes_[(first + i) % lanes_.size()]);
    }
    if (last && !moved) return;
    idle = moved ? 0 : idle + 1;
    // Cores are few: a thread that waits for this one needs one, and so do others while it has nothing to do.
    if (idle < 200)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Whether the lane had anything to do.
bool SoftwareNic::serve(Lane& lane) {
  bool moved = listen(lane);
  if (lane.held && (lane.told == lane.consumed || chance(2))) complete(lane), moved = true;
  std::uint32_t count = lane.told - lane.consumed;
  if (count == 0) return moved;
  if (options_.any_order) {
    if (chance(4)) return true;
    count = static_cast<std::uint32_t>(1 + random_() % count);
  }
  for (; count != 0; --count) {
    if (live_.requests.load() >= options_.stop_at) break;
    step(lane);
  }
  if (options_.max_delay > 0 && chance(32))
    std::this_thread::sleep_for(
        std::chrono::duration<double>(options_.max_delay * static_cast<double>(random_() % 1024) / 1024));
  if (lane.held && (options_.max_delay == 0 || chance(2))) complete(lane);
  return true;
}

// Looks at the doorbell, and where it rang, at the record.
bool SoftwareNic::listen(Lane& lane) {
  const Port& port = *lane.port;
  const std::uint64_t bell = words::load_acquire(port.queue->doorbell);
  if (bell == lane.bell) {
    if (bell == 0 || !options_.double_doorbells || !chance(64)) return false;
    ++live_.doubled;
  }
  lane.bell = bell;
  const std::uint32_t record = be32(words::load_acquire(port.queue->record));
  const std::uint32_t head[2] = {be32(static_cast<std::uint32_t>(bell)), be32(static_cast<std::uint32_t>(bell >> 32))};
  const std::uint32_t open = (record - lane.consumed) & 0xffffu;
  // The record comes before the doorbell, so it says as much or more.
  const std::uint32_t behind = (record - 1 - (head[0] >> 8)) & 0xffffu;
  if (record > 0xffffu || open > port.slots || behind >= most_slots || head[1] >> 8 != port.number) {
    lane.held = lane.failed = true;
    lane.held_index = lane.consumed & 0xffffu, lane.held_syndrome = local_operation_error;
    ++live_.refused;
    return true;
  }
  lane.told = lane.consumed + open;
  return true;
}

void SoftwareNic::step(Lane& lane) {
  const Port& port = *lane.port;
  const Request& request = port.queue->ring[lane.consumed & (port.slots - 1)];
  const std::uint32_t index = lane.consumed++ & 0xffffu;
  std::uint32_t syndrome = 0;
  if (lane.failed) {
    syndrome = flushed_error;
    ++live_.flushed;
  } else {
    const std::uint64_t number = live_.requests++;
    const std::uint32_t opcode = be32(request.segment[0].word[0]) & 0xff;
    // Several words, because others may be lost unseen: a read may bring what was there before.
    const bool has_words = opcode == opcode_of(Verb::write) && (be32(request.segment[2].word[0]) & ~inline_bit) > 8;
    const bool lost = has_words && number >= options_.lose_at;
    if (lost) options_.lose_at = none;
    if (opcode == opcode_of(Verb::fetch_add) && number >= options_.repeat_at) {
      execute(port, request, index);
      options_.repeat_at = none;
    }
    if (number == options_.refuse_at)
      syndrome = options_.syndrome;
    else if (!lost)
      syndrome = execute(port, request, index);
    if (syndrome != 0) lane.failed = true, ++live_.refused;
  }
  if (lane.consumed % port.slots == 0) ++live_.laps;
  const bool completes = (request.segment[0].word[2] >> 24 & completes_bit) != 0;
  if (syndrome == 0 && !completes) return;
  lane.held = true, lane.held_index = index, lane.held_syndrome = syndrome;
}

// Over the one that was there.
void SoftwareNic::complete(Lane& lane) {
  std::uint32_t* word = lane.port->completion->word;
  words::store(&word[13], lane.held_syndrome << 24);
  const std::uint32_t opcode = lane.held_syndrome == 0 ? sent_well : sent_badly;
  const std::uint32_t owner = lane.consumed / lane.port->slots & 1;
  words::store(&word[15], be32(lane.held_index << 16) | owner << 24 | opcode << 28);
  lane.held = false;
}

// 0, or the syndrome of the rule that the request breaks.
std::uint32_t SoftwareNic::execute(const Port& port, const Request& request, std::uint32_t index) {
  const auto& [control, remote, third, fourth] = request.segment;
  const std::uint32_t head = be32(control.word[0]), opcode = head & 0xff;
  const bool atomic = opcode == opcode_of(Verb::fetch_add) || opcode == opcode_of(Verb::compare_swap);
  const bool reads = opcode == opcode_of(Verb::read), writes = opcode == opcode_of(Verb::write);
  if (!atomic && !reads && !writes) return local_operation_error;
  const std::uint32_t segments = segments_of(atomic ? Verb::fetch_add : Verb::write);
  if (head >> 8 != index || be32(control.word[1]) != (port.number << 8 | segments)) return local_operation_error;

  const Segment& data = atomic ? fourth : third;
  const bool is_inline = writes && (be32(data.word[0]) & inline_bit) != 0;
  const std::uint32_t bytes = be32(data.word[0]) & ~inline_bit;
  if (bytes > (is_inline ? 8u : 1u << 30) || (atomic && bytes != 8)) return local_length_error;
  std::uint64_t payload = 0;
  std::byte* here = reinterpret_cast<std::byte*>(&payload);
  if (is_inline)
    std::memcpy(&payload, &data.word[1], sizeof payload);
  else
    here = here_.find(be32(data.word[1]), number_of(&data.word[2]), bytes);
  if (here == nullptr) return local_protection_error;
  const std::uint64_t address = number_of(remote.word);
  std::byte* there = there_[port.pe].find(be32(remote.word[2]), address, bytes);
  if (there == nullptr) return remote_access_error;

  if (!atomic) {
    copy_between(reads ? here : there, reads ? there : here, bytes);
    return 0;
  }
  if (address % 8 != 0) return remote_request_error;
  auto* word = reinterpret_cast<std::uint64_t*>(there);
  const std::uint64_t operand = number_of(third.word), compared = number_of(&third.word[2]);
  const std::uint64_t before = opcode == opcode_of(Verb::fetch_add) ? words::fetch_add(word, operand)
                                                                    : words::compare_swap(word, compared, operand);
  words::store(reinterpret_cast<std::uint64_t*>(here), before);
  return 0;
}

}  // namespace imbrex::shmem::mlx5
