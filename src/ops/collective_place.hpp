// What the public collectives share: where they work, and the rules for their operands.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/collectives.hpp"
#include "imbrex/world.hpp"
#include "ops/trim.hpp"
#include "runtime/calls.hpp"

namespace imbrex {

struct CollectiveObject::Place {
  /// Collective: chooses the device. Throws Error(invalid_input), on every rank, where the ranks ask for different
  /// ones, or insist on CUDA and something is missing.
  Place(World& world, Device wanted);

  /// This rank's next call: `resolve` checks its operands, and `launch` takes what it returns. Peers learn of it if
  /// this rank refuses what they take. `size` is that of the call, the same on every rank, which `stand_in` gets on
  /// such a rank, and `size_is` its name; `describe` says what the ranks' calls have in common: see Calls.
  template <typename Resolve, typename Size, typename Describe, typename Launch>
  void call(const Operands& operands, CudaStream stream, Resolve&& resolve, const char* size_is, Size&& size,
            Describe&& describe, Launch&& launch) {
    calls.make(
        [&] {
          if (device == Device::cpu)
            expect_no_stream(stream);
          else
            ops::expect_restored(calls, stream, gpu);
          expect_here(operands);
          return resolve();
        },
        [&](const auto& resolved) {
          return runtime::CallNote{member->number(), size(resolved), 0, device == Device::cuda, size_is};
        },
        describe, launch);
  }

  /// Once the object is made: `stand_in` makes a call of a size that this rank refused, with operands of its own,
  /// and waits for it.
  void enroll(std::function<void(std::int64_t size)> stand_in);

  /// Memory where this object works, for a call that it stands in for: every byte is 0xff.
  std::shared_ptr<void> scratch(std::size_t bytes) const;

  /// The backend is made, and has selected this rank's GPU.
  void made();

  Device device = Device::cpu;
  std::string why_cpu;
  runtime::Calls& calls;

 private:
  void expect_here(const Operands& operands);
  static void expect_no_stream(CudaStream stream);

  std::unique_ptr<runtime::CallMember> member;
  int gpu = -1;                    // this rank's
  std::vector<const void*> known;  // of the last call: in the GPU's memory
};

namespace ops {

/// The view of that name; null if it is `optional` and not given. Throws Error(invalid_input) if it is missing, or if
/// an operand is unknown, given twice, of another type, null, or has gaps.
class CollectiveOperands {
 public:
  /// `names`: those that there may be; they outlive this. `weight_type`: of the one named weight; not set: `type`.
  CollectiveOperands(const Operands& operands, Type type, std::span<const std::string_view> names,
                     std::optional<Type> weight_type = {});

  const View& at(std::string_view name) const;
  const View* find(std::string_view name) const;

 private:
  const Operands& operands_;
  std::span<const std::string_view> names_;
};

/// Throws Error(invalid_input) if a tensor has more elements than the object was made for.
void expect_count(std::string_view name, std::int64_t count, std::int64_t max_count);

/// How operands may overlap all the same: as one memory, or one of them as a block of so many bytes of the other.
struct InPlace {
  bool same = false;
  std::size_t in_of_out = 0, out_of_in = 0;
  std::string_view rule{};  ///< in words
};
/// Throws Error(invalid_input) if the two overlap in any other way.
void expect_apart(const View& in, const View& out, const InPlace& in_place);

/// Elements of a view.
std::int64_t elements_of(const View& view);

}  // namespace ops
}  // namespace imbrex
