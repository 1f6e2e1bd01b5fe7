#include "choose/signaled_times.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "choose/cost_model.hpp"
#include "machine/rates.hpp"
#include "plan/problem.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex::choose {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t parts_of(const Problem& problem) { return problem.op == Operator::gemm_all_reduce ? 1 : problem.ranks; }

// Rows of every rank's part.
std::int64_t part_rows(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  return problem.op == Operator::all_gather_gemm ? shapes.a.rows : shapes.product.rows / parts_of(problem);
}

// What a unit is, and how much of the whole some are.
struct Units {
  std::int64_t count = 0, tiles_each = 0, total_rows = 0, rows_each = 0;

  double share(std::int64_t first, std::int64_t number) const {
    const std::int64_t begin = std::min(first * rows_each, total_rows),
                       end = std::min((first + number) * rows_each, total_rows);
    return static_cast<double>(end - begin) / static_cast<double>(total_rows);
  }
};

Units units_of(const Problem& problem, const Knobs& knobs) {
  const std::int64_t rows = part_rows(problem), across = base::ceil_div(shapes_of(problem).product.cols, knobs.tile_n);
  const std::int64_t down = base::ceil_div(rows, knobs.tile_m);
  if (knobs.packed) return {down * across, 1, down * across, 1};
  // A gather's own rows are multiplied by themselves.
  const std::int64_t parts = problem.op == Operator::all_gather_gemm ? problem.ranks - 1 : parts_of(problem);
  return {down, across * parts, rows, knobs.tile_m};
}

}  // namespace

std::vector<GroupTime> group_times(const GroupCosts& costs, const std::vector<std::int64_t>& sizes) {
  std::vector<GroupTime> times;
  std::int64_t first = 0;
  double ended = 0;
  for (const std::int64_t size : sizes) {
    GroupTime time{size, costs.computed[at(first + size - 1)], 0, 0};
    time.begins = std::max(time.computed, ended);
    time.ends = ended = time.begins + costs.collective(first, size);
    times.push_back(time);
    first += size;
  }
  return times;
}

double seconds_of_groups(const GroupCosts& costs, const std::vector<std::int64_t>& sizes) {
  const double ends = group_times(costs, sizes).back().ends;
  return std::max(ends + costs.behind(costs.units() - sizes.back(), sizes.back()), costs.least);
}

std::vector<std::int64_t> best_groups(const GroupCosts& costs, int most_groups) {
  const std::int64_t units = costs.units();
  constexpr double never = std::numeric_limits<double>::infinity();
  // By number of units: when their collectives end, with the groups so far, and with one less.
  std::vector<double> ends(at(units + 1), never), before;
  ends[0] = 0;
  std::vector<std::vector<std::int64_t>> begins;  // by number of groups, and units: where the last group begins
  double least = never;
  std::size_t groups = 0;
  for (int g = 1; g <= most_groups; ++g) {
    before = ends;
    std::fill(ends.begin(), ends.end(), never);
    begins.emplace_back(at(units + 1), 0);
    for (std::int64_t end = g; end <= units; ++end)
      for (std::int64_t begin = g - 1; begin < end; ++begin) {
        if (before[at(begin)] == never) continue;
        double time = std::max(costs.computed[at(end - 1)], before[at(begin)]) + costs.collective(begin, end - begin);
        // Not costs.least: it is the same for all, and what ends before it puts back sooner.
        if (end == units) time += costs.behind(begin, end - begin);
        if (time >= ends[at(end)]) continue;
        ends[at(end)] = time;
        begins.back()[at(end)] = begin;
      }
    if (ends[at(units)] < least) {
      least = ends[at(units)];
      groups = begins.size();
    }
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t end = units; groups > 0; --groups) {
    const std::int64_t begin = begins[groups - 1][at(end)];
    sizes.push_back(end - begin);
    end = begin;
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<std::int64_t> best_groups_of_all(const GroupCosts& costs, int most_groups) {
  const std::int64_t units = costs.units();
  IMBREX_EXPECTS(units >= 1 && units <= 24, "{} units: all partitions are tried for 1 to 24", units);
  std::vector<std::int64_t> best;
  double least = std::numeric_limits<double>::infinity();
  // A bit for each unit that ends a group.
  for (std::uint32_t cuts = 0; cuts < std::uint32_t{1} << (units - 1); ++cuts) {
    std::vector<std::int64_t> sizes;
    std::int64_t begin = 0;
    for (std::int64_t end = 1; end <= units; ++end) {
      if (end < units && (cuts >> (end - 1) & 1) == 0) continue;
      sizes.push_back(end - begin);
      begin = end;
    }
    if (std::ssize(sizes) > most_groups) continue;
    const double seconds = seconds_of_groups(costs, sizes);
    if (seconds > least || (seconds == least && sizes.size() >= best.size())) continue;
    least = seconds;
    best = std::move(sizes);
  }
  return best;
}

GroupCosts signaled_costs(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  const RankShapes shapes = shapes_of(problem);
  const Units units = units_of(problem, knobs);
  const bool gather = problem.op == Operator::all_gather_gemm;
  // SMs that collectives take beyond what is kept for them are missing as long as these run, which is nearly all the
  // time that counts.
  const auto kept =
      static_cast<std::int64_t>(std::max(static_cast<double>(knobs.kept_free), machine.collective_sms.value));
  const std::int64_t sms = std::max<std::int64_t>(static_cast<std::int64_t>(machine.sms.value) - kept, 1);
  const std::int64_t own = gather ? units.count * units.tiles_each / std::max(problem.ranks - 1, 1) : 0;
  const std::int64_t tiles = units.count * units.tiles_each + own;
  const double product =
      product_seconds(problem, shapes, {tiles, knobs.tile_m, knobs.tile_n, 1}, machine, static_cast<double>(sms));
  const double wave = product / static_cast<double>(base::ceil_div(tiles, sms));
  GroupCosts costs;
  for (std::int64_t n = 1; n <= units.count; ++n)
    costs.computed.push_back(machine.launch_gap +
                             wave * static_cast<double>(base::ceil_div(n * units.tiles_each, sms)));
  const double bytes = plan::wire_bytes(problem);
  const double gate = machine.flag_latency_local + machine.poll;
  // Scales of rows come before their group's rows, by a collective of their own.
  const double scales = gather && problem.scales == Scales::row ? sizeof(float) / static_cast<double>(shapes.a.cols) /
                                                                      static_cast<double>(size_of(problem.type))
                                                                : 0;
  costs.collective = [problem, knobs, units, bytes, gate, scales, &machine](std::int64_t first, std::int64_t count) {
    const double part = bytes * units.share(first, count);
    if (knobs.codec) {
      return gate + machine::quantized_seconds(machine, problem.op == Operator::gemm_reduce_scatter, part,
                                               part * plan::shortening(*knobs.codec, output_type(problem.type)));
    }
    const auto seconds = [&](double moved) {
      return machine::collective_seconds(machine, curve_of(problem.op), knobs.transport == Transport::store,
                                         problem.ranks, moved);
    };
    return gate + seconds(part) + (scales > 0 ? seconds(scales * part) : 0);
  };
  // What is put back is read and written once more, by the SMs that multiply: where the product ends last, all of it
  // comes behind, and else only the last group's is not hidden behind collectives.
  const bool sums = problem::descriptor_of(problem.op).sums;
  const bool moves = (knobs.packed && !plan::is_packed(problem)) ||
                     (sums && (problem.bias || knobs.partial != output_type(problem.type))) || plan::exchanges(problem);
  const double moved = moves ? 2 * static_cast<double>(shapes.out.rows) * static_cast<double>(shapes.out.cols) *
                                   static_cast<double>(size_of(output_type(problem.type))) / machine.memory_bandwidth
                             : 0;
  const double last = gather ? wave * static_cast<double>(base::ceil_div(own, sms)) : 0;
  costs.behind = [=](std::int64_t first, std::int64_t count) { return last + moved * units.share(first, count); };
  costs.least = costs.computed.back() + last + moved;
  return costs;
}

GroupSizes choose_groups(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  const GroupCosts fine = signaled_costs(problem, knobs, machine);
  // Ends of waves are what groups may gain from; and no more units than a search of a millisecond takes.
  constexpr std::int64_t most_units = 64;
  std::vector<std::int64_t> ends;  // where the coarse units end
  const std::int64_t step = base::ceil_div(fine.units(), most_units);
  for (std::int64_t n = 1; n <= fine.units(); ++n) {
    const bool wave_ends = n == fine.units() || fine.computed[at(n)] > fine.computed[at(n - 1)];
    const bool far = n - (ends.empty() ? 0 : ends.back()) >= step;
    if (n == fine.units() || (wave_ends && far)) ends.push_back(n);
  }
  const auto begin_of = [&](std::int64_t unit) { return unit == 0 ? 0 : ends[at(unit - 1)]; };
  GroupCosts coarse;
  for (const std::int64_t end : ends) coarse.computed.push_back(fine.computed[at(end - 1)]);
  coarse.collective = [&](std::int64_t first, std::int64_t count) {
    return fine.collective(begin_of(first), begin_of(first + count) - begin_of(first));
  };
  coarse.behind = [&](std::int64_t first, std::int64_t count) {
    return fine.behind(begin_of(first), begin_of(first + count) - begin_of(first));
  };
  std::vector<std::int64_t> sizes;
  std::int64_t first = 0;
  for (const std::int64_t size : best_groups(coarse, static_cast<int>(GroupSizes{}.size()))) {
    sizes.push_back(begin_of(first + size) - begin_of(first));
    first += size;
  }
  if (problem.op == Operator::all_gather_gemm) std::reverse(sizes.begin(), sizes.end());
  return plan::group_sizes(sizes);
}

void set_groups(Knobs& knobs, const Problem& problem, const Machine& machine) {
  knobs.groups = choose_groups(problem, knobs, machine);
  const auto count = std::find(knobs.groups.begin(), knobs.groups.end(), 0) - knobs.groups.begin();
  knobs.chunks = std::max(static_cast<int>(count), 1);
}

SignaledTimes signaled_times(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  const GroupCosts costs = signaled_costs(problem, knobs, machine);
  std::vector<std::int64_t> sizes =
      plan::groups_of_units(knobs, costs.units(), knobs.packed ? "tiles" : "rows of tiles");
  if (problem.op == Operator::all_gather_gemm) std::reverse(sizes.begin(), sizes.end());
  return {group_times(costs, sizes), seconds_of_groups(costs, sizes)};
}

}  // namespace imbrex::choose
