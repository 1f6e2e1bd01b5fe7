#include "execute/cuda/libraries/library_translate.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/work_on_gpu.hpp"
#include "plan/builder.hpp"

namespace imbrex::cuda {
namespace {

using base::index;

// A step before it has a place in the program. Steps of one lane, a queue that has tasks, run one after another; a lane
// becomes a stream.
struct Draft {
  LibraryStep step;
  std::set<std::pair<int, std::uint32_t>> waits;  // (signal, count)
  std::map<int, std::uint32_t> posts;             // by signal
  std::size_t lane = 0, place = 0;                // place: in its lane
  std::vector<std::size_t> after;                 // drafts that end before this one begins
  std::vector<std::size_t> seen;                  // by lane: steps that have ended when this one has
};

class LibraryTranslation {
 public:
  LibraryTranslation(const Plan& plan, int rank) : plan_(plan), rank_(rank) {}

  LibraryProgram run() {
    check_collectives();
    for (int q = 0; q < std::ssize(rank_plan().queues); ++q) draft_queue(q);
    link();
    order();
    if (in_turn()) unite_streams();
    return std::move(program_);
  }

 private:
  const RankPlan& rank_plan() const { return plan_.ranks[index(rank_)]; }
  const Buffer& buffer(const Region& r) const { return plan_.buffers[index(r.buffer)]; }
  std::string where(int q, std::size_t t) const { return task_name(plan_, rank_, q, t); }

  // A communicator runs collectives in the order of their launch, which must be one on all ranks that it joins.
  void check_collectives() const {
    struct Part {
      const Collective* work;
      std::string name;
    };
    const auto sequence = [&](int rank) {
      std::map<std::vector<int>, std::vector<Part>> parts;
      std::optional<int> with_collectives;  // the only queue that may have some
      const auto& queues_of_rank = plan_.ranks[index(rank)].queues;
      for (int q = 0; q < std::ssize(queues_of_rank); ++q) {
        const Queue& queue = queues_of_rank[index(q)];
        for (std::size_t t = 0; t < queue.tasks.size(); ++t) {
          const auto* collective = std::get_if<Collective>(&queue.tasks[t].work);
          if (collective == nullptr) continue;
          IMBREX_EXPECTS(with_collectives.value_or(q) == q,
                         "{}: the CUDA executor runs one queue with collectives a rank", task_name(plan_, rank, q, t));
          with_collectives = q;
          const Collective& work = *collective;
          IMBREX_EXPECTS(work.backend == Backend::nccl || work.ranks.empty(),
                         "{}: Imbrex' own collectives join all ranks; NCCL's (backend nccl) some of them",
                         task_name(plan_, rank, q, t));
          IMBREX_EXPECTS(work.backend == Backend::nccl || buffer(work.from).type != Type::e4m3,
                         "{}: Imbrex' own collectives do not take e4m3 yet; NCCL's do (backend nccl)",
                         task_name(plan_, rank, q, t));
          IMBREX_EXPECTS(work.backend == Backend::nccl || work.kind != CollectiveKind::send_receive,
                         "{}: no kernel of Imbrex' own is a send_receive; NCCL has it (backend nccl)",
                         task_name(plan_, rank, q, t));
          parts[ranks_of(work, plan_)].push_back({&work, task_name(plan_, rank, q, t)});
        }
      }
      return parts;
    };
    std::map<int, std::map<std::vector<int>, std::vector<Part>>> others;
    for (const auto& [ranks, own] : sequence(rank_)) {
      const auto [other, fresh] = others.try_emplace(ranks.front());
      if (fresh) other->second = sequence(ranks.front());
      const std::vector<Part>& first = other->second.at(ranks);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const Collective &mine = *own[i].work, &theirs = *first[i].work;
        IMBREX_EXPECTS(mine.group == theirs.group && buffer(mine.from).type == buffer(theirs.from).type,
                       "{}: collective {} of {} stands where rank {} has {} of {}; a library needs one order and type "
                       "on all ranks",
                       own[i].name, mine.group, name_of(buffer(mine.from).type), ranks.front(), theirs.group,
                       name_of(buffer(theirs.from).type));
      }
    }
  }

  void check_own(const Region& r, const char* what, int q, std::size_t t) const {
    IMBREX_EXPECTS(r.rank == rank_, "{}: {} is on rank {}; with library collectives, tasks stay on their rank",
                   where(q, t), what, r.rank);
  }

  void draft_queue(int q) {
    const Queue& queue = rank_plan().queues[index(q)];
    if (queue.tasks.empty()) return;
    IMBREX_EXPECTS(queue.engine != Engine::compute, "{}: with library queues, the CUDA executor runs no compute queues",
                   where(q, 0));
    lanes_.emplace_back();
    for (std::size_t t = 0; t < queue.tasks.size(); ++t) {
      const Task& task = queue.tasks[t];
      Draft draft;
      if (const auto* product = std::get_if<Product>(&task.work))
        draft.step.work = checked(*product, q, t);
      else if (const auto* collective = std::get_if<Collective>(&task.work))
        draft.step.work = *collective;
      else if (const auto* transfer = std::get_if<Transfer>(&task.work))
        draft.step.work = checked(*transfer, q, t);
      else if (const auto* block = std::get_if<Block>(&task.work))
        draft.step.work = checked(*block, q, t);
      else
        draft.step.work = checked(std::get<Reduction>(task.work), q, t);
      add(std::move(draft), q, t);
    }
  }

  const Transfer& checked(const Transfer& transfer, int q, std::size_t t) const {
    if (transfer.from.empty()) return transfer;
    check_own(transfer.from, "the source", q, t);
    check_own(transfer.to, "the destination", q, t);
    return transfer;
  }

  const Reduction& checked(const Reduction& reduction, int q, std::size_t t) const {
    for (const Region& from : reduction.from) check_own(from, "a source", q, t);
    for (const Region& to : reduction.to) check_own(to, "a destination", q, t);
    IMBREX_EXPECTS(reduction.from.size() + reduction.to.size() <= most_move_regions,
                   "{}: {} sources and {} destinations; the CUDA executor takes {} together", where(q, t),
                   reduction.from.size(), reduction.to.size(), most_move_regions);
    const Region& shape = reduction.from.front();
    IMBREX_EXPECTS(shape.cols < std::int64_t{1} << 31 && shape.rows <= (std::int64_t{1} << 31) / ((shape.cols + 7) / 8),
                   "{}: {} x {} elements are more than one sum takes", where(q, t), shape.rows, shape.cols);
    return reduction;
  }

  const Block& checked(const Block& block, int q, std::size_t t) const {
    const std::string refusal = refusal_of_block(plan_, rank_, block);
    IMBREX_EXPECTS(refusal.empty(), "{}: {}", where(q, t), refusal);
    for (const Store& store : block.stores) {
      check_own(store.to, "a store", q, t);
      IMBREX_EXPECTS(buffer(store.to).role == BufferRole::workspace,
                     "{}: stores to {}; library queues compute blocks into workspaces only", where(q, t),
                     buffer(store.to).name);
    }
    return block;
  }

  const Product& checked(const Product& product, int q, std::size_t t) const {
    const std::string bias = refusal_of_library_bias(plan_.problem);
    IMBREX_EXPECTS(product.bias.empty() || bias.empty(), "{}: {}", where(q, t), bias);
    const Type to = buffer(product.to).type, result = output_type(plan_.problem.type);
    IMBREX_EXPECTS(to == result || to == Type::fp32, "{}: cuBLASLt does not store products of {} as {}", where(q, t),
                   name_of(plan_.problem.type), name_of(to));
    IMBREX_EXPECTS(product.bias.empty() || to == result, "{}: cuBLASLt adds a bias of {} to results of {} only",
                   where(q, t), name_of(result), name_of(result));
    return product;
  }

  void add(Draft draft, int q, std::size_t t) {
    const Task& task = rank_plan().queues[index(q)].tasks[t];
    for (const Wait& wait : task.waits) draft.waits.insert({wait.signal, wait.count});
    for (const Post& post : task.posts) {
      IMBREX_EXPECTS(post.rank == rank_, "{}: posts to rank {}; with library collectives, signals stay on a rank",
                     where(q, t), post.rank);
      ++draft.posts[post.signal];
    }
    draft.lane = lanes_.size() - 1;
    draft.step.queue = q;
    draft.step.task = t;
    draft.place = lanes_.back().size();
    lanes_.back().push_back(drafts_.size());
    drafts_.push_back(std::move(draft));
  }

  // From signals to steps. Posts of one lane arrive in its order; those of several are sure to have come when all have.
  void link() {
    std::vector<std::vector<std::size_t>> posters(index(rank_plan().signals));
    for (std::size_t d = 0; d < drafts_.size(); ++d)
      for (const auto& [signal, count] : drafts_[d].posts) posters[index(signal)].push_back(d);
    for (Draft& draft : drafts_)
      for (const auto& [signal, count] : draft.waits) {
        const auto& all = posters[index(signal)];
        const auto posts = [&, signal = signal](std::uint64_t sum, std::size_t d) {
          return sum + drafts_[d].posts.at(signal);
        };
        const std::uint64_t total = std::accumulate(all.begin(), all.end(), std::uint64_t{0}, posts);
        IMBREX_EXPECTS(count <= total, "{}: waits for {} posts to signal {}, which receives {}",
                       where(draft.step.queue, draft.step.task), count, signal, total);
        const bool one_lane = std::all_of(all.begin(), all.end(),
                                          [&](std::size_t d) { return drafts_[d].lane == drafts_[all.front()].lane; });
        IMBREX_EXPECTS(count == total || one_lane,
                       "{}: waits for {} of {} posts to signal {} that come from several queues; the CUDA executor "
                       "waits for all of them, or for those of one queue",
                       where(draft.step.queue, draft.step.task), count, total, signal);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < all.size() && sum < count; ++i) {
          sum = posts(sum, all[i]);
          draft.after.push_back(all[i]);
        }
      }
  }

  // Launches steps lane by lane in turn, each after what it waits for: an event counts only once it is recorded, and
  // where the driver has one queue for all streams, nothing may stand before what it waits for.
  void order() {
    number_streams();
    const std::size_t lanes = lanes_.size();
    program_.forked.assign(std::max<std::size_t>(lanes, 1), false);
    std::vector<std::size_t> heads(lanes);
    std::vector<std::vector<std::size_t>> seen(lanes, std::vector<std::size_t>(lanes));
    places_.assign(drafts_.size(), drafts_.size());
    while (program_.steps.size() < drafts_.size()) {
      const std::size_t before = program_.steps.size();
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (heads[lane] == lanes_[lane].size()) continue;
        const std::size_t d = lanes_[lane][heads[lane]];
        if (std::any_of(drafts_[d].after.begin(), drafts_[d].after.end(),
                        [&](std::size_t p) { return places_[p] == drafts_.size(); }))
          continue;
        launch(d, seen[lane]);
        ++heads[lane];
      }
      if (program_.steps.size() > before) continue;
      for (std::size_t lane = 0; lane < lanes; ++lane)
        if (heads[lane] < lanes_[lane].size()) {
          const LibraryStep& step = drafts_[lanes_[lane][heads[lane]]].step;
          throw Error(ErrorCode::invalid_input,
                      fmt::format("{}: waits for posts of tasks that come after it", where(step.queue, step.task)));
        }
    }
    // The last steps first: what they waited for needs no wait of its own.
    std::vector<std::size_t> last;
    for (std::size_t lane = 0; lane < lanes; ++lane)
      if (!lanes_[lane].empty()) last.push_back(lanes_[lane].back());
    std::sort(last.begin(), last.end(), [&](std::size_t x, std::size_t y) { return places_[x] > places_[y]; });
    for (const std::size_t d : last) await(d, main_, seen[main_], program_.ends);
  }

  // Stream 0 is that of the first lane with products, which need no event where nothing else runs concurrently.
  void number_streams() {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      if (std::any_of(lanes_[lane].begin(), lanes_[lane].end(),
                      [&](std::size_t d) { return std::holds_alternative<Product>(drafts_[d].step.work); })) {
        main_ = lane;
        return;
      }
  }
  std::size_t stream_of(std::size_t lane) const { return lane == main_ ? 0 : lane < main_ ? lane + 1 : lane; }

  // Makes `lane`, which has `seen` so many steps of every lane end, wait for a draft, unless it has.
  void await(std::size_t d, std::size_t lane, std::vector<std::size_t>& seen, std::vector<std::size_t>& waits) {
    const Draft& other = drafts_[d];
    if (other.lane == lane || seen[other.lane] > other.place) return;
    waits.push_back(places_[d]);
    program_.steps[places_[d]].awaited = true;
    for (std::size_t l = 0; l < seen.size(); ++l) seen[l] = std::max(seen[l], other.seen[l]);
  }

  void launch(std::size_t d, std::vector<std::size_t>& seen) {
    Draft& draft = drafts_[d];
    std::sort(draft.after.begin(), draft.after.end(),
              [&](std::size_t x, std::size_t y) { return places_[x] > places_[y]; });
    for (const std::size_t p : draft.after) await(p, draft.lane, seen, draft.step.waits);
    seen[draft.lane] = draft.place + 1;
    draft.seen = seen;
    draft.step.stream = stream_of(draft.lane);
    if (draft.place == 0 && draft.lane != main_ && draft.step.waits.empty()) program_.forked[draft.step.stream] = true;
    places_[d] = program_.steps.size();
    order_.push_back(d);
    program_.steps.push_back(draft.step);
  }

  // Whether every step begins after the one before it has ended, so that nothing is gained by several streams.
  bool in_turn() const {
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const Draft &before = drafts_[order_[i - 1]], &step = drafts_[order_[i]];
      if (step.seen[before.lane] <= before.place) return false;
    }
    return true;
  }

  void unite_streams() {
    for (LibraryStep& step : program_.steps) {
      step.stream = 0;
      step.waits.clear();
      step.awaited = false;
    }
    program_.ends.clear();
    program_.forked = {false};
  }

  const Plan& plan_;
  int rank_;
  std::vector<Draft> drafts_;
  std::vector<std::vector<std::size_t>> lanes_;  // drafts
  std::size_t main_ = 0;                         // lane of stream 0
  std::vector<std::size_t> places_, order_;      // by draft: its step; the drafts in that order
  LibraryProgram program_;
};

}  // namespace

bool runs_by_libraries(const Plan& plan) {
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      if (queue.engine == Engine::library && !queue.tasks.empty()) return true;
  return false;
}

LibraryProgram library_program(const Plan& plan, int rank) { return LibraryTranslation(plan, rank).run(); }

}  // namespace imbrex::cuda
