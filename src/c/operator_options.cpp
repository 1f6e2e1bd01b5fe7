#include "c/operator_options.hpp"

#include <string_view>

#include "base/check.hpp"
#include "base/json.hpp"
#include "plan/json/node.hpp"

namespace imbrex::c {
namespace {

constexpr std::size_t first_options = 48;
static_assert(offsetof(imbrex_operator_options, codec) == first_options);
static_assert(offsetof(imbrex_operator_options, heap_limit) == first_options + sizeof(const char*));

static_assert(static_cast<int>(Operator::all_gather_gemm) == IMBREX_ALL_GATHER_GEMM &&
              static_cast<int>(Operator::gemm_reduce_scatter) == IMBREX_GEMM_REDUCE_SCATTER &&
              static_cast<int>(Operator::gemm_all_reduce) == IMBREX_GEMM_ALL_REDUCE &&
              static_cast<int>(Operator::gemm_all_to_all) == IMBREX_GEMM_ALL_TO_ALL);
// Operators that multiply no matrices come behind those that do.
constexpr int count_kinds = static_cast<int>(embedding_all_to_all);

// What the text leaves out is chosen.
void set_knobs(OperatorOptions& options, std::string_view text) {
  nlohmann::json json = base::parse_json(plan::to_json(Knobs{}), "knobs");
  const nlohmann::json given = base::parse_json(text, "knobs");
  IMBREX_EXPECTS(given.is_object(), "knobs: they must be a JSON object");
  if (given.empty()) return;
  json.update(given);
  options.knobs = plan::knobs_of(plan::Node(json, "knobs"));
  for (const auto& [name, value] : given.items()) options.fixed_knobs.push_back(name);
}

}  // namespace

Operator product_operator(imbrex_operator_kind kind) {
  return static_cast<Operator>(kind_of(kind, count_kinds, "kind"));
}

OperatorOptions operator_options(const imbrex_operator_options* given) {
  const auto read = c::options_of(given, first_options, "imbrex_operator_options");
  OperatorOptions options;
  options.strategy = parsed(read.strategy, parse_strategy);
  if (read.knobs != nullptr) set_knobs(options, read.knobs);
  options.device = device_of(read.device);
  options.cpu.workers = small_of(read.cpu_workers, options.cpu.workers, "cpu_workers");
  if (read.heap_bytes != 0) options.cuda.heap_bytes = read.heap_bytes;
  options.cuda.heap_limit = read.heap_limit;
  for (const std::int32_t number : read.reserved)
    IMBREX_EXPECTS(number == 0,
                   "imbrex_operator_options.reserved = {}: it must be 0; how many ranks share a GPU is the world's "
                   "ranks_per_gpu",
                   number);
  options.codec = parsed(read.codec, parse_codec_pair);
  return options;
}

}  // namespace imbrex::c
