#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "choose/quick_times.hpp"
#include "machine/fields.hpp"
#include "program/card/card.hpp"
#include "program/card/least_squares.hpp"

namespace imbrex::program {
namespace {

double rounded(double value) {
  if (!(value > 0)) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 3);
  return std::round(value / unit) * unit;
}

// As the choice predicts it: an own kernel's by its tile, a library's by the one that suits.
double predicted(const CardProduct& of, const Machine& machine) {
  return choose::quick_seconds(
      of.problem, {of.knobs ? Strategy::fused : Strategy::sequential, of.knobs.value_or(Knobs{})}, machine);
}

std::vector<double> errors_of(const std::vector<CardProduct>& products, const Machine& machine) {
  std::vector<double> errors;
  for (const CardProduct& one : products) errors.push_back(std::log(predicted(one, machine) / one.seconds));
  return errors;
}

using Shape = std::pair<std::int64_t, std::int64_t>;

constexpr double first_sustained = 0.85;

// Bytes of operands a second, at best.
double seen_bandwidth(const std::vector<CardProduct>& products) {
  double best = 0;
  for (const CardProduct& one : products) {
    const auto m = static_cast<double>(one.problem.m), n = static_cast<double>(one.problem.n),
               k = static_cast<double>(one.problem.k);
    best = std::max(best, (m + n) * k * static_cast<double>(size_of(one.problem.type)) / one.seconds);
  }
  return best;
}

// The flop/s of an SM in whole waves of that tile, at best.
double seen_rate(const std::vector<CardProduct>& products, const TileRate& tile, double sms) {
  double best = 0;
  for (const CardProduct& one : products) {
    if (!one.knobs || one.knobs->tile_m != tile.tile_m || one.knobs->tile_n != tile.tile_n) continue;
    const double tiles = static_cast<double>(choose::fused_tiles(one.problem, *one.knobs));
    best = std::max(best, std::ceil(tiles / sms) * 2 * static_cast<double>(tile.tile_m * tile.tile_n) *
                              static_cast<double>(one.problem.k) / one.seconds);
  }
  return best;
}

// What is fitted, and where in the machine it stands.
class Constants {
 public:
  Constants(Machine start, const std::vector<CardProduct>& products) : machine_(std::move(start)) {
    std::set<Shape> measured;
    for (const CardProduct& one : products)
      if (one.knobs) measured.insert({one.knobs->tile_m, one.knobs->tile_n});
    // Tiles without a kernel here would be predicted by what was measured elsewhere.
    std::erase_if(machine_.tiles, [&](const TileRate& t) { return !measured.contains({t.tile_m, t.tile_n}); });
    for (const Shape& shape : measured) {
      const bool known = std::any_of(machine_.tiles.begin(), machine_.tiles.end(), [&](const TileRate& t) {
        return Shape{t.tile_m, t.tile_n} == shape;
      });
      const auto first = [](double value) { return Constant{value, Provenance::unverified, "not measured"}; };
      if (!known) machine_.tiles.push_back({shape.first, shape.second, first(0.8), first(1e-6), first(4e-7), {}});
    }
    // A tile's rate, not its share of the best tile's: the two are told apart at the end. The fit begins where the
    // times point: at the best rates that were seen, or it might end at others that also give some of the times.
    machine_.memory_bandwidth.value = seen_bandwidth(products);
    add(machine_.memory_bandwidth, 1e10, 2e13);
    add(machine_.launch_gap, 1e-7, 2e-5);
    add(machine_.sustained_onset, 2e-4, 1e-2);
    for (TileRate& tile : machine_.tiles) {
      tile.efficiency.value = seen_rate(products, tile, machine_.sms) / first_sustained;
      tile.prologue.value = 1e-6;
      tile.sustained.value = first_sustained;
      add(tile.efficiency, 1e10, 2e13);
      add(tile.prologue, 1e-7, 5e-6);
      add(tile.sustained, 0.4, 1);
    }
    machine_.sm_rate[Type::bf16].value = 1;
  }
  Constants(const Constants&) = delete;  // the places are in its machine

  const std::vector<Unknown>& unknowns() const { return unknowns_; }

  const Machine& with(const std::vector<Unknown>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) places_[i]->value = values[i].value;
    return machine_;
  }

  // What no time tells apart, such as a tile's rate when cool from its clock under load, stays near where it begins.
  std::vector<double> strays(const std::vector<Unknown>& values) const {
    constexpr double weight = 0.05;
    std::vector<double> all;
    for (std::size_t i = 0; i < values.size(); ++i)
      all.push_back(weight * std::log(values[i].value / unknowns_[i].value));
    return all;
  }

  // The rate is that of the best tile, of which the others have a share; tiles that few draws tell apart share a clock.
  Machine finished(const std::vector<Unknown>& values, const std::string& from) {
    Machine machine = with(values);
    const auto best = std::max_element(machine.tiles.begin(), machine.tiles.end(), [](const auto& x, const auto& y) {
      return x.efficiency.value < y.efficiency.value;
    });
    const double rate = best->efficiency;
    machine.sustained_ratio = {rounded(best->sustained), Provenance::fitted, from};
    for (TileRate& tile : machine.tiles) {
      tile.efficiency = {std::min(1.0, rounded(tile.efficiency / rate)), Provenance::fitted, from};
      tile.prologue = {rounded(tile.prologue), Provenance::fitted, from};
      tile.sustained = {rounded(tile.sustained), Provenance::fitted, from};
    }
    machine.sm_rate[Type::bf16] = {rounded(rate), Provenance::fitted, from};
    for (Constant* one : {&machine.memory_bandwidth, &machine.launch_gap, &machine.sustained_onset})
      *one = {rounded(one->value), Provenance::fitted, from};
    return machine;
  }

 private:
  void add(Constant& place, double least, double most) {
    places_.push_back(&place);
    unknowns_.push_back({std::clamp(place.value, least, most), least, most});
  }

  Machine machine_;
  std::vector<Constant*> places_;
  std::vector<Unknown> unknowns_;
};

// Bytes that increase; equal ones are averaged, seconds made not to decrease.
Curve curve_of(const std::vector<CurvePoint>& points, const std::string& from) {
  std::map<double, std::vector<double>> by_bytes;
  for (const CurvePoint& p : points) by_bytes[p.bytes].push_back(p.seconds);
  Curve curve{{}, Provenance::measured, from};
  double last = 0;
  for (const auto& [bytes, seconds] : by_bytes) {
    last = std::max(
        last, rounded(std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size())));
    curve.points.push_back({bytes, last});
  }
  return curve;
}

double best_rate(const std::vector<CurvePoint>& points) {
  double best = 0;
  for (const CurvePoint& p : points)
    if (p.seconds > 0) best = std::max(best, p.bytes / p.seconds);
  return best;
}

// What is kept of another card's says so.
void doubt(Machine& machine, const std::string& name) {
  const std::string from = fmt::format("as {}: not measured on this card", name);
  const auto mark = [&](auto& constant) { constant.source = Provenance::unverified, constant.from = from; };
  for (const machine::Field& field : machine::fields) mark(machine.*field.member);
  for (const machine::Field& field : machine::optional_fields)
    if (!(machine.*field.member == Constant{})) mark(machine.*field.member);
  for (auto& [type, rate] : machine.sm_rate) mark(rate);
  for (TileRate& tile : machine.tiles)
    for (Constant* one : {&tile.efficiency, &tile.prologue, &tile.epilogue}) mark(*one);
  for (const machine::CurveField& curve : machine::curves) mark(machine.*curve.member);
  for (const auto* list : {&machine::own_curves})
    for (const machine::CurveField& curve : *list)
      if (!(machine.*curve.member).points.empty()) mark(machine.*curve.member);
}

}  // namespace

Machine fit_card(const Machine& start, const CardTimes& given) {
  CardTimes times = given;
  // Kernels leave out the half of a tile that has no rows, which the cost model does not know.
  for (auto* list : {&times.fitted, &times.held_out})
    std::erase_if(*list, [](const CardProduct& p) { return p.knobs && p.problem.m < p.knobs->tile_m; });
  for (const auto* list : {&times.fitted, &times.held_out})
    for (const bool own : {true, false})
      IMBREX_EXPECTS(
          std::any_of(list->begin(), list->end(), [&](const CardProduct& p) { return p.knobs.has_value() == own; }),
          "no product {} was measured on {}", own ? "by Imbrex' own kernels" : "by a library", times.gpu);
  const std::string products = fmt::format("fitted to {} products on one {}, driver {}, by `imbrex tune --card`",
                                           times.fitted.size(), times.gpu, times.driver);
  Machine machine = start;
  doubt(machine, start.name);
  machine.sms = {static_cast<double>(times.sms), Provenance::measured, "the driver's count"};
  // e4m3 and fp16 keep their ratio to bf16.
  const std::map<Type, Constant> rates = machine.sm_rate;
  {
    Constants constants(machine, times.fitted);
    std::vector<Unknown> unknowns = constants.unknowns();
    fit(unknowns, [&](const std::vector<Unknown>& at) {
      std::vector<double> errors = errors_of(times.fitted, constants.with(at));
      const std::vector<double> strays = constants.strays(at);
      errors.insert(errors.end(), strays.begin(), strays.end());
      return errors;
    });
    machine = constants.finished(unknowns, products);
  }
  const double ratio = machine.sm_rate.at(Type::bf16) / rates.at(Type::bf16);
  for (const auto& [type, rate] : rates)
    if (type != Type::bf16)
      machine.sm_rate[type] = {rounded(rate * ratio), Provenance::derived, "as bf16's, in the ratio of " + start.name};

  if (times.ranks > 1) {
    const std::string from =
        fmt::format("measured on {} x {}, driver {}, by `imbrex tune --card`", times.ranks, times.gpu, times.driver);
    double fastest = 0;
    const auto set = [&](Curve Machine::*member, const std::vector<CurvePoint>& points) {
      if (points.empty()) return;
      machine.*member = curve_of(points, from);
      fastest = std::max(fastest, best_rate(points));
    };
    set(&Machine::all_gather, times.library[static_cast<std::size_t>(Operator::all_gather_gemm)]);
    set(&Machine::reduce_scatter, times.library[static_cast<std::size_t>(Operator::gemm_reduce_scatter)]);
    set(&Machine::all_reduce, times.library[static_cast<std::size_t>(Operator::gemm_all_reduce)]);
    set(&Machine::all_to_all, times.library[static_cast<std::size_t>(Operator::gemm_all_to_all)]);
    set(&Machine::own_one_step, times.one_shot);
    set(&Machine::own_two_steps, times.two_shot);
    if (times.one_shot.empty()) machine.own_one_step = {};
    if (times.two_shot.empty()) machine.own_two_steps = {};
    for (Constant* one :
         {&machine.egress_bandwidth, &machine.ingress_bandwidth, &machine.copy_bandwidth, &machine.store_bandwidth})
      *one = {rounded(fastest), Provenance::derived, "the fastest collective's bytes a second"};
  }

  double sum = 0;
  for (const double error : errors_of(times.held_out, machine)) sum += std::pow(std::expm1(error), 2);
  machine.model_error = {
      std::clamp(rounded(std::sqrt(sum / static_cast<double>(times.held_out.size()))), 1e-3, 1.0), Provenance::measured,
      fmt::format("{} products that nothing was fitted to, by `imbrex tune --card`", times.held_out.size())};
  machine.name = "measured";
  machine.about = fmt::format("{}; what was not measured is {}'s", times.gpu, start.name);
  machine.gpus = {times.gpu};
  validate(machine);
  return machine;
}

}  // namespace imbrex::program
