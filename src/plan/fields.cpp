#include "plan/fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/digest.hpp"
#include "plan/json/names.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex::plan {
namespace {

// NOTE: structured bindings name every member, so that one that is added to a struct does not go uncompared.

template <typename T>
void add(Fields& fields, const char* name, const T& value) {
  fields.emplace_back(name, fmt::format("{}", value));
}

std::string text_of(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace

void add_fields(Fields& fields, const Problem& problem) {
  const auto& [op, m, n, k, ranks, type, bias, scales, b_layout, more_n, gathered_a, lda, ldb, ldo, more_ldb, more_ldo,
               packed, tables] = problem;
  add(fields, "operator", name_of(op));
  add(fields, "m", m);
  add(fields, "n", n);
  add(fields, "k", k);
  add(fields, "ranks", ranks);
  add(fields, "type", name_of(type));
  add(fields, "bias", bias);
  add(fields, "scales", name_of(scales));
  add(fields, "b_layout", name_of(b_layout));
  add(fields, "more_n", fmt::format("{}", fmt::join(more_n, ", ")));
  add(fields, "gathered_a", gathered_a);
  add(fields, "lda", lda);
  add(fields, "ldb", ldb);
  add(fields, "ldo", ldo);
  add(fields, "more_ldb", fmt::format("{}", fmt::join(more_ldb, ", ")));
  add(fields, "more_ldo", fmt::format("{}", fmt::join(more_ldo, ", ")));
  add(fields, "packed_blocks", fmt::format("{} x {}", packed.rows, packed.cols));
  if (tables == Tables{}) return;
  add(fields, "rows of tables", name_of(tables.rows));
  add(fields, "shards", tables.shards.size());
  for (std::size_t i = 0; i < tables.shards.size(); ++i) {
    const auto& [owner, rows, dim, first_col, pooling] = tables.shards[i];
    fields.emplace_back(
        fmt::format("shard {}", i),
        fmt::format("{} rows of {} numbers on rank {}, cols {}+, pooling {}", rows, dim, owner, first_col, pooling));
  }
}

void add_fields(Fields& fields, const Knobs& knobs) {
  const auto& [tile_m, tile_n, cluster, cluster_k, group, order, transport, reducer, comm_rows, k_slices, split_k,
               chunks, groups, packed, kept_free, nodes, library_tile, library_parts, own_shift, abreast, span_shards,
               one_shot, partial, codec] = knobs;
  add(fields, "tile_m", tile_m);
  add(fields, "tile_n", tile_n);
  add(fields, "cluster", cluster);
  add(fields, "cluster_k", cluster_k);
  add(fields, "group", group);
  add(fields, "order", name_of(order));
  add(fields, "transport", name_of(transport));
  add(fields, "reducer", name_of(reducer));
  add(fields, "comm_rows", comm_rows);
  add(fields, "k_slices", k_slices);
  add(fields, "split_k", split_k);
  add(fields, "chunks", chunks);
  add(fields, "groups", text_of(groups));
  add(fields, "packed", packed);
  add(fields, "kept_free", kept_free);
  add(fields, "nodes", nodes);
  add(fields, "library_tile", library_tile);
  add(fields, "library_parts", library_parts);
  add(fields, "own_shift", own_shift);
  add(fields, "abreast", abreast);
  add(fields, "span_shards", span_shards);
  add(fields, "one_shot", one_shot);
  add(fields, "partial", name_of(partial));
  add(fields, "codec", codec ? name_of(*codec) : "none");
}

void add_fields(Fields& fields, const std::optional<Strategy>& strategy, const GivenKnobs& knobs) {
  add(fields, "strategy", strategy ? name_of(*strategy) : "auto");
  add(fields, "knobs",
      knobs.all() ? "given"
      : knobs     ? fmt::format("{} given", fmt::join(knobs.names(), ", "))
                  : "auto");
  if (knobs) add_fields(fields, knobs.values());
}

Fields fields_of(const TaskStream& tasks) {
  const Plan& frame = tasks.frame();
  Fields fields;
  add(fields, "origin", tasks.made() ? "a strategy" : "the caller");
  add_fields(fields, frame.problem);
  add(fields, "strategy", name_of(frame.strategy));
  add_fields(fields, frame.knobs);
  if (tasks.made()) return fields;
  const std::shared_ptr<const Plan> plan = tasks.whole();
  add(fields, "signal_copies", plan->signal_copies);
  Digest digest(*plan);
  for_each_task(*plan, [&](const TaskPlace& place, const Task& task) { digest.add(place, task); });
  fields.emplace_back("digest of the buffers", text_of(digest.value_of_buffers()));
  for (int rank = 0; rank < std::ssize(plan->ranks); ++rank)
    fields.emplace_back(fmt::format("digest of rank {}'s tasks", rank), text_of(digest.value_of_rank(rank)));
  return fields;
}

}  // namespace imbrex::plan
