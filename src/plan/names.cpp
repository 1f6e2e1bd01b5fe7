// Names of the enumerations, both ways.
#include <array>
#include <numeric>

#include "base/named.hpp"
#include "imbrex/plan.hpp"
#include "plan/json/names.hpp"
#include "plan/strategies/registry.hpp"
#include "plan/work.hpp"

namespace imbrex {
namespace {

using base::find_name, base::find_value, base::Named;

constexpr auto strategies = [] {
  std::array<Named<Strategy>, plan::strategy_entries.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = {plan::strategy_entries[i].strategy, plan::strategy_entries[i].name};
  return all;
}();
constexpr std::array<Named<TileOrder>, 3> tile_orders{
    {{TileOrder::owner_major, "owner_major"}, {TileOrder::column_major, "column_major"}, {TileOrder::naive, "naive"}}};
constexpr std::array<Named<Transport>, 3> transports{
    {{Transport::store, "store"}, {Transport::push, "push"}, {Transport::pull, "pull"}}};
constexpr std::array<Named<Reducer>, 3> reducers{
    {{Reducer::tile, "tile"}, {Reducer::tail, "tail"}, {Reducer::reserved, "reserved"}}};
constexpr std::array<Named<CollectiveKind>, 5> collective_kinds{{{CollectiveKind::all_gather, "all_gather"},
                                                                 {CollectiveKind::reduce_scatter, "reduce_scatter"},
                                                                 {CollectiveKind::all_reduce, "all_reduce"},
                                                                 {CollectiveKind::all_to_all, "all_to_all"},
                                                                 {CollectiveKind::send_receive, "send_receive"}}};
constexpr std::array<Named<Engine>, 3> engines{
    {{Engine::compute, "compute"}, {Engine::copy, "copy"}, {Engine::library, "library"}}};
constexpr std::array<Named<Backend>, 2> backends{{{Backend::nccl, "nccl"}, {Backend::imbrex, "imbrex"}}};
constexpr std::array<Named<ClusterMode>, 4> cluster_modes{{{ClusterMode::any, "any"},
                                                           {ClusterMode::single, "single"},
                                                           {ClusterMode::share_b, "share_b"},
                                                           {ClusterMode::share_k, "share_k"}}};
constexpr std::array<Named<BufferRole>, 3> buffer_roles{
    {{BufferRole::input, "input"}, {BufferRole::output, "output"}, {BufferRole::workspace, "workspace"}}};
constexpr std::array<Named<Layout>, 3> layouts{
    {{Layout::row_major, "row_major"}, {Layout::column_major, "column_major"}, {Layout::fragment, "fragment"}}};
constexpr std::array<Named<WaitPoint>, 2> wait_points{{{WaitPoint::load, "load"}, {WaitPoint::epilogue, "epilogue"}}};
constexpr std::array<Named<Fault>, 6> faults{{{Fault::malformed, "malformed"},
                                              {Fault::bounds, "bounds"},
                                              {Fault::deadlock, "deadlock"},
                                              {Fault::race, "race"},
                                              {Fault::coverage, "coverage"},
                                              {Fault::reuse, "reuse"}}};

}  // namespace

std::string_view name_of(Strategy strategy) { return find_name(strategies, strategy); }
std::string_view name_of(TileOrder order) { return find_name(tile_orders, order); }
std::string_view name_of(Transport transport) { return find_name(transports, transport); }
std::string_view name_of(Reducer reducer) { return find_name(reducers, reducer); }
std::string_view name_of(CollectiveKind kind) { return find_name(collective_kinds, kind); }
std::string_view name_of(Engine engine) { return find_name(engines, engine); }
std::string_view name_of(Backend backend) { return find_name(backends, backend); }
std::string_view name_of(ClusterMode mode) { return find_name(cluster_modes, mode); }
std::string_view name_of(Fault fault) { return find_name(faults, fault); }
std::string_view plan::name_of(BufferRole role) { return find_name(buffer_roles, role); }
std::string_view plan::name_of(Layout layout) { return find_name(layouts, layout); }
std::string_view plan::name_of(WaitPoint point) { return find_name(wait_points, point); }

Strategy parse_strategy(std::string_view name) { return find_value(strategies, name, "a strategy"); }
TileOrder parse_tile_order(std::string_view name) { return find_value(tile_orders, name, "a tile order"); }
Transport parse_transport(std::string_view name) { return find_value(transports, name, "a transport"); }
Reducer parse_reducer(std::string_view name) { return find_value(reducers, name, "a reducer"); }
CollectiveKind parse_collective_kind(std::string_view name) {
  return find_value(collective_kinds, name, "a collective");
}
Engine parse_engine(std::string_view name) { return find_value(engines, name, "an engine"); }
Backend parse_backend(std::string_view name) { return find_value(backends, name, "a backend"); }
ClusterMode parse_cluster_mode(std::string_view name) { return find_value(cluster_modes, name, "a cluster mode"); }
BufferRole plan::parse_buffer_role(std::string_view name) { return find_value(buffer_roles, name, "a buffer role"); }
Layout plan::parse_layout(std::string_view name) { return find_value(layouts, name, "a layout"); }
WaitPoint plan::parse_wait_point(std::string_view name) { return find_value(wait_points, name, "a wait point"); }

std::string_view kind_of(const Task& task) {
  constexpr std::string_view names[] = {"tile", "transfer", "reduction", "collective", "product"};
  if (const auto* block = std::get_if<Block>(&task.work)) return name_of(block->kind);
  return names[task.work.index()];
}

std::string task_name(const Plan& plan, int rank, int queue, std::size_t task) {
  return task_name(
      rank, queue, task,
      plan.ranks.at(static_cast<std::size_t>(rank)).queues.at(static_cast<std::size_t>(queue)).tasks.at(task));
}

std::string task_name(int rank, int queue, std::size_t index, const Task& task) {
  return fmt::format("rank {} queue {} task {} ({})", rank, queue, index, kind_of(task));
}

std::string label(const Task& task) {
  if (const auto* tile = std::get_if<Tile>(&task.work))
    return fmt::format("tile rows {}+{} cols {}+{}", tile->a.row, tile->a.rows, tile->b.col, tile->b.cols);
  if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
    if (transfer->from.empty()) return "signal";
    return fmt::format("copy {} x {} from rank {} to rank {}", transfer->from.rows, transfer->from.cols,
                       transfer->from.rank, transfer->to.rank);
  }
  if (const auto* reduction = std::get_if<Reduction>(&task.work))
    return fmt::format("sum of {}, rows {}+{} cols {}+{}", reduction->from.size(), reduction->to.front().row,
                       reduction->to.front().rows, reduction->to.front().col, reduction->to.front().cols);
  if (const auto* product = std::get_if<Product>(&task.work))
    return fmt::format("product rows {}+{} cols {}+{}", product->a.row, product->a.rows * product->batch,
                       product->b.col, product->b.cols);
  if (const auto* block = std::get_if<Block>(&task.work)) {
    if (const auto own = plan::descriptor_of(block->kind).label) return own(*block);
    const Region to = block->stores.empty() ? Region{} : block->stores.front().to;
    return fmt::format("{} rows {}+{} cols {}+{}", name_of(block->kind), to.row, to.rows, to.col, to.cols);
  }
  const auto& c = std::get<Collective>(task.work);
  return fmt::format("{} {}", name_of(c.kind), c.group);
}

std::vector<int> ranks_of(const Collective& collective, const Plan& plan) {
  if (!collective.ranks.empty()) return collective.ranks;
  std::vector<int> ranks(static_cast<std::size_t>(plan.problem.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::size_t count_tasks(const Plan& plan) {
  std::size_t count = 0;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues) count += queue.tasks.size();
  return count;
}

}  // namespace imbrex
