// How a rank tells its peers that it refused a call which they take. docs/runtime.md describes the protocol.
#pragma once

#include <cstdint>
#include <string_view>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {

/// Counts one rank's collective calls, which all ranks make in the same order. A call that every rank refuses costs
/// nothing. Where some ranks refuse a call and others take it, those others would wait for peers that never come: the
/// world fails instead, with the rank that refused and its reason. One thread at a time.
class Calls {
 public:
  Calls(Control& control, int rank) : control_(control), rank_(rank) {}

  /// This rank's next call: `resolve` checks its operands, and `launch` gets what it returns. Peers learn of it if this
  /// rank refuses what they take, by an Error(invalid_input) of either.
  template <typename Resolve, typename Launch>
  auto make(Resolve&& resolve, Launch&& launch) {
    bool taken = false;
    try {
      const auto resolved = resolve();
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

  /// This rank refuses its next call, for `reason`. Waits for nobody: a peer that takes the call later learns of it.
  void refuse(std::string_view reason) noexcept;

  /// This rank took its last call and refuses it now.
  void take_back(std::string_view reason) noexcept;

 private:
  void publish_refusal(std::string_view reason) noexcept;

  Control& control_;
  int rank_;
  std::uint64_t number_ = 0;   // of the last call
  std::uint32_t refused_ = 0;  // the last calls, the latest lowest: set where this rank refused
};

/// The rank's calls in `world`.
Calls& calls_of(World& world);

}  // namespace imbrex::runtime
