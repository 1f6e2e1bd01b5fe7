// Random problems and knobs for property tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "imbrex/plan.hpp"

namespace imbrex::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + between(0, static_cast<std::int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

struct Limits {
  int max_ranks = 8;
  std::int64_t max_size = 700;
  bool bias = false;   ///< some problems have one
  bool e4m3 = false;   ///< some problems are of that type, with scales of any kind
  bool lists = false;  ///< some all-gathers have further B, some give the gathered A
};

/// With e4m3, scales of any kind; with others, B in any layout.
inline void set_type(Random& random, Problem& p, Type type) {
  p.type = type;
  p.scales = type == Type::e4m3 ? random.one_of({Scales::none, Scales::tensor, Scales::row}) : Scales::none;
  p.b_layout = type != Type::e4m3 && random.chance(0.4) ? Layout::column_major : Layout::row_major;
}

/// Up to two further B for a problem of an all-gather without scales, and perhaps the gathered A.
inline void add_further(Random& random, Problem& p, std::int64_t max_size) {
  p.gathered_a = random.chance(0.5);
  const auto further = p.scales == Scales::none ? random.between(0, max_products - 1) : 0;
  for (std::size_t i = 0; std::cmp_less(i, further); ++i)
    p.more_n[i] = random.between(1, std::max<std::int64_t>(1, max_size / p.ranks)) * p.ranks;
}

/// Rows of some operands that lie further apart than they are long, by multiples of `step` elements, or exactly as far.
inline void add_pitches(Random& random, Problem& p, std::int64_t step = 1) {
  const auto pitch = [&](const OperandInfo& info) -> std::int64_t {
    if (random.chance(0.3)) return 0;
    return random.chance(0.1) ? info.length() : (info.length() + step - 1) / step * step + step * random.between(0, 9);
  };
  for (const OperandInfo& info : operands_of(p)) {
    if (info.name == "a") p.lda = pitch(info);
    if (info.name == "b") p.ldb = pitch(info);
    if (info.name == "out") p.ldo = pitch(info);
    for (std::size_t i = 0; i < p.more_n.size(); ++i) {
      if (info.name == (i == 0 ? "b1" : "b2")) p.more_ldb[i] = pitch(info);
      if (info.name == (i == 0 ? "out1" : "out2")) p.more_ldo[i] = pitch(info);
    }
  }
}

/// Whether some do.
inline bool has_gaps(const Problem& p) {
  for (const OperandInfo& info : operands_of(p))
    if (info.pitch > info.length()) return true;
  return false;
}

inline std::string describe_pitches(const Problem& p) {
  std::string text;
  for (const OperandInfo& info : operands_of(p))
    if (info.pitch != 0) text += " " + std::string(info.name) + " at " + std::to_string(info.pitch);
  return text;
}

/// Sizes of a problem, whose operator and ranks are known, in the order M, N, K: shared(), a multiple of the ranks, of
/// those that ranks share out, whole() of the others. Each is called with the address of the size.
template <typename Shared, typename Whole>
void draw_sizes(Problem& p, Shared&& shared, Whole&& whole) {
  const bool scatter = p.op == Operator::gemm_reduce_scatter, reduce = p.op == Operator::gemm_all_reduce;
  const auto draw = [&](std::int64_t& size, bool is_shared) { size = is_shared ? shared(&size) : whole(&size); };
  draw(p.m, !reduce);
  draw(p.n, p.op == Operator::all_gather_gemm);
  draw(p.k, scatter || reduce);
}

/// Sizes from 1 to the limit; the sharded dimension is a multiple of the ranks (and so at least as large).
inline Problem random_problem(Random& random, const Limits& limits) {
  Problem p;
  p.op = random.one_of(
      {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all});
  set_type(random, p, random.one_of({Type::bf16, Type::fp16, Type::fp32}));
  p.ranks = static_cast<int>(random.between(1, limits.max_ranks));
  const auto size = [&] {
    return random.chance(0.3) ? random.between(1, std::min<std::int64_t>(limits.max_size, 16))
                              : random.between(1, limits.max_size);
  };
  draw_sizes(
      p, [&](const auto*) { return std::max<std::int64_t>(1, size() / p.ranks) * p.ranks; },
      [&](const auto*) { return size(); });
  p.bias = limits.bias && random.chance(0.3);
  if (limits.e4m3 && random.chance(0.3)) set_type(random, p, Type::e4m3);
  if (limits.lists && p.op == Operator::all_gather_gemm) add_further(random, p, limits.max_size);
  return p;
}

/// Groups of a signaled plan that cover its rows of tiles or tiles, up to `most`; or none, so that `chunks` says it. To
/// be drawn anew where sizes or tiles change.
inline void set_groups(Random& random, const Problem& p, Knobs& k, std::size_t most = GroupSizes{}.size()) {
  k.groups = {};
  if (random.chance(0.3)) return;
  const auto pieces = [](std::int64_t total, std::int64_t piece) { return (total + piece - 1) / piece; };
  const RankShapes shapes = shapes_of(p);
  const bool gather = p.op == Operator::all_gather_gemm, whole = p.op == Operator::gemm_all_reduce;
  const std::int64_t rows = gather ? shapes.a.rows : whole ? shapes.product.rows : shapes.product.rows / p.ranks;
  std::int64_t left = pieces(rows, k.tile_m) * (k.packed ? pieces(shapes.product.cols, k.tile_n) : 1);
  for (std::size_t g = 0; left > 0; ++g) {
    const std::int64_t size = g + 1 == most || random.chance(0.1) ? left : random.between(1, left);
    k.groups[g] = static_cast<std::int32_t>(size);
    left -= size;
  }
}

/// Knobs that make_plan accepts for the problem and strategy.
inline Knobs random_knobs(Random& random, const Problem& p, Strategy strategy) {
  Knobs k;
  k.tile_m = random.one_of<std::int64_t>({8, 16, 48, 64, 128});
  k.tile_n = random.one_of<std::int64_t>({8, 16, 56, 64, 128});
  k.group = static_cast<int>(random.between(1, 8));
  k.order = random.one_of({TileOrder::owner_major, TileOrder::column_major, TileOrder::naive});
  k.comm_rows = random.chance(0.4) ? 0 : random.between(1, 100);
  k.k_slices = static_cast<int>(random.between(1, 3));
  k.split_k = random.chance(0.5) ? 1 : static_cast<int>(random.between(2, 5));
  k.cluster = static_cast<int>(random.between(0, 2));
  k.cluster_k = k.split_k == 1 && random.chance(0.3) ? 2 : 1;
  k.chunks = static_cast<int>(random.between(1, 5));
  if (random.chance(0.2)) k.library_tile = static_cast<int>(random.between(1, 40));
  if (random.chance(0.1)) k.library_parts = static_cast<int>(random.between(1, 4));
  k.own_shift = static_cast<int>(random.between(0, 6));
  k.abreast = static_cast<int>(random.between(0, 3));
  k.partial = random.chance(0.5) ? output_type(p.type) : Type::fp32;
  if (strategy != Strategy::fused && p.op != Operator::gemm_all_to_all) {
    k.nodes = static_cast<int>(random.between(1, p.ranks));
    while (p.ranks % k.nodes != 0) --k.nodes;
  }
  const bool gather = p.op == Operator::all_gather_gemm;
  k.transport = random.one_of({Transport::store, Transport::push, Transport::pull});
  if (strategy == Strategy::decomposed && gather && k.transport == Transport::store) k.transport = Transport::push;
  k.reducer = random.one_of({Reducer::tile, Reducer::tail, Reducer::reserved});
  k.span_shards = random.chance(0.25) && !(gather && p.scales == Scales::tensor);
  k.one_shot = p.op == Operator::gemm_all_reduce && random.chance(0.3);
  if (strategy == Strategy::signaled) {
    k.packed = p.op == Operator::gemm_all_reduce && random.chance(0.5);
    k.kept_free = static_cast<int>(random.between(0, 20));
    set_groups(random, p, k);
  }
  if (strategy != Strategy::fused || gather || p.op == Operator::gemm_all_to_all) return k;
  if (k.one_shot) k.transport = Transport::store;
  if ((k.one_shot || k.span_shards) && k.reducer == Reducer::tile) k.reducer = Reducer::tail;
  if (k.reducer == Reducer::tile && k.transport != Transport::store && k.order == TileOrder::column_major)
    k.order = TileOrder::owner_major;
  return k;
}

struct RandomCase {
  Problem problem;
  Strategy strategy;
  Knobs knobs;
};

inline RandomCase random_case(Random& random, const Limits& limits) {
  RandomCase c{random_problem(random, limits),
               random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled}),
               {}};
  if (c.strategy == Strategy::signaled) {  // takes one B
    c.problem.more_n = {};
    c.problem.gathered_a = false;
  }
  c.knobs = random_knobs(random, c.problem, c.strategy);
  return c;
}

inline std::string describe(const GroupSizes& groups) {
  std::string text;
  for (const std::int32_t size : groups)
    if (size > 0) text += (text.empty() ? " groups " : ",") + std::to_string(size);
  return text;
}

inline std::string describe(const RandomCase& c) {
  const auto s = [](auto v) { return std::to_string(v); };
  return std::string(name_of(c.problem.op)) + " " + s(c.problem.m) + "x" + s(c.problem.n) + "x" + s(c.problem.k) +
         " ranks " + s(c.problem.ranks) + (c.problem.bias ? " bias " : " ") + std::string(name_of(c.problem.type)) +
         (c.problem.scales == Scales::none ? " " : " scales " + std::string(name_of(c.problem.scales)) + " ") +
         (c.problem.b_layout == Layout::row_major ? "" : "B by columns ") + std::string(name_of(c.strategy)) +
         " tile " + s(c.knobs.tile_m) + "x" + s(c.knobs.tile_n) + " group " + s(c.knobs.group) + " order " +
         std::string(name_of(c.knobs.order)) + " transport " + std::string(name_of(c.knobs.transport)) + " reducer " +
         std::string(name_of(c.knobs.reducer)) + " comm_rows " + s(c.knobs.comm_rows) + " k_slices " +
         s(c.knobs.k_slices) + " split_k " + s(c.knobs.split_k) + " cluster_k " + s(c.knobs.cluster_k) + " chunks " +
         s(c.knobs.chunks) + " nodes " + s(c.knobs.nodes) + " own_shift " + s(c.knobs.own_shift) + " abreast " +
         s(c.knobs.abreast) + (c.knobs.span_shards ? " span_shards" : "") + (c.knobs.one_shot ? " one_shot" : "") +
         " partial " + std::string(name_of(c.knobs.partial)) + (c.knobs.packed ? " packed" : "") +
         describe(c.knobs.groups) + describe_pitches(c.problem);
}

/// Seed of a property test: IMBREX_TEST_SEED, or a fixed one. Tests print it.
std::uint64_t seed_from_environment();

}  // namespace imbrex::test
