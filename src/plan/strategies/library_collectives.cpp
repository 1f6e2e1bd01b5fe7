#include "plan/strategies/library_collectives.hpp"

#include <algorithm>

#include "base/narrow.hpp"

namespace imbrex::plan {

CollectiveKind collective_behind(Operator op) {
  return op == Operator::gemm_reduce_scatter ? CollectiveKind::reduce_scatter
         : op == Operator::gemm_all_reduce   ? CollectiveKind::all_reduce
                                             : CollectiveKind::all_to_all;
}

std::int64_t most_stages(int nodes) { return nodes == 1 ? 1 : std::max(nodes + 1, 5); }

int shard_to_gather(Builder& b) {
  if (!b.has_gaps(buffer_a)) return buffer_a;
  return b.workspace("shard", Layout::row_major, b.problem().type, b.shapes().a.rows, b.shapes().a.cols, 1);
}

void bring_shard(Builder& b, int rank, int library, int shard, const Range& rows) {
  if (shard == buffer_a) return;
  b.add(rank, library,
        {Transfer{b.rows_of(rank, buffer_a, rows.begin, rows.size), b.rows_of(rank, shard, rows.begin, rows.size)},
         {},
         {}});
}

struct LibraryCollectives::Stage {
  CollectiveKind kind;
  bool inside;  // a node; else across nodes
  Region from, to;
};

LibraryCollectives::LibraryCollectives(Builder& b, int library, CollectiveKind kind, int like,
                                       const std::vector<std::int64_t>& rows, const char* staged, int first_chunk)
    : b_(b),
      library_(library),
      nodes_(b.knobs().nodes),
      places_(b.ranks() / nodes_),
      kind_(kind),
      first_chunk_(first_chunk) {
  if (flat()) return;
  // What a rank holds between the stages.
  std::int64_t total = 0;
  for (const std::int64_t h : rows) {
    first_rows_.push_back(total);
    total += kind == CollectiveKind::all_reduce   ? h / places_ + h % places_
             : kind == CollectiveKind::all_to_all ? h * b.ranks()
                                                  : h * nodes_;
  }
  const Buffer buffer = b.buffer(like);
  const auto workspace = [&](const char* name) {
    return b.workspace(name, Layout::row_major, buffer.type, total, buffer.cols, 1);
  };
  staged_ = workspace(staged);
  if (kind == CollectiveKind::all_reduce) sums_ = workspace("sums");
}

// The ranks of a node follow each other.
std::vector<int> LibraryCollectives::joined(int rank, bool inside) const {
  std::vector<int> ranks;
  for (int i = 0; i < (inside ? places_ : nodes_); ++i)
    ranks.push_back(inside ? rank / places_ * places_ + i : i * places_ + rank % places_);
  return ranks;
}

std::vector<LibraryCollectives::Stage> LibraryCollectives::stages(int rank, std::size_t chunk, const Region& from,
                                                                  const Region& to) const {
  const auto rows = [](Region region, std::int64_t row, std::int64_t count) {
    region.row += row;
    region.rows = count;
    return region;
  };
  const auto between = [&](int buffer, std::int64_t row, std::int64_t count) {
    return b_.rows_of(rank, buffer, first_rows_[chunk] + row, count);
  };
  std::vector<Stage> stages;
  switch (kind_) {
    case CollectiveKind::all_gather: {
      const std::int64_t h = from.rows;
      stages.push_back({CollectiveKind::all_gather, false, from, between(staged_, 0, nodes_ * h)});
      for (int node = 0; node < nodes_; ++node)
        stages.push_back({CollectiveKind::all_gather, true, between(staged_, node * h, h),
                          rows(to, node * places_ * h, places_ * h)});
      break;
    }
    case CollectiveKind::reduce_scatter: {
      const std::int64_t h = to.rows;
      for (int node = 0; node < nodes_; ++node)
        stages.push_back({CollectiveKind::reduce_scatter, true, rows(from, node * places_ * h, places_ * h),
                          between(staged_, node * h, h)});
      stages.push_back({CollectiveKind::reduce_scatter, false, between(staged_, 0, nodes_ * h), to});
      break;
    }
    case CollectiveKind::all_reduce: {
      const std::int64_t part = from.rows / places_, rest = from.rows % places_, even = part * places_;
      if (part > 0) {
        const Region own = between(staged_, 0, part), sum = between(sums_, 0, part);
        stages.push_back({CollectiveKind::reduce_scatter, true, rows(from, 0, even), own});
        stages.push_back({CollectiveKind::all_reduce, false, own, sum});
        stages.push_back({CollectiveKind::all_gather, true, sum, rows(to, 0, even)});
      }
      // Rows that do not divide by the ranks of a node are fewer than these, and cross from each of them.
      if (rest > 0) {
        const Region own = between(staged_, part, rest);
        stages.push_back({CollectiveKind::all_reduce, true, rows(from, even, rest), own});
        stages.push_back({CollectiveKind::all_reduce, false, own, rows(to, even, rest)});
      }
      break;
    }
    case CollectiveKind::all_to_all: {
      const std::int64_t of_node = from.rows / nodes_;
      for (int node = 0; node < nodes_; ++node)
        stages.push_back({CollectiveKind::all_to_all, true, rows(from, node * of_node, of_node),
                          between(staged_, node * of_node, of_node)});
      stages.push_back({CollectiveKind::all_to_all, false, between(staged_, 0, from.rows), to});
      break;
    }
    case CollectiveKind::send_receive: break;  // joins two ranks each, which lie where they lie
  }
  return stages;
}

int LibraryCollectives::next_group(std::int64_t chunks) const {
  const std::int64_t a_chunk = flat() ? 1 : most_stages(nodes_) * std::max(nodes_, places_);
  return base::narrow<int>((first_chunk_ + chunks) * a_chunk, "collectives");
}

void LibraryCollectives::add(int rank, std::size_t chunk, const Region& from, const Region& to, std::vector<Wait> waits,
                             std::vector<Post> posts) {
  const int number = base::narrow<int>(static_cast<std::size_t>(first_chunk_) + chunk, "collectives");
  if (flat()) {
    Collective collective{kind_, number, from, to};
    // Kernels of our own know the whole world only, so stages are NCCL's.
    if (b_.knobs().transport == Transport::store || b_.knobs().codec) collective.backend = Backend::imbrex;
    collective.codec = b_.knobs().codec;
    b_.add(rank, library_, {std::move(collective), std::move(waits), std::move(posts)});
    return;
  }
  const auto all = stages(rank, chunk, from, to);
  // Numbers that no other chunk, stage, node or place has.
  const std::int64_t first = number * most_stages(nodes_);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Stage& s = all[i];
    const std::int64_t group = (first + static_cast<std::int64_t>(i)) * std::max(nodes_, places_) +
                               (s.inside ? rank / places_ : rank % places_);
    Task task{
        Collective{
            s.kind, base::narrow<int>(group, "collectives"), s.from, s.to, joined(rank, s.inside), Backend::nccl, {}},
        {},
        {}};
    if (i == 0) task.waits = waits;
    if (i + 1 == all.size()) task.posts = posts;
    b_.add(rank, library_, std::move(task));
  }
}

}  // namespace imbrex::plan
