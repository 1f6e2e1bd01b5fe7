// How a rank tells its peers that it refused a call which they take. docs/dev/runtime.md describes the protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/agreement.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {

/// Counts one rank's collective calls, which all ranks make in the same order. A call that every rank refuses costs
/// nothing. Where some ranks refuse a call and others take it, those others would wait for peers that never come: the
/// world fails instead, with the rank that refused and its reason. One thread at a time.
class Calls {
 public:
  Calls(World& world, Control& control, int rank);

  /// Whether ranks compare their calls (IMBREX_CHECK_CALLS).
  bool checked() const { return checked_; }

  /// This rank's next call: `resolve` checks its operands, and `launch` gets what it returns. Peers learn of it if this
  /// rank refuses what they take, by an Error(invalid_input) of either. Where calls are checked, the call is
  /// collective, and what `describe` says of what `resolve` returned must be the same on every rank; else every rank
  /// refuses it, by an Error(invalid_input) that names the field and the ranks.
  template <typename Resolve, typename Describe, typename Launch>
  auto make(Resolve&& resolve, Describe&& describe, Launch&& launch) {
    bool taken = false;
    try {
      const auto resolved = [&] {
        if (!checked_) [[likely]]
          return resolve();
        std::optional<decltype(resolve())> own;
        compare([&] { return describe(own.emplace(resolve())); });
        return *std::move(own);
      }();
      take();
      taken = true;
      return launch(resolved);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_input) taken ? take_back(error.what()) : refuse(error.what());
      throw;
    }
  }

  /// This rank takes its next call. Throws Error(runtime_failure) if a peer is known to have refused it. One store and
  /// one load where nothing was refused.
  void take();

  /// This rank refuses its next call with `error`, before it makes it.
  void refuse(const Error& error);

  /// This rank refuses its next call, for `reason`. Does not wait: a peer that takes the call later learns of it.
  void refuse(std::string_view reason) noexcept;

  /// This rank took its last call and refuses it now.
  void take_back(std::string_view reason) noexcept;

 private:
  // Where calls are checked.
  void compare(const std::function<Terms()>& ask);
  void publish_refusal(std::string_view reason) noexcept;

  World& world_;
  Control& control_;
  int rank_;
  bool checked_;
  std::uint64_t number_ = 0;   // of the last call
  std::uint32_t refused_ = 0;  // the last calls, the latest lowest: set where this rank refused
};

/// A rank of another host has refused its call of that number; `calls`: its record. Fails the world where this rank has
/// taken the call.
void note_refusal(Control& control, int rank, std::uint64_t number, std::uint64_t calls,
                  std::string_view reason) noexcept;

/// The rank's calls in `world`.
Calls& calls_of(World& world);

}  // namespace imbrex::runtime
