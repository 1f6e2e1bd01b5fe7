#include "choose/gpu_candidates.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "choose/kernel_tiles.hpp"
#include "choose/quick_times.hpp"
#include "choose/strategies.hpp"
#include "plan/builder.hpp"
#include "plan/problem.hpp"

namespace imbrex::choose {
namespace {

// The tiles of a kernel, as knobs name them.
struct Shape {
  std::int64_t tile_m, tile_n;
  int cluster;
};

// Does not compile for what no kernel of bf16 has.
consteval Shape kernel(std::int64_t rows, std::int64_t cols, int cluster, bool shares_k = false) {
  for (const cuda::KernelTile& v : kernel_tiles())
    if (v.type == Type::bf16 && v.hopper && v.rows == rows && v.cols == cols && v.cluster == cluster &&
        v.shares_k == shares_k)
      return {rows, cols, shares_k ? 1 : cluster};
  throw "variants.def has no such kernel";
}

constexpr Shape square = kernel(128, 128, 2), square1 = kernel(128, 128, 1), narrow = kernel(128, 64, 1),
                low = kernel(64, 128, 1), small = kernel(64, 64, 1), tiny = kernel(64, 32, 1),
                wide = kernel(128, 256, 2), wide1 = kernel(128, 256, 1), middle = kernel(128, 224, 2),
                middle1 = kernel(128, 224, 1), oblong = kernel(128, 192, 2), low2 = kernel(64, 128, 2),
                flat2 = kernel(64, 192, 2);
// Kernels that split K within a cluster.
constexpr Shape shared_small = kernel(64, 64, 2, true), shared_flat = kernel(64, 192, 2, true),
                shared_narrow = kernel(128, 64, 2, true);

class List {
 public:
  explicit List(const Problem& problem) : problem_(problem) {
    candidates_.push_back(library_sequence(problem));
    Knobs k = candidates_.back().knobs;
    if (may_suit_own_collectives(problem)) {
      Knobs own = k;
      own.transport = Transport::store;
      candidates_.push_back({Strategy::sequential, own});
    }
    for (const int chunks : usual_chunks(problem.op)) {
      k.chunks = chunks;
      candidates_.push_back({Strategy::decomposed, k});
    }
  }

  template <typename Change>
  void add(std::initializer_list<Shape> shapes, Change&& change) {
    for (const Shape& shape : shapes) add(knobs_of(shape, change));
  }

  // Adds the candidate with split-K, where that keeps more of the workers busy.
  template <typename Change>
  void add_split(std::initializer_list<Shape> shapes, Change&& change) {
    for (const Shape& shape : shapes) {
      Knobs k = knobs_of(shape, change);
      k.split_k = parts_of_k(tiles_of(k), plan::usual_sms, shapes_of(problem_).depth);
      if (k.split_k > 1) add(k);
    }
  }

  // Adds the candidate with K shared by two workers a tile, where that gives most workers a tile.
  template <typename Change>
  void add_sharing(std::initializer_list<Shape> shapes, Change&& change) {
    if (problem_.type != Type::bf16) return;  // other types have no split-K within a cluster
    for (const Shape& shape : shapes) {
      Knobs k = knobs_of(shape, change);
      k.cluster_k = 2;
      const std::int64_t workers = 2 * tiles_of(k);
      if (workers <= plan::usual_sms && 2 * workers > plan::usual_sms) add(k);
    }
  }

  std::vector<plan::Candidate> take() { return std::move(candidates_); }

 private:
  template <typename Change>
  Knobs knobs_of(const Shape& s, Change&& change) const {
    Knobs k;
    k.tile_m = s.tile_m;
    k.tile_n = s.tile_n;
    k.cluster = s.cluster;
    // There are kernels of bf16 for all tiles.
    if (problem_.type != Type::bf16) k = with_kernel_tile(k, problem_.type, true);
    k.transport = Transport::store;
    k.partial = output_type(problem_.type);
    change(k);
    if (problem_.op == Operator::all_gather_gemm && problem_.scales == Scales::tensor) k.span_shards = false;
    return k;
  }

  void add(const Knobs& k) {
    const auto same = [&](const plan::Candidate& c) { return c.strategy == Strategy::fused && c.knobs == k; };
    if (std::none_of(candidates_.begin(), candidates_.end(), same)) candidates_.push_back({Strategy::fused, k});
  }

  std::int64_t tiles_of(const Knobs& k) const { return fused_tiles(problem_, k); }

  const Problem& problem_;
  std::vector<plan::Candidate> candidates_;
};

void columns(Knobs& k, int group, int shift) {
  k.order = TileOrder::column_major;
  k.group = group;
  k.own_shift = shift;
}

auto in_columns(int group, int shift) {
  return [=](Knobs& k) { columns(k, group, shift); };
}

// Small shards come by stores, large ones by copy engines. B is read once if a column's tiles run together, which their
// shards' arrivals must allow.
void add_gathers(List& list, std::int64_t m, std::int64_t shard) {
  constexpr int first = 1 << 20;  // own tiles before all others
  const auto sliced = [](int slices, bool spanning = false) {
    return [=](Knobs& k) { columns(k, 8, 0), k.k_slices = slices, k.span_shards = spanning; };
  };
  const auto own_first = [](Knobs& k) { columns(k, 4, first), k.k_slices = 4; };
  const auto pushed = [](Knobs& k) { k.transport = Transport::push; };
  const auto pushed_narrow = [](int slices) {
    return [=](Knobs& k) { k.transport = Transport::push, k.group = 2, k.k_slices = slices; };
  };
  const auto pushed_own_first = [](Knobs& k) { k.transport = Transport::push, columns(k, 4, first); };
  if (m <= 64) return list.add({tiny, small, low, square1}, sliced(1, true)), list.add({small, low}, sliced(4, true));
  if (shard < 128) {
    list.add({narrow, square1, square, middle1, middle, oblong, low2, flat2}, sliced(1, true));
    return list.add({square, middle, oblong, low2, flat2}, sliced(4, true));
  }
  if (shard <= 256) {
    for (int slices : {1, 2, 4}) list.add({square, wide, middle, oblong}, sliced(slices));
    list.add({middle1}, sliced(2));
    list.add({middle1, wide1}, own_first);
    if (shard == 128) return;
    list.add({square, middle}, own_first), list.add({square, middle}, pushed_own_first);
    list.add({middle}, pushed_narrow(2));
    return list.add({square, middle}, pushed_narrow(1));
  }
  list.add({square, wide, middle}, pushed);
  list.add({square, wide}, [](Knobs& k) { k.transport = Transport::push, k.k_slices = 4; });
  for (const std::int64_t pieces : {2, 4})
    list.add({square, wide, middle}, [=](Knobs& k) {
      k.transport = Transport::push;
      k.comm_rows = base::ceil_div(base::ceil_div(shard, pieces), k.tile_m) * k.tile_m;
    });
  list.add({wide, middle}, pushed_narrow(1));
  list.add({square, wide, middle}, pushed_own_first);
  if (shard <= 512) list.add({square, middle}, own_first), list.add({middle}, sliced(4));
}

// Own tiles so many hundredths of a wave of tiles after the others, in whole columns. What peers multiply at the same
// time has then just arrived: a wave, and what stores and posts take.
auto behind(const Problem& p, std::int64_t hundredths) {
  constexpr int group = 8;
  const std::int64_t rows = std::min<std::int64_t>(base::ceil_div(p.m / p.ranks, square.tile_m), group),
                     columns = plan::usual_sms * hundredths / (100 * p.ranks * rows);
  return in_columns(group, static_cast<int>(std::max<std::int64_t>(columns, 1)));
}

// Own tiles some columns late, or after all others, let the peers' parts arrive: what a block waits for holds up its
// next tile, too. How late, and how many rows run together, depends on what stays in L2.
void add_scatters(List& list, const Problem& p, std::int64_t shard) {
  const bool exchange = plan::exchanges(p);
  const auto spanning = [&](Knobs& k) { k.span_shards = true, k.reducer = Reducer::tail; };
  if (shard < 128) {
    if (p.m <= 64) return list.add({tiny, small, low}, spanning);
    list.add({narrow, square1, square, oblong, low2, flat2}, spanning);
    if (shard == 64) list.add({small, low, low2, flat2}, in_columns(8, 0));
    return;
  }
  if (shard <= 256) {
    list.add({square, square1, wide, wide1, narrow}, in_columns(8, 0));
    if (exchange) return;
    list.add({square, wide}, [](Knobs& k) { columns(k, 8, 0), k.abreast = 2; });
    list.add({square1, wide1}, in_columns(8, 24)), list.add({square1}, behind(p, 122));
    if (shard == 128) return list.add({narrow}, [](Knobs&) {});
    list.add({square, wide}, in_columns(8, 24)), list.add({square}, [](Knobs&) {});
    return;
  }
  list.add({square}, [](Knobs&) {});
  if (exchange) {
    for (int group : {2, 4, 8}) list.add({square}, in_columns(group, 0));
    return list.add({square}, in_columns(8, 8)), list.add({wide}, in_columns(8, 0));
  }
  for (int group : {4, 8})
    for (int shift : {8, 16, 24}) list.add({square}, in_columns(group, shift));
  list.add({square}, in_columns(8, 40));
  list.add({square}, [](Knobs& k) { columns(k, 8, 8), k.abreast = 2; });
  list.add({wide}, in_columns(4, 8));
}

void add_reduces(List& list, const Problem& p) {
  const auto one_shot = [](Knobs& k) { k.one_shot = true, k.reducer = Reducer::tail; };
  if (p.m <= 64) list.add({tiny, small, low}, one_shot);
  if (p.m > 64 && p.m <= 256) list.add({narrow, square1, square, oblong, low2, flat2}, one_shot);
  if (p.m <= 64) return list.add({tiny, small, low}, in_columns(8, 0));
  if (p.m <= 512) list.add({narrow, square1, low, oblong, low2, flat2}, in_columns(8, 0));
  list.add({square}, in_columns(8, 0));
  if (p.m < 512) return;
  list.add({square}, [](Knobs&) {});
  list.add({square}, [](Knobs& k) { columns(k, 8, 0), k.abreast = 2; });
  for (int shift : {8, 24}) list.add({square}, in_columns(8, shift));
  for (int hundredths : {110, 122}) list.add({square}, behind(p, hundredths));
  list.add({square}, in_columns(4, 12));
  list.add({wide}, in_columns(4, 8));
}

// Few rows make few tiles.
void add_splits(List& list, const Problem& p, std::int64_t shard) {
  if (p.m > 512) return;
  const auto add = [&](auto&& change) {
    list.add_split({small, low, square1}, change);
    if (p.m <= 64) list.add_sharing({shared_small, shared_flat}, change);
    if (p.m > 64 && p.m <= 128) list.add_sharing({shared_narrow}, change);
  };
  if (p.op == Operator::gemm_all_reduce && p.ranks > 1 && p.m <= 256)
    add([](Knobs& k) { k.one_shot = true, k.reducer = Reducer::tail; });
  const bool spanning = p.op != Operator::gemm_all_reduce && p.ranks > 1 && shard < 128;
  add([&](Knobs& k) {
    columns(k, 8, 0);
    if (spanning) k.span_shards = true, k.reducer = Reducer::tail;
  });
}

}  // namespace

std::vector<plan::Candidate> gpu_candidates(const Problem& problem) {
  List list(problem);
  if (!has_kernel_tiles(problem.type, true)) return list.take();
  const std::int64_t shard = problem.m / problem.ranks;
  switch (problem.op) {
    case Operator::all_gather_gemm: add_gathers(list, problem.m, shard); break;
    case Operator::gemm_all_reduce: add_reduces(list, problem); break;
    default: add_scatters(list, problem, shard);
  }
  add_splits(list, problem, shard);
  return list.take();
}

}  // namespace imbrex::choose
