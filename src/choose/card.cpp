#include "choose/card.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "choose/kernel_tiles.hpp"
#include "machine/card_file.hpp"

namespace imbrex::choose {
namespace {

const Machine& four_h200() {
  static const Machine machine = load_machine("4xh200");
  return machine;
}

// Its owner's own measurement, if there is one.
std::optional<Machine> machine_of(const std::string& gpu) {
  std::optional<Machine> own = machine::measured_card(gpu);
  return own ? own : find_machine_of(gpu);
}

// The GPU's constants and records, with what the one says of the other. Any thread may call it.
struct Known {
  Known(const Known&) = delete;  // its plans refer to its machine
  explicit Known(const std::string& gpu)
      : machine(machine_of(gpu)), plans(records::records_of(gpu), machine ? *machine : four_h200()) {}

  std::optional<Machine> machine;
  KnownPlans plans;
};

const Known& known_of(const std::string& gpu) {
  static std::mutex lock;
  static std::map<std::string, Known> known;
  const std::lock_guard guard(lock);
  return known.try_emplace(gpu, gpu).first->second;
}

bool is_timed(const Constant& constant) {
  return constant.source == Provenance::measured || constant.source == Provenance::fitted;
}

// Whether its GPUs reach each other's memory, a world has seen.
Machine with_kernels(Machine machine, Type type, bool hopper) {
  machine.peer_access = {};
  if (!hopper) machine.own_one_step = machine.own_two_steps = {};
  const auto lacks = [&](const TileRate& tile) { return !has_kernel_tile(type, hopper, tile.tile_m, tile.tile_n); };
  // A type without kernels on tensor cores, and a file without tiles of theirs, keep all.
  if (!std::all_of(machine.tiles.begin(), machine.tiles.end(), lacks)) std::erase_if(machine.tiles, lacks);
  return machine;
}

}  // namespace

Card::Card(const std::string& gpu) {
  const Known& own = known_of(gpu);
  known_.push_back(&own.plans);
  const Machine& machine = own.machine ? *own.machine : four_h200();
  if (own.machine && !machine.tuned_like.empty() && machine.tuned_like != gpu)
    known_.push_back(&known_of(machine.tuned_like).plans);
  has_machine_ = own.machine.has_value();
  measured_ = has_machine_ && std::any_of(machine.sm_rate.begin(), machine.sm_rate.end(),
                                          [](const auto& rate) { return is_timed(rate.second); });
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    for (const bool hopper : {false, true})
      machines_.emplace(std::pair(type, hopper), with_kernels(machine, type, hopper));
}

const Card& card_of(const std::string& gpu) {
  static std::mutex lock;
  static std::map<std::string, Card> cards;
  const std::lock_guard guard(lock);
  return cards.try_emplace(gpu, gpu).first->second;
}

Knowledge knowledge_of(const std::string& name, int major) {
  const Card& card = card_of(name);
  Knowledge knowledge{card.is_measured(), name + ":"};
  const char* separator = " ";
  for (const KnownPlans* known : card.known()) {
    if (known->list().empty()) continue;
    knowledge.measured = true;
    const bool own = known == card.known().front();
    knowledge.words += fmt::format("{}{} tuning entries{}", separator, known->list().size(),
                                   own ? std::string() : fmt::format(" of {}", known->records().gpu));
    separator = ", ";
  }
  if (card.has_machine())
    knowledge.words += fmt::format("{}machine file {}{}", separator, card.machine(Type::bf16, true).name,
                                   card.is_measured() ? "" : ", whose products were not measured");
  else if (!knowledge.measured)
    knowledge.words += " no tuning entry, no machine file";
  if (!knowledge.measured) knowledge.words += "; auto runs cuBLAS and NCCL";
  if (!card.is_measured()) knowledge.words += "; Imbrex was not tried on such GPUs";
  if (major != 9) knowledge.words += "; collectives of Imbrex' own need Hopper";
  return knowledge;
}

}  // namespace imbrex::choose
