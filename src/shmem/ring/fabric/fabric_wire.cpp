// The wire between hosts. Puts and gets are libfabric's writes and reads of registered memory. Words and atomic
// operations are messages: the owner's wire does them, by the same instructions as its own PE's, and answers. So they
// are atomic with what the PE itself and its neighbours do, whatever the provider, and no word is seen in parts.
//
// Protocol. A request names the asker's flight; the answer names it too, and has what was there before. Each PE draws
// a random token, tells it to the world's PEs, and does nothing with a message that does not hold it.
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include <sys/random.h>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "runtime/host_world.hpp"
#include "shmem/ring/fabric/endpoint.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_flights = 256;      // that a PE has under way to others
constexpr std::size_t most_credits = 64;       // requests of one PE that another takes in
constexpr std::size_t most_piece = 1u << 30;   // bytes of one write or read
constexpr std::uint8_t answer = 0xff;          // instead of a verb
constexpr double word_of_world = 2;            // seconds that the world has to say why a peer is gone
constexpr std::uint32_t looks_at_clock = 256;  // polls between them

struct Message {
  std::uint64_t token = 0;  // the receiver's
  std::uint8_t verb = 0;
  std::uint8_t type = 0;
  std::uint16_t bytes = 0;
  std::uint32_t from = 0;    // PE
  std::uint32_t flight = 0;  // the asker's, and which use of it
  std::uint32_t use = 0;
  std::uint64_t there = 0;
  std::uint64_t operand = 0;  // in an answer: what was there before
  std::uint64_t compare = 0;
};
static_assert(sizeof(Message) == 48);

// What a PE tells the others, before anything else.
struct Card {
  std::uint64_t token = 0;
  std::uint64_t key = 0, base = 0;  // of its part of the heap
  std::uint64_t bytes = 0;
  std::uint32_t credits = 0;  // requests that it takes from each other PE at once
  std::uint32_t name_bytes = 0;
  char name[256] = {};
  char trouble[512] = {};  // ends with a zero byte; empty: it is ready
};

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (getrandom(&word, sizeof word, 0) != sizeof word)
    throw Error(ErrorCode::runtime_failure, "the system gives no random numbers");
  return word;
}

struct Slot : Work {
  enum class Role : std::uint8_t { flight, seat } role{};
};

// A transfer under way to another host.
struct Flight : Slot {
  enum class State : std::uint8_t { free, waiting, begun } state = State::free;
  bool verifies = false;  // a byte is read back, behind a write that may not be there yet
  bool sent = false, answered = false;
  std::uint32_t use = 0;
  std::uint64_t moved = 0, piece = 0;  // bytes
  Clock::time_point since;
  WireTransfer transfer;
};

// A place for what others send.
struct Seat : Slot {
  enum class State : std::uint8_t { to_receive, receiving, serving, to_answer, answering } state = State::to_receive;
  alignas(8) std::uint64_t result = 0;
  std::uint32_t from = 0;
};

bool is_message(Verb verb) { return verb != Verb::put && verb != Verb::get; }

std::string words_of(const WireTransfer& transfer) {
  switch (transfer.verb) {
    case Verb::put: return fmt::format("a put of {} bytes", transfer.bytes);
    case Verb::get: return fmt::format("a get of {} bytes", transfer.bytes);
    case Verb::put_word: return fmt::format("a word of {} bytes", transfer.bytes);
    default: return "an atomic operation";
  }
}

class FabricWire final : public Wire {
 public:
  FabricWire(Heap& heap, const FabricOptions& options)
      : world_(heap.world()),
        options_(options),
        provider_(options.provider.empty()
                      ? base::environment().text(base::Key::fabric_provider).value_or("tcp;ofi_rxm")
                      : options.provider),
        part_(reinterpret_cast<std::byte*>(heap.handle().group.own)),
        part_bytes_(static_cast<std::uint64_t>(heap.handle().own - part_) + heap.handle().bytes),
        limit_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(world_.options().wait_limit))),
        near_(mapped_wire(heap)),
        serving_(mapped_wire(heap)),
        cards_(static_cast<std::size_t>(world_.size())),
        under_way_(cards_.size()) {
    Card own;
    try {
      open(own);
    } catch (const Error& error) {
      std::strncpy(own.trouble, error.what(), sizeof own.trouble - 1);
    }
    world_.all_gather(&own, cards_.data(), sizeof own);
    std::vector<std::string> names;
    for (std::size_t pe = 0; pe < cards_.size(); ++pe) {
      Card& card = cards_[pe];
      card.trouble[sizeof card.trouble - 1] = 0;
      IMBREX_EXPECTS(card.trouble[0] == 0, "{}: {}", pe_name(static_cast<std::uint32_t>(pe)), card.trouble);
      names.emplace_back(card.name, std::min<std::size_t>(card.name_bytes, sizeof card.name));
    }
    endpoint_->know(names);
    for (std::size_t i = 0; i < seats_.size(); ++i) receive(i);
    world_.barrier();  // all of them receive
  }

  bool begin(const WireTransfer& transfer) override {
    if (is_near(transfer.pe)) return near_->begin(transfer);
    if (free_.empty()) return false;
    if (is_message(transfer.verb)) {
      if (under_way_[transfer.pe] >= cards_[transfer.pe].credits) return false;
      ++under_way_[transfer.pe];
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    Flight& flight = flights_[index];
    flight.verifies = flight.sent = flight.answered = false;
    ++flight.use;
    flight.moved = flight.piece = 0;
    flight.since = Clock::now();
    flight.transfer = transfer;
    if (is_message(transfer.verb))
      messages_[index] = {cards_[transfer.pe].token,
                          static_cast<std::uint8_t>(transfer.verb),
                          static_cast<std::uint8_t>(transfer.type),
                          static_cast<std::uint16_t>(transfer.bytes),
                          static_cast<std::uint32_t>(world_.rank()),
                          static_cast<std::uint32_t>(index),
                          flight.use,
                          transfer.there,
                          transfer.operand,
                          transfer.compare};
    go_on(index);
    return true;
  }

  std::size_t poll(std::span<std::uint64_t> tokens) override {
    std::array<Completion, 32> done;
    const std::size_t count = endpoint_->poll(done);
    for (std::size_t i = 0; i < count; ++i) take(done[i]);
    serve_on();
    for (std::size_t left = waiting_.size(); left > 0; --left) {
      const std::size_t index = waiting_.front();
      waiting_.pop_front();
      go_on(index);
    }
    for (std::size_t left = idle_seats_.size(); left > 0; --left) {
      const std::size_t index = idle_seats_.front();
      idle_seats_.pop_front();
      seats_[index].state == Seat::State::to_answer ? reply(index) : receive(index);
    }
    if (++polls_ % looks_at_clock == 0) expect_in_time();
    std::size_t told = near_->poll(tokens);
    for (; told < tokens.size() && !done_.empty(); ++told) {
      tokens[told] = done_.front();
      done_.pop_front();
    }
    return told;
  }

  // Writes may come behind messages that were begun later.
  bool keeps_order() const override { return false; }

 private:
  bool is_near(std::uint32_t pe) const {
    const int rank = static_cast<int>(pe);
    return options_.near_by_memory ? world_.host_of(rank) == world_.host_of(world_.rank()) : rank == world_.rank();
  }

  std::string pe_name(std::uint32_t pe) const {
    return fmt::format("PE {} on host {}", pe, world_.host_name(world_.host_of(static_cast<int>(pe))));
  }

  // A peer that has ended cuts its connections, and its world says why, a moment later.
  [[noreturn]] void lose(std::uint32_t pe, const std::string& what) const {
    const std::chrono::duration<double> most(std::min(word_of_world, world_.options().wait_limit / 2));
    for (const Clock::time_point begin = Clock::now(); Clock::now() - begin < most;
         std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      world_.throw_if_failed();
    throw Error(ErrorCode::runtime_failure,
                fmt::format("{} is not reached by libfabric's {}: {}", pe_name(pe), provider_, what));
  }

  void open(Card& own) {
    const std::size_t peers = cards_.size() - 1;
    endpoint_.emplace(provider_, runtime::own_address(world_));
    const std::size_t room = endpoint_->most_receives();
    // An answer needs a seat each; so does a request, and its seat is free again once the answer is sent.
    const std::size_t flights = std::min(most_flights, room / 2);
    const std::size_t credits = peers == 0 ? 0 : std::min(most_credits, (room - flights) / (2 * peers));
    IMBREX_EXPECTS(flights > 0 && (peers == 0 || credits > 0),
                   "libfabric's {} takes {} receives at once: {} PEs need more", provider_, room, cards_.size());
    flights_ = std::vector<Flight>(flights);
    seats_ = std::vector<Seat>(flights + 2 * peers * credits);
    messages_ = std::vector<Message>(flights_.size() + seats_.size());
    for (std::size_t i = flights_.size(); i-- > 0;) {
      flights_[i].role = Slot::Role::flight;
      free_.push_back(i);
    }
    for (Seat& seat : seats_) seat.role = Slot::Role::seat;
    part_region_ = endpoint_->register_memory(part_, part_bytes_, true);
    message_region_ = endpoint_->register_memory(messages_.data(), messages_.size() * sizeof(Message), false);
    echo_region_ = endpoint_->register_memory(&echo_, sizeof echo_, false);
    const std::string name = endpoint_->name();
    IMBREX_EXPECTS(name.size() <= sizeof own.name, "libfabric's {} has addresses of {} bytes: at most {}", provider_,
                   name.size(), sizeof own.name);
    own.token = random_word();
    own.key = part_region_.key, own.base = part_region_.base, own.bytes = part_bytes_;
    own.credits = static_cast<std::uint32_t>(credits);
    own.name_bytes = static_cast<std::uint32_t>(name.size());
    name.copy(own.name, name.size());
  }

  // ------------------------------------------------------------------------------------------- what is asked

  // The flight's next step, or it waits for room.
  void go_on(std::size_t index) {
    Flight& flight = flights_[index];
    const WireTransfer& transfer = flight.transfer;
    const Card& card = cards_[transfer.pe];
    bool begun = false;
    if (is_message(transfer.verb)) {
      begun = endpoint_->send(transfer.pe, &messages_[index], sizeof(Message), message_region_, flight);
    } else if (flight.verifies) {
      begun = endpoint_->read(transfer.pe, &echo_, 1, echo_region_, card.base + transfer.there + transfer.bytes - 1,
                              card.key, flight);
    } else {
      flight.piece = std::min({transfer.bytes - flight.moved, most_piece, endpoint_->most_bytes()});
      std::byte* here = transfer.here + flight.moved;
      const std::uint64_t there = card.base + transfer.there + flight.moved;
      begun = transfer.verb == Verb::put
                  ? endpoint_->write(transfer.pe, here, flight.piece, part_region_, there, card.key, flight)
                  : endpoint_->read(transfer.pe, here, flight.piece, part_region_, there, card.key, flight);
    }
    flight.state = begun ? Flight::State::begun : Flight::State::waiting;
    if (!begun) waiting_.push_back(index);
  }

  void advance(std::size_t index) {
    Flight& flight = flights_[index];
    if (is_message(flight.transfer.verb)) {
      flight.sent = true;
      if (flight.answered) finish(index);
      return;
    }
    flight.moved += flight.piece;
    if (flight.moved < flight.transfer.bytes) return go_on(index);
    if (flight.transfer.verb == Verb::put && !flight.verifies && (options_.reads_back || !endpoint_->delivers())) {
      // A read comes behind the writes before it.
      flight.verifies = true, flight.piece = 0;
      return go_on(index);
    }
    finish(index);
  }

  void finish(std::size_t index) {
    Flight& flight = flights_[index];
    if (is_message(flight.transfer.verb)) --under_way_[flight.transfer.pe];
    done_.push_back(flight.transfer.token);
    flight.state = Flight::State::free;
    free_.push_back(index);
  }

  void take_answer(const Message& message) {
    if (message.flight >= flights_.size()) return;
    Flight& flight = flights_[message.flight];
    const WireTransfer& transfer = flight.transfer;
    if (flight.state != Flight::State::begun || flight.use != message.use || flight.answered ||
        transfer.pe != message.from || !is_message(transfer.verb))
      return;  // a stranger's
    if (transfer.here != nullptr && transfer.bytes == 4)
      words::store(reinterpret_cast<std::uint32_t*>(transfer.here), static_cast<std::uint32_t>(message.operand));
    else if (transfer.here != nullptr)
      words::store(reinterpret_cast<std::uint64_t*>(transfer.here), message.operand);
    flight.answered = true;
    if (flight.sent) finish(message.flight);
  }

  // ------------------------------------------------------------------------------------- what others ask here

  Message& message_of(std::size_t seat) { return messages_[flights_.size() + seat]; }

  void receive(std::size_t index) {
    Seat& seat = seats_[index];
    const bool begun = endpoint_->receive(&message_of(index), sizeof(Message), message_region_, seat);
    seat.state = begun ? Seat::State::receiving : Seat::State::to_receive;
    if (!begun) idle_seats_.push_back(index);
  }

  // Whether the request is one that this PE can do. Others do not come from this world.
  bool is_sound(const Message& message) const {
    const auto verb = static_cast<Verb>(message.verb);
    const bool word = verb == Verb::put_word && (message.bytes == 1 || message.bytes == 2);
    return message.from < cards_.size() && message.from != static_cast<std::uint32_t>(world_.rank()) &&
           verb >= Verb::put_word && verb <= Verb::fetch_xor && (word || message.bytes == 4 || message.bytes == 8) &&
           message.type <= 1 && message.there % message.bytes == 0 && message.there <= part_bytes_ &&
           message.bytes <= part_bytes_ - message.there;
  }

  void take_message(std::size_t index) {
    const Message& message = message_of(index);
    Seat& seat = seats_[index];
    const bool known = message.token == cards_[static_cast<std::size_t>(world_.rank())].token;
    if (known && message.verb == answer) take_answer(message);
    if (!known || message.verb == answer || !is_sound(message)) return receive(index);
    const auto verb = static_cast<Verb>(message.verb);
    words::fence();  // puts that came before it are there
    const WireTransfer transfer{.verb = verb,
                                .type = static_cast<WordType>(message.type),
                                .pe = static_cast<std::uint32_t>(world_.rank()),
                                .there = message.there,
                                .here = verb == Verb::put_word ? nullptr : reinterpret_cast<std::byte*>(&seat.result),
                                .bytes = message.bytes,
                                .operand = message.operand,
                                .compare = message.compare,
                                .token = index};
    seat.result = 0;
    seat.from = message.from;
    seat.state = Seat::State::serving;
    while (!serving_->begin(transfer)) serve_on();
  }

  void serve_on() {
    std::array<std::uint64_t, 32> served;
    const std::size_t count = serving_->poll(served);
    for (std::size_t i = 0; i < count; ++i) {
      Message& message = message_of(served[i]);
      message.token = cards_[message.from].token;
      message.from = static_cast<std::uint32_t>(world_.rank());
      message.verb = answer;
      message.operand = seats_[served[i]].result;
      reply(served[i]);
    }
  }

  void reply(std::size_t index) {
    Seat& seat = seats_[index];
    const bool begun = endpoint_->send(seat.from, &message_of(index), sizeof(Message), message_region_, seat);
    seat.state = begun ? Seat::State::answering : Seat::State::to_answer;
    if (!begun) idle_seats_.push_back(index);
  }

  // ---------------------------------------------------------------------------------------------- what is done

  void take(const Completion& done) {
    if (done.work == nullptr) return;  // of a connection that no PE here asked for
    auto* slot = static_cast<Slot*>(done.work);
    if (slot->role == Slot::Role::flight) {
      auto* flight = static_cast<Flight*>(slot);
      if (!done.error.empty()) lose(flight->transfer.pe, words_of(flight->transfer) + " failed: " + done.error);
      return advance(static_cast<std::size_t>(flight - flights_.data()));
    }
    auto* seat = static_cast<Seat*>(slot);
    const auto index = static_cast<std::size_t>(seat - seats_.data());
    if (seat->state == Seat::State::answering && !done.error.empty())
      lose(seat->from, "an answer failed: " + done.error);
    if (seat->state == Seat::State::receiving && done.error.empty()) return take_message(index);
    receive(index);
  }

  void expect_in_time() const {
    const Clock::time_point now = Clock::now();
    for (const Flight& flight : flights_)
      if (flight.state != Flight::State::free && now - flight.since > limit_)
        lose(flight.transfer.pe,
             fmt::format("{} is not complete after {:.3g} s", words_of(flight.transfer), world_.options().wait_limit));
  }

  World& world_;
  FabricOptions options_;
  std::string provider_;
  std::byte* part_;
  std::uint64_t part_bytes_;
  Clock::duration limit_;
  std::unique_ptr<Wire> near_, serving_;
  std::vector<Card> cards_;             // by PE
  std::vector<std::size_t> under_way_;  // requests to each
  std::vector<Flight> flights_;
  std::vector<Seat> seats_;
  std::vector<Message> messages_;  // the flights', then the seats'
  std::byte echo_{};
  std::optional<FabricEndpoint> endpoint_;  // behind the memory that it works on
  Region part_region_, message_region_, echo_region_;
  std::vector<std::size_t> free_;       // flights
  std::deque<std::size_t> waiting_;     // flights that found no room
  std::deque<std::size_t> idle_seats_;  // seats that are free
  std::deque<std::uint64_t> done_;      // tokens
  std::uint32_t polls_ = 0;
};

}  // namespace

std::unique_ptr<Wire> fabric_wire(Heap& heap, const FabricOptions& options) {
  return std::make_unique<FabricWire>(heap, options);
}

}  // namespace imbrex::shmem::ring
