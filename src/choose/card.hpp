// What is known of a kind of GPU: its constants, and the measurements that plans are chosen by.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "choose/alike.hpp"
#include "imbrex/machine.hpp"

namespace imbrex::choose {

/// GPUs of one name, as the driver gives it.
class Card {
 public:
  explicit Card(const std::string& gpu);

  /// Whether rates of products were measured on such GPUs, so that the cost model may say which plan is faster.
  bool is_measured() const { return measured_; }

  /// Whether a machine file names such GPUs.
  bool has_machine() const { return has_machine_; }

  /// Its constants, with the tiles alone that kernels for the type compute, and, except Hopper, without Imbrex' own
  /// collectives. Where no machine file names such GPUs, H200s': they tell how to cut a product, not what it takes.
  const Machine& machine(Type type, bool hopper) const { return machines_.at({type, hopper}); }

  /// Records that plans are chosen by: its own, then those of the GPUs that it is as fast as.
  const std::vector<const KnownPlans*>& known() const { return known_; }

 private:
  bool has_machine_ = false, measured_ = false;
  std::map<std::pair<Type, bool>, Machine> machines_;
  std::vector<const KnownPlans*> known_;
};

/// The card of that name, made once in this process. Any thread may call it. Throws Error(invalid_input) for a machine
/// file or a table that breaks a rule.
const Card& card_of(const std::string& gpu);

/// By what strategy auto chooses plans for GPUs, for people.
struct Knowledge {
  bool measured = false;  ///< on such GPUs, or on some that are as fast
  std::string words;      ///< "NVIDIA H200: 312 tuning entries, machine file 4xh200"
};

/// `name`: as GpuKind's; `major`: of their compute capability.
Knowledge knowledge_of(const std::string& name, int major);

}  // namespace imbrex::choose
