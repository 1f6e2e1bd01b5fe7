#include "execute/mutate.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "imbrex/error.hpp"

namespace imbrex::test {
namespace {

struct Place {
  int rank = 0, queue = 0;
  std::size_t task = 0;
};

std::vector<Place> places(const Plan& plan, const std::function<bool(const Task&)>& fits) {
  std::vector<Place> found;
  for (int r = 0; r < plan.problem.ranks; ++r)
    for (int q = 0; q < std::ssize(plan.ranks[static_cast<std::size_t>(r)].queues); ++q) {
      const auto& tasks = plan.ranks[static_cast<std::size_t>(r)].queues[static_cast<std::size_t>(q)].tasks;
      for (std::size_t t = 0; t < tasks.size(); ++t)
        if (fits(tasks[t])) found.push_back({r, q, t});
    }
  return found;
}

Task& at(Plan& plan, const Place& p) {
  return plan.ranks[static_cast<std::size_t>(p.rank)].queues[static_cast<std::size_t>(p.queue)].tasks[p.task];
}

template <typename T>
std::size_t pick(Random& random, const std::vector<T>& items) {
  return static_cast<std::size_t>(random.between(0, std::ssize(items) - 1));
}

std::vector<Region*> regions_of(Task& task) {
  std::vector<Region*> regions;
  if (auto* tile = std::get_if<Tile>(&task.work)) {
    regions = {&tile->a, &tile->b};
    for (Region& r : tile->adds) regions.push_back(&r);
    for (Store& s : tile->stores) regions.push_back(&s.to);
  } else if (auto* transfer = std::get_if<Transfer>(&task.work)) {
    if (!transfer->from.empty()) regions = {&transfer->from, &transfer->to};
  } else if (auto* reduction = std::get_if<Reduction>(&task.work)) {
    for (Region& r : reduction->from) regions.push_back(&r);
    for (Region& r : reduction->to) regions.push_back(&r);
  } else if (auto* collective = std::get_if<Collective>(&task.work)) {
    regions = {&collective->from, &collective->to};
  } else if (auto* block = std::get_if<Block>(&task.work)) {
    for (Region& r : block->reads) regions.push_back(&r);
    for (Store& s : block->stores) regions.push_back(&s.to);
  } else {
    auto& product = std::get<Product>(task.work);
    regions = {&product.a, &product.b, &product.to};
    if (!product.bias.empty()) regions.push_back(&product.bias);
    if (!product.a_scale.empty()) regions.push_back(&product.a_scale);
  }
  return regions;
}

// A task that has regions, and which of them it is.
std::optional<std::pair<Place, std::size_t>> pick_region(Plan& plan, Random& random) {
  const auto where = places(plan, [](const Task& t) {
    Task copy = t;
    return !regions_of(copy).empty();
  });
  if (where.empty()) return std::nullopt;
  const Place p = where[pick(random, where)];
  return std::pair(p, pick(random, regions_of(at(plan, p))));
}

std::optional<std::string> shift_region(Plan& plan, Random& random) {
  const auto picked = pick_region(plan, random);
  if (!picked) return std::nullopt;
  const auto& [p, which] = *picked;
  Region& r = *regions_of(at(plan, p))[which];
  const Buffer& b = plan.buffers[static_cast<std::size_t>(r.buffer)];
  // Inside the buffer where there is room, so that more than the bounds check is tried.
  const std::int64_t row_room = b.rows - r.rows, col_room = b.cols - r.cols;
  const Region before = r;
  if (row_room > 0 && (col_room == 0 || random.chance(0.6)))
    r.row = random.between(0, row_room);
  else if (col_room > 0)
    r.col = random.between(0, col_room);
  else
    r.rank = static_cast<int>(random.between(0, plan.problem.ranks - 1));
  if (r == before) return std::nullopt;
  return fmt::format("{} region {} of {}: rank {} row {} col {} -> rank {} row {} col {}",
                     task_name(plan, p.rank, p.queue, p.task), which, b.name, before.rank, before.row, before.col,
                     r.rank, r.row, r.col);
}

// The other buffer has the same type, and room for the region where it is.
std::optional<std::string> change_buffer(Plan& plan, Random& random) {
  const auto picked = pick_region(plan, random);
  if (!picked) return std::nullopt;
  const auto& [p, which] = *picked;
  Region& r = *regions_of(at(plan, p))[which];
  const auto buffer = [&](int i) -> const Buffer& { return plan.buffers[static_cast<std::size_t>(i)]; };
  std::vector<int> others;
  for (int i = 0; i < std::ssize(plan.buffers); ++i)
    if (i != r.buffer && buffer(i).type == buffer(r.buffer).type && buffer(i).layout == buffer(r.buffer).layout &&
        r.row + r.rows <= buffer(i).rows && r.col + r.cols <= buffer(i).cols)
      others.push_back(i);
  if (others.empty()) return std::nullopt;
  const int before = std::exchange(r.buffer, others[pick(random, others)]);
  return fmt::format("{} from buffer {} to {}", task_name(plan, p.rank, p.queue, p.task), buffer(before).name,
                     buffer(r.buffer).name);
}

std::optional<std::string> swap_tasks(Plan& plan, Random& random) {
  const auto where = places(plan, [](const Task&) { return true; });
  const Place x = where[pick(random, where)], y = where[pick(random, where)];
  if (at(plan, x) == at(plan, y)) return std::nullopt;
  // Mostly within one queue, which only changes the order; else the tasks change places between queues or ranks.
  if ((x.rank != y.rank || x.queue != y.queue) && random.chance(0.7)) return std::nullopt;
  std::swap(at(plan, x), at(plan, y));
  return fmt::format("{} with {}", task_name(plan, x.rank, x.queue, x.task), task_name(plan, y.rank, y.queue, y.task));
}

// All ranks send where they received from; with two ranks that is the same.
std::optional<std::string> turn_exchange(Plan& plan, Random& random) {
  const auto is_exchange = [](const Task& task) {
    const auto* c = std::get_if<Collective>(&task.work);
    return c != nullptr && c->send_to != c->receive_from;
  };
  const auto where = places(plan, is_exchange);
  if (where.empty()) return std::nullopt;
  const Place picked = where[pick(random, where)];
  const int group = std::get<Collective>(at(plan, picked).work).group;
  for (const Place& p : where)
    if (auto& c = std::get<Collective>(at(plan, p).work); c.group == group) std::swap(c.send_to, c.receive_from);
  return fmt::format("{} and its group", task_name(plan, picked.rank, picked.queue, picked.task));
}

}  // namespace

std::string name_of(Mutation mutation) {
  constexpr const char* names[] = {"drop_post",    "double_post",   "lower_wait",   "redirect_wait", "swap_tasks",
                                   "shift_region", "shrink_buffer", "break_parity", "other_buffer",  "turn_exchange"};
  return names[static_cast<int>(mutation)];
}

std::optional<std::string> mutate(Plan& plan, Mutation mutation, Random& random) {
  switch (mutation) {
    case Mutation::drop_post:
    case Mutation::double_post: {
      const auto where = places(plan, [](const Task& t) { return !t.posts.empty(); });
      if (where.empty()) return std::nullopt;
      const Place p = where[pick(random, where)];
      auto& posts = at(plan, p).posts;
      const std::size_t i = pick(random, posts);
      const Post post = posts[i];
      if (mutation == Mutation::drop_post)
        posts.erase(posts.begin() + static_cast<std::ptrdiff_t>(i));
      else
        posts.push_back(post);
      return fmt::format("{} post to signal {} of rank {}", task_name(plan, p.rank, p.queue, p.task), post.signal,
                         post.rank);
    }
    case Mutation::lower_wait:
    case Mutation::redirect_wait: {
      const auto where = places(plan, [](const Task& t) { return !t.waits.empty(); });
      if (where.empty()) return std::nullopt;
      const Place p = where[pick(random, where)];
      auto& waits = at(plan, p).waits;
      const std::size_t i = pick(random, waits);
      const Wait wait = waits[i];
      if (mutation == Mutation::redirect_wait) {
        waits[i].signal = static_cast<int>(random.between(0, plan.ranks[static_cast<std::size_t>(p.rank)].signals - 1));
        if (waits[i].signal == wait.signal) return std::nullopt;
      } else if (--waits[i].count == 0) {
        waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(i));
      }
      return fmt::format("{} wait for {} of signal {}", task_name(plan, p.rank, p.queue, p.task), wait.count,
                         wait.signal);
    }
    case Mutation::swap_tasks: return swap_tasks(plan, random);
    case Mutation::shift_region: return shift_region(plan, random);
    case Mutation::other_buffer: return change_buffer(plan, random);
    case Mutation::turn_exchange: return turn_exchange(plan, random);
    case Mutation::shrink_buffer: {
      const std::size_t i = pick(random, plan.buffers);
      Buffer& b = plan.buffers[i];
      if (random.chance(0.5))
        b.rows -= random.between(1, b.rows);
      else
        b.cols -= random.between(1, b.cols);
      return fmt::format("buffer {} to {} x {}", b.name, b.rows, b.cols);
    }
    case Mutation::break_parity: {
      std::vector<std::size_t> doubled;
      for (std::size_t i = 0; i < plan.buffers.size(); ++i)
        if (plan.buffers[i].copies == 2) doubled.push_back(i);
      if (doubled.empty() || random.chance(0.4)) {
        plan.signal_copies = 1;
        return "signal_copies to 1";
      }
      const std::size_t i = doubled[pick(random, doubled)];
      plan.buffers[i].copies = 1;
      return fmt::format("buffer {} to one copy", plan.buffers[i].name);
    }
  }
  return std::nullopt;
}

int run_ranks_of(const Plan& plan, double wait_limit, const std::function<int(World&)>& rank) {
  const WorldOptions world{.heap_bytes = 1 << 24, .wait_limit = wait_limit};
  return run_threads(plan.problem.ranks, world, [&](World& w) {
    try {
      return rank(w);
    } catch (const Error& error) {
      return static_cast<int>(error.code());
    }
  });
}

CpuOptions mutant_options(std::uint64_t seed) {
  CpuOptions options{.workers = 2};
  options.testing.delays = seed;
  options.testing.max_delay = 1e-3;
  return options;
}

// Sanitizers would report what refuted plans do: they race, and copy over what they copy from. What the checker lets
// pass must do neither.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

void expect_harmful_refuted(int mutants, int share, const std::function<Plan(Random&, int)>& draw,
                            const std::function<int(const Plan&, const CpuOptions&, double)>& run) {
  const std::uint64_t seed = seed_from_environment();
  int made = 0, harmful = 0, missed = 0;
  for (int i = 0; made < mutants; ++i) {
    Random random(seed * 1000003 + static_cast<std::uint64_t>(i));
    Plan plan = draw(random, i);
    if (plan.problem.ranks == 1) continue;
    const auto kind = static_cast<Mutation>(random.between(0, mutation_kinds - 1));
    const auto where = mutate(plan, kind, random);
    if (!where || check_format(plan)) continue;
    ++made;
    const CpuOptions options = mutant_options(seed + static_cast<std::uint64_t>(i) + 1);
    const bool refuted = check(plan).has_value();
    if (sanitized && refuted) continue;
    int code = run(plan, options, 0.15);
    if (code != 0 && !refuted) code = run(plan, options, 10);  // a busy machine can make a sound plan look stuck
    harmful += code != 0;
    if (code != 0 && !refuted) {
      ++missed;
      fmt::print("missed: {} {} in {}\n", name_of(kind), *where, to_json(plan));
    }
  }
  fmt::print("{} mutants, {} harmful\n", made, harmful);
  if (!sanitized) {
    EXPECT_GT(harmful, made / share);
  }
  EXPECT_EQ(missed, 0);
}

}  // namespace imbrex::test
