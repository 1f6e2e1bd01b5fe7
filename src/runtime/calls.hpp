// The calls of a world: every rank makes them in one order, and what some ranks refuse becomes an error on all of them.
// docs/dev/runtime.md describes the protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/agreement.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {

/// What a call is, so that a rank that refused it can take its part in it.
struct CallNote {
  std::uint64_t object = 0;  ///< CallMember::number; 0: no rank can stand in, and nothing is compared
  std::int64_t size = 0;     ///< M, elements, rows
  std::uint32_t kind = 0;    ///< the object's own
  bool queued = false;       ///< `began` says later whether a graph captures the call
  /// What messages call the size; null: nothing.
  const char* size_is = nullptr;
  std::uint64_t asked = 0;  ///< a hash of what Calls::ask was given; 0: nothing

  std::string with_size() const;  ///< " with M = 3", for messages
};

class Calls;

/// An object whose calls are the world's, while it lives. Every rank makes it, after an agreement that was its own.
class CallMember {
 public:
  /// `stand_in` makes a call that this rank refused, with operands of its own.
  CallMember(Calls& calls, std::function<void(const CallNote&)> stand_in);
  ~CallMember();
  CallMember(const CallMember&) = delete;
  CallMember& operator=(const CallMember&) = delete;

  /// The same on every rank.
  std::uint64_t number() const { return number_; }

 private:
  friend class Calls;
  Calls& calls_;
  std::uint64_t number_;
  std::function<void(const CallNote&)> stand_in_;
};

/// Counts one rank's collective calls, which all ranks make in the same order. Where some ranks refuse a call and
/// others have taken it, those that refused it stand in with operands of their own, so that it ends, and every rank
/// gets an Error(invalid_input) that names the rank and its reason: ranks that take it later at once, those that had
/// taken it behind the call where it is complete on return, else behind their next one. The next call is a call like
/// any other. One thread at a time.
class Calls {
 public:
  Calls(World& world, Control& control, int rank);

  /// Whether ranks compare their calls (IMBREX_CHECK_CALLS).
  bool checked() const { return checked_; }

  /// This rank's next call: `resolve` checks its operands, `note` says what the call is, and `launch` makes it; both
  /// get what `resolve` returns. Peers learn of it if this rank refuses what they take, by an Error(invalid_input) of
  /// `resolve` or `launch`. Where calls are checked, the call is collective, and what `describe` says of what `resolve`
  /// returned must be the same on every rank; else every rank refuses it, by an Error(invalid_input) that names the
  /// field and the ranks.
  template <typename Resolve, typename Note, typename Describe, typename Launch>
  auto make(Resolve&& resolve, Note&& note, Describe&& describe, Launch&& launch) {
    expect_own_process();
    const AskedOnce once(*this);
    const std::uint64_t before = number_;
    told_ = failed_alike_ = false;
    try {
      const auto resolved = [&] {
        if (!checked_) [[likely]]
          return resolve();
        std::optional<decltype(resolve())> own;
        compare([&] { return describe(own.emplace(resolve())); });
        return *std::move(own);
      }();
      CallNote own = note(resolved);
      own.asked = asked().hash;
      if (has_prelude()) own.queued = false;  // it waits for the ranks before it is queued
      take(own);
      const Launching launching(*this);
      if (own.object != 0) expect_same(own);
      run_prelude();
      if constexpr (std::is_void_v<decltype(launch(resolved))>) {
        launch(resolved);
        expect_none_refused();
      } else {
        auto result = launch(resolved);
        expect_none_refused();
        return result;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      const bool within = number_ > before + 1;  // a call within this one was refused
      if (number_ == before)
        refuse(error.what());
      else if (failed_alike_ && !within)
        settle_here(number_);  // every rank is out of this call, also one that stood in
      else if (!told_ && !within)
        take_back(error.what());
      throw;
    }
  }

  /// This rank's next call is asked for `field` = `value`, which the library does not see of its operands. Every rank
  /// refuses that call where it was not asked for the same.
  void ask(std::string_view field, std::string_view value);

  /// What the next call, or the one that is being made, is asked for.
  struct Asked {
    std::string field, value;
    std::uint64_t hash = 0;  // 0: nothing

    std::string text() const { return hash == 0 ? "no such argument" : field + " = " + value; }
  };
  // NOTE: nothing while a call is launched. Its ranks have compared what it is asked for, and one that stands in was
  // asked for something else: neither may say so in what they agree on there.
  const Asked& asked() const {
    static const Asked nothing;
    return launching_ ? nothing : asked_;
  }

  /// What every rank does within the call, also one that stands in, before anything of it is queued: it succeeds on
  /// every rank, or throws alike on every rank. Then the call is over, and no rank stands in for it once more.
  template <typename F>
  decltype(auto) prepare_alike(F&& f) {
    try {
      return f();
    } catch (const Error&) {
      failed_alike_ = true;
      throw;
    }
  }

  /// This rank takes its next call. Throws Error(invalid_input) if a peer has refused it and no rank makes it. A few
  /// stores and one load where nothing was refused.
  void take(const CallNote& note = {});

  /// The call that is being made has come to where it is queued, or captured. Said before it waits for any rank.
  void began(bool captured) noexcept;

  /// Throws Error(invalid_input), once, if a peer refused what this rank took.
  void expect_none_refused() {
    if (word(control_.block().refusals_made).load(std::memory_order_acquire) != known_) [[unlikely]]
      tell_of_refusals();
  }

  /// This rank refuses its next call with `error`, before it makes it.
  void refuse(const Error& error);

  /// This rank refuses its next call, for `reason`, and stands in where others have taken it. Waits for no rank that
  /// has not come to that call, but where it stands in.
  void refuse(std::string_view reason);

  /// This rank took its last call and refuses it now.
  void take_back(std::string_view reason);

  /// This rank's next call has no rows. Waits until all ranks have come to it. Throws Error(invalid_input), on every
  /// rank, with `given`, which says what this rank was given, where other ranks have some.
  void skip(std::string_view given);

  /// Outputs of a call that peers store into lie at one place on all ranks, a number below 2^40 (0: in no memory that
  /// they store into). Throws Error(invalid_input), which is this rank's refusal, where the first rank that came to
  /// this call said another one. In `launch`; elsewhere nothing is compared.
  void expect_place(std::uint64_t place);
  /// The place of the call that is made: 0 if no rank has said one before.
  std::uint64_t place();

  /// "; rank 2 has not come to this call": the ranks that have not come to this rank's last call, which `last_call`
  /// names; empty where all have. From any thread, also beside one that makes calls.
  std::string absence(std::string_view last_call) const;
  /// A rank's last call, modulo 2^32, as far as known here; 0: there was none. From any thread.
  std::uint32_t last(int rank) const {
    return static_cast<std::uint32_t>(word(control_.home(rank).ranks[rank].calls).load() >> 32);
  }
  std::uint32_t last() const { return last(rank_); }

  /// All ranks set it, after an agreement: what their next call begins with, in which they wait for each other. It is
  /// done once: by that call, by a rank that stands in for it, or by run_prelude before, on every rank. Where it
  /// throws, it is done with the next one.
  void set_prelude(std::function<void()> prelude) { prelude_ = std::move(prelude); }
  bool has_prelude() const { return prelude_ != nullptr; }
  void run_prelude() {
    if (prelude_ == nullptr) [[likely]]
      return;
    const std::function<void()> prelude = prelude_;
    prepare_alike([&] { prelude(); });
    prelude_ = nullptr;
  }

  /// An agreement begins: throws Error(invalid_input) where a peer has refused the call that it belongs to, or makes
  /// it.
  void begin_agreement();
  /// Whether a peer has refused what is this rank's next call.
  bool next_was_refused() const {
    return word(control_.block().last_refused).load(std::memory_order_seq_cst) > number_;
  }

  /// Throws Error(invalid_input) in a child of the rank's process, which is no rank.
  void expect_own_process() const;

 private:
  friend class CallMember;
  // What the ranks do with a call that some refused: no rank makes it; all meet in the agreement of that number, which
  // refuses it; all make it.
  enum class CallFate : std::uint64_t { skipped = 1, agreed = 2, made = 3 };
  // While one lives, a call is launched.
  class Launching {
   public:
    explicit Launching(Calls& calls) : calls_(calls), before_(std::exchange(calls.launching_, true)) {}
    ~Launching() { calls_.launching_ = before_; }
    Launching(const Launching&) = delete;
    Launching& operator=(const Launching&) = delete;

   private:
    Calls& calls_;
    bool before_;
  };

  // What was asked for goes with its call, however that ends.
  class AskedOnce {
   public:
    explicit AskedOnce(Calls& calls) : calls_(calls) {}
    ~AskedOnce() {
      if (calls_.asked_.hash != 0 && !calls_.launching_) calls_.asked_ = {};
    }
    AskedOnce(const AskedOnce&) = delete;
    AskedOnce& operator=(const AskedOnce&) = delete;

   private:
    Calls& calls_;
  };

  // Where calls are checked.
  void compare(const std::function<Terms()>& ask);
  void write_down(const CallNote& note, TakenState state);
  void publish_refusal(std::string_view reason);
  void tell_of_refusals();
  void settle(std::string_view reason);
  void stand_in();
  CallFate fate(std::uint64_t number, bool prepares = false);
  bool all_empty();
  std::uint64_t said_first(std::uint64_t place);
  static std::uint64_t digest_of(const CallNote& note);
  std::uint64_t first_call(std::uint64_t digest);  // the first rank's: `digest`, if this is the first one
  std::optional<std::uint64_t> first_call();       // that rank's, where one has said it
  std::optional<CallNote> taken_by(int rank) const;
  std::string asked_by(int rank) const;  // what its call of this number is asked for
  // Throws Error(invalid_input), which is this rank's refusal, where the first rank that came to this call makes
  // another one: of another object or size, or asked for something else.
  void expect_same(const CallNote& note);
  void await(const std::function<bool(int)>& there, std::string_view for_what);
  [[noreturn]] void throw_refused(std::uint64_t number);
  void settle_here(std::uint64_t number);
  bool is_settled(std::uint64_t number) const;
  std::uint64_t number_of(int rank) const;

  World& world_;
  Control& control_;
  int rank_;
  bool checked_;
  bool launching_ = false;  // a call that was taken, or one that this rank stands in for
  Asked asked_;
  bool told_ = false;                   // the error that is thrown is a peer's refusal
  bool failed_alike_ = false;           // it is thrown on every rank
  std::uint64_t forks_;                 // of the process, when the rank was made
  std::uint64_t number_ = 0;            // of the last call
  std::uint32_t refused_ = 0;           // the last calls, the latest lowest: set where this rank refused
  std::uint64_t known_ = 0;             // so many refusals this rank has looked at
  std::uint64_t agreements_ = 0;        // begun
  std::vector<std::uint64_t> settled_;  // calls that this rank refused, or has thrown for
  std::vector<CallMember*> members_;
  std::function<void()> prelude_;
};

/// A rank of another host has refused its call of that number; `calls`: its record. Fails the world where this rank has
/// taken the call.
void note_refusal(Control& control, int rank, std::uint64_t number, std::uint64_t calls,
                  std::string_view reason) noexcept;

/// The rank's calls in `world`.
Calls& calls_of(World& world);

}  // namespace imbrex::runtime
