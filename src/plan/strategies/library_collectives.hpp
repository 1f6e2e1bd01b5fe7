// The library collectives of a plan: one over all ranks for each chunk or, where the ranks lie on several nodes, a few
// over the ranks of a node and over those with the same place in their nodes, so that each row crosses between nodes
// once. The stages' operands lie so that none of them needs a copy to put it in order:
//   all_gather      across, of one's own rows; then inside, for the rows of one node after another's
//   reduce_scatter  inside, for the rows of one node after another's; then across, of the nodes' sums
//   all_reduce      as both: reduce_scatter inside, all_reduce across of each rank's part, all_gather inside
//   all_to_all      inside, for the ranks of one node after another: to the rank with the receiver's place here; then
//                   across. So a rank sends one message to each other node, and as many bytes as its peers here
#pragma once

#include <vector>

#include "plan/builder.hpp"

namespace imbrex::plan {

/// The collective that follows the operator's product; not of all_gather_gemm, whose comes before.
CollectiveKind collective_behind(Operator op);

/// The stages that a chunk's collective has at most where ranks lie on so many nodes.
std::int64_t most_stages(int nodes);

/// The buffer that a library gathers a rank's A from: A itself, or, where A's rows have gaps, a new workspace.
int shard_to_gather(Builder& b);
/// Before the collective that gathers these rows from `shard`, on its queue: copies them there, unless A is there.
void bring_shard(Builder& b, int rank, int library, int shard, const Range& rows);

class LibraryCollectives {
 public:
  /// On queue `library`, for operands as wide and of the type as the buffer `like`; `rows`: of one rank's part, by
  /// chunk. Between stages, data lie in a workspace named `staged`; the chunks count from `first_chunk` among all
  /// collectives of the plan.
  LibraryCollectives(Builder& b, int library, CollectiveKind kind, int like, const std::vector<std::int64_t>& rows,
                     const char* staged, int first_chunk = 0);

  /// This rank's part for a chunk, with regions as Collective has them; called chunk by chunk. The first task waits,
  /// the last one posts.
  void add(int rank, std::size_t chunk, const Region& from, const Region& to, std::vector<Wait> waits,
           std::vector<Post> posts);

  /// The first number that none of the collectives of so many chunks has.
  int next_group(std::int64_t chunks) const;

 private:
  struct Stage;

  // Without nodes to tell apart, or with one rank on each, there is nothing to do in stages.
  bool flat() const { return nodes_ == 1 || places_ == 1; }
  std::vector<int> joined(int rank, bool inside) const;
  std::vector<Stage> stages(int rank, std::size_t chunk, const Region& from, const Region& to) const;

  Builder& b_;
  int library_, nodes_, places_;  // places: ranks on a node
  CollectiveKind kind_;
  int first_chunk_;
  std::vector<std::int64_t> first_rows_;  // of the stages' workspaces, by chunk
  int staged_ = 0, sums_ = 0;
};

}  // namespace imbrex::plan
