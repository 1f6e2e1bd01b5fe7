#include "execute/terms.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace imbrex::execute {
namespace {

// NOTE: structured bindings name every member, so that one that is added to a struct does not go uncompared.

// FNV-1a by words, its high bits folded back: large plans have millions of numbers.
class Hash {
 public:
  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void add(T value) {
    value_ = (value_ ^ static_cast<std::uint64_t>(value)) * 1099511628211u;
    value_ ^= value_ >> 32;
  }
  template <typename T>
  void add(const std::vector<T>& list) {
    add(list.size());
    for (const T& item : list) add(item);
  }
  void add(const std::string& text) {
    add(text.size());
    for (const char c : text) add(c);
  }

  void add(const Region& region) {
    const auto& [rank, buffer, row, col, rows, cols] = region;
    add_all(rank, buffer, row, col, rows, cols);
  }
  void add(const Wait& wait) {
    const auto& [signal, count, point, k_begin] = wait;
    add_all(signal, count, point, k_begin);
  }
  void add(const Post& post) {
    const auto& [rank, signal] = post;
    add_all(rank, signal);
  }
  void add(const Store& store) {
    const auto& [to, row, col] = store;
    add_all(to, row, col);
  }
  void add(const Tile& tile) {
    const auto& [a, b, adds, own, stores, a_scale] = tile;
    add_all(a, b, adds, own, stores, a_scale);
  }
  void add(const Transfer& transfer) {
    const auto& [from, to] = transfer;
    add_all(from, to);
  }
  void add(const Reduction& reduction) {
    const auto& [from, to] = reduction;
    add_all(from, to);
  }
  void add(const Collective& collective) {
    const auto& [kind, group, from, to, ranks] = collective;
    add_all(kind, group, from, to, ranks);
  }
  void add(const Task& task) {
    const auto& [work, waits, posts] = task;
    add(work.index());
    std::visit([&](const auto& w) { add(w); }, work);
    add_all(waits, posts);
  }
  void add(const Queue& queue) {
    const auto& [engine, workers, tasks] = queue;
    add_all(engine, workers, tasks);
  }
  void add(const Buffer& buffer) {
    const auto& [name, role, layout, type, rows, cols, copies] = buffer;
    add_all(name, role, layout, type, rows, cols, copies);
  }
  void add(const RankPlan& rank) {
    const auto& [signals, queues] = rank;
    add_all(signals, queues);
  }

  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  template <typename... T>
  void add_all(const T&... values) {
    (add(values), ...);
  }

  std::uint64_t value_ = 14695981039346656037u;
};

template <typename T>
std::string hash_of(const T& value) {
  Hash hash;
  hash.add(value);
  return hash.text();
}

}  // namespace

void add(runtime::Terms& terms, const Problem& problem) {
  const auto& [op, m, n, k, ranks, type, bias, scales] = problem;
  terms.add("operator", name_of(op)).add("m", m).add("n", n).add("k", k).add("ranks", ranks);
  terms.add("type", name_of(type)).add("bias", bias).add("scales", name_of(scales));
}

void add(runtime::Terms& terms, const Knobs& knobs) {
  const auto& [tile_m, tile_n, cluster, cluster_k, group, order, transport, reducer, comm_rows, k_slices, split_k,
               chunks, nodes, library_tile, library_parts, own_shift, abreast, span_shards, one_shot, partial] = knobs;
  terms.add("tile_m", tile_m).add("tile_n", tile_n).add("cluster", cluster).add("cluster_k", cluster_k);
  terms.add("group", group).add("order", name_of(order)).add("transport", name_of(transport));
  terms.add("reducer", name_of(reducer)).add("comm_rows", comm_rows).add("k_slices", k_slices).add("split_k", split_k);
  terms.add("chunks", chunks).add("nodes", nodes).add("library_tile", library_tile);
  terms.add("library_parts", library_parts).add("own_shift", own_shift).add("abreast", abreast);
  terms.add("span_shards", span_shards).add("one_shot", one_shot).add("partial", name_of(partial));
}

void add(runtime::Terms& terms, const std::optional<Strategy>& strategy, const std::optional<Knobs>& knobs) {
  terms.add("strategy", strategy ? name_of(*strategy) : "auto").add("knobs", knobs ? "given" : "auto");
  if (knobs) add(terms, *knobs);
}

void add(runtime::Terms& terms, const CudaOptions& options) {
  const auto& [heap_bytes, kernel, timeline, delays, max_delay, first_epoch, ranks_per_gpu] = options;
  static_cast<void>(delays), static_cast<void>(max_delay);
  terms.add("heap_bytes", heap_bytes).add("kernel", kernel).add("timeline", timeline).add("first_epoch", first_epoch);
  terms.add("ranks_per_gpu", ranks_per_gpu);
}

void add_way(runtime::Terms& terms, const Plan& plan) {
  const auto& [problem, strategy, knobs, signal_copies, buffers, ranks] = plan;
  static_cast<void>(problem);
  terms.add("strategy", name_of(strategy));
  add(terms, knobs);
  terms.add("signal_copies", signal_copies).add("hash of the buffers", hash_of(buffers));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    terms.add(fmt::format("hash of rank {}'s tasks", rank), hash_of(ranks[rank]));
}

runtime::Terms terms_of(const Problem& problem, Strategy strategy, const Knobs& knobs) {
  runtime::Terms terms("a plan that is yet to be made");
  add(terms, problem);
  terms.add("strategy", name_of(strategy));
  add(terms, knobs);
  return terms;
}

runtime::Terms terms_of(const Plan& plan) {
  runtime::Terms terms("a plan");
  add(terms, plan.problem);
  add_way(terms, plan);
  return terms;
}

}  // namespace imbrex::execute
