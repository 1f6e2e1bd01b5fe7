#include "execute/layout.hpp"

#include <algorithm>
#include <set>

namespace imbrex {
namespace {

constexpr std::size_t alignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

template <typename F>
void for_each_region(const Task& task, F&& f) {
  if (const auto* tile = std::get_if<Tile>(&task.work)) {
    f(tile->a), f(tile->b);
    for (const Region& r : tile->adds) f(r);
    for (const Store& s : tile->stores) f(s.to);
  } else if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
    if (!transfer->from.empty()) f(transfer->from), f(transfer->to);
  } else if (const auto* reduction = std::get_if<Reduction>(&task.work)) {
    for (const Region& r : reduction->from) f(r);
    for (const Region& r : reduction->to) f(r);
  }
}

}  // namespace

std::vector<int> collective_groups(const Plan& plan) {
  std::set<int> groups;
  for (const Queue& queue : plan.ranks.front().queues)
    for (const Task& task : queue.tasks)
      if (const auto* collective = std::get_if<Collective>(&task.work)) groups.insert(collective->group);
  return {groups.begin(), groups.end()};
}

HeapLayout::HeapLayout(const Plan& plan) : signal_copies_(static_cast<std::uint64_t>(plan.signal_copies)) {
  const std::size_t groups = collective_groups(plan).size();
  std::vector<bool> shared(plan.buffers.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    signals_.push_back(plan.ranks[rank].signals);
    posts_.emplace_back(static_cast<std::size_t>(plan.ranks[rank].signals) + 2 * groups);
    // A group's counters receive one post from every rank.
    std::fill(posts_.back().end() - static_cast<std::ptrdiff_t>(2 * groups), posts_.back().end(),
              static_cast<std::uint32_t>(plan.ranks.size()));
    most_signals_ = std::max(most_signals_, posts_.back().size());
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const Queue& queue : plan.ranks[rank].queues)
      for (const Task& task : queue.tasks) {
        for (const Post& post : task.posts)
          ++posts_[static_cast<std::size_t>(post.rank)][static_cast<std::size_t>(post.signal)];
        for_each_region(task, [&](const Region& r) {
          if (r.rank != static_cast<int>(rank)) shared[static_cast<std::size_t>(r.buffer)] = true;
        });
        // Peers read a collective's source.
        if (const auto* collective = std::get_if<Collective>(&task.work))
          shared[static_cast<std::size_t>(collective->from.buffer)] = true;
      }
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    Place place;
    if (buffer.role == BufferRole::workspace || shared[b]) {
      place = {bytes_, aligned(static_cast<std::size_t>(buffer.rows * buffer.cols) * size_of(buffer.type)),
               buffer.copies};
      bytes_ += place.stride * static_cast<std::size_t>(place.copies);
    }
    places_.push_back(place);
  }
  counters_ = bytes_;
  bytes_ += aligned(most_signals_ * signal_copies_ * counter_stride);
  bytes_ = std::max(bytes_, alignment);
}

}  // namespace imbrex
