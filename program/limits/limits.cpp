#include "program/limits/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "execute/cuda/refusal.hpp"
#include "execute/peer_access.hpp"
#include "imbrex/error.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::program {
namespace {

constexpr Strategy strategies[] = {Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled};

std::string without_peers(const Plan& plan) {
  // The whole text names a task of this plan.
  return execute::refusal_without_peer_access(plan).empty() ? ""
                                                            : "its tasks, or Imbrex' own collectives, reach other "
                                                              "ranks' memory, and IMBREX_PEER_ACCESS=0 says that "
                                                              "none does";
}

std::string_view name_of_way(Strategy strategy, Transport transport) {
  if (strategy == Strategy::fused) return name_of(transport);
  return transport == Transport::store ? "own" : "NCCL";
}

// Numbers of reasons, in the order in which they are first met.
class Reasons {
 public:
  std::size_t number_of(const std::string& reason) {
    const auto found = std::find(texts_.begin(), texts_.end(), reason);
    if (found != texts_.end()) return static_cast<std::size_t>(found - texts_.begin()) + 1;
    texts_.push_back(reason);
    return texts_.size();
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

// The ways that run, or the reason of the last one that does not.
std::string cell(Operator op, Strategy strategy, const Feature& feature, Device device, Reasons& reasons) {
  std::string ways, reason;
  for (const Transport transport : ways_of(strategy)) {
    std::string why = refusal_of(op, strategy, transport, feature, device);
    if (!why.empty()) {
      if (reason.empty()) reason = std::move(why);
      continue;
    }
    if (!ways.empty()) ways += ", ";
    ways += name_of_way(strategy, transport);
  }
  return ways.empty() ? fmt::format("no ({})", reasons.number_of(reason)) : ways;
}

void add_table(std::string& page, Device device, Reasons& reasons) {
  std::vector<Feature> columns;
  for (const Feature& feature : features())
    if (device == Device::cuda || feature.on_cpu) columns.push_back(feature);
  page += fmt::format("\n## {}\n\n| operator | strategy |", device == Device::cuda ? "GPUs" : "CPU");
  for (const Feature& feature : columns) page += fmt::format(" {} |", feature.name);
  page += "\n|---|---|";
  for (std::size_t i = 0; i < columns.size(); ++i) page += "---|";
  page += "\n";
  for (const Operator op : problem::products())
    for (const Strategy strategy : strategies) {
      page += fmt::format("| `{}` | {} |", name_of(op), name_of(strategy));
      for (const Feature& feature : columns) page += fmt::format(" {} |", cell(op, strategy, feature, device, reasons));
      page += "\n";
    }
}

}  // namespace

const std::vector<Feature>& features() {
  static const std::vector<Feature> all{
      {"K x N", nullptr},
      {"N x K", [](Problem& p, Knobs&) { p.b_layout = Layout::column_major; }},
      {"rows apart", [](Problem& p, Knobs&) { p.lda = p.ldb = p.ldo = 1024; }},
      {"several B",
       [](Problem& p, Knobs&) {
         p.more_n = {512, 512};
       }},
      {"gathered A", [](Problem& p, Knobs&) { p.gathered_a = true; }},
      {"codec", [](Problem&, Knobs& k) { k.codec = parse_codec_pair("int8"); }},
      {"any M", nullptr, cuda::refusal_of_turns},
      {"no peer access", nullptr, without_peers, false},
      {"threads share a GPU", nullptr, [](const Plan& plan) { return cuda::refusal_of_sharing(plan, 4, false); },
       false},
      {"processes share a GPU", nullptr, [](const Plan& plan) { return cuda::refusal_of_sharing(plan, 4, true); },
       false},
  };
  return all;
}

const std::vector<Transport>& ways_of(Strategy strategy) {
  static const std::vector<Transport> fused{Transport::store, Transport::push, Transport::pull},
      library{Transport::push, Transport::store}, signaled{Transport::push};
  return strategy == Strategy::fused ? fused : strategy == Strategy::signaled ? signaled : library;
}

std::string refusal_of(Operator op, Strategy strategy, Transport transport, const Feature& feature, Device device) {
  Problem problem{op, 512, 512, 512, 4, Type::bf16};
  Knobs knobs{.tile_m = 128, .tile_n = 128, .transport = transport};
  knobs.partial = output_type(problem.type);
  knobs.kept_free = strategy == Strategy::signaled ? 16 : 0;
  if (feature.ask != nullptr) feature.ask(problem, knobs);
  try {
    validate(problem);
    const Plan plan = make_plan(problem, strategy, knobs);
    if (const auto finding = check(plan)) return finding->message;
    if (device == Device::cpu) return {};
    if (std::string why = cuda::refusal_of_plan(plan); !why.empty()) return why;
    return feature.refusal == nullptr ? std::string() : feature.refusal(plan);
  } catch (const Error& error) {
    return error.what();
  }
}

std::string limits_page() {
  std::string page =
      "# What runs where\n"
      "\n"
      "`imbrex doctor --limits` writes this page from the checks of plans; on GPUs also from those of the executor. "
      "Each cell is about\n"
      "the operator at M = N = K = 512 in bf16 on four ranks, with that strategy and the column's feature. If it runs, "
      "the cell\n"
      "names how operands and results may travel: a fused plan's knob `transport`; else NCCL's collectives or Imbrex' "
      "own. \"no\" comes\n"
      "with the number of a reason below, which is also what the caller gets. `auto` chooses among what runs. All "
      "ranks\n"
      "are on one host: a world over [several hosts](../dev/runtime.md#over-several-hosts) has no operators and "
      "collectives yet.\n";
  Reasons reasons;
  for (const Device device : {Device::cpu, Device::cuda}) add_table(page, device, reasons);
  page += "\n## Reasons\n\n";
  for (std::size_t i = 0; i < reasons.texts().size(); ++i) page += fmt::format("{}. {}\n", i + 1, reasons.texts()[i]);
  return page;
}

}  // namespace imbrex::program
