#include "base/check.hpp"
#include "collectives/backend.hpp"
#include "ops/collective_place.hpp"

namespace imbrex {
namespace {

constexpr std::string_view exchange_operands[] = {"in", "out"};

// What lies in the same place of all blocks is read before any of it is written, by the same hand. So any block will
// do, and ranks that are told alike are refused alike.
ops::InPlace in_place(ExchangeKind kind, std::size_t block) {
  switch (kind) {
    case ExchangeKind::all_gather: return {.in_of_out = block, .rule = "in be a block of out"};
    case ExchangeKind::reduce_scatter: return {.out_of_in = block, .rule = "out be a block of in"};
    case ExchangeKind::all_to_all: break;
  }
  return {};
}

}  // namespace

struct Exchange::State {
  std::unique_ptr<collectives::ExchangeBackend> backend;
  ExchangeKind kind;
  int ranks;
  std::int64_t max_count;
  Type type;
};

Exchange::Exchange(World& world, ExchangeKind kind, std::int64_t max_count, Type type, const ExchangeOptions& options,
                   Device device)
    : CollectiveObject(std::make_unique<Place>(world, device)) {
  const auto make = place().device == Device::cuda ? collectives::make_cuda_exchange : collectives::make_cpu_exchange;
  state_ =
      std::make_unique<State>(State{make(world, kind, max_count, type, options), kind, world.size(), max_count, type});
  place().made();
  place().enroll([this](std::int64_t count) {
    const State& s = *state_;
    const std::size_t block = static_cast<std::size_t>(count) * size_of(s.type),
                      all = block * static_cast<std::size_t>(s.ranks);
    const auto in = place().scratch(all), out = place().scratch(all);
    (*s.backend)(in.get(), out.get(), count, nullptr);
    s.backend->finish();
  });
}

Exchange::~Exchange() = default;

void Exchange::run(const Operands& operands, CudaStream stream) {
  struct Resolved {
    const void* in;
    void* out;
    std::int64_t count;
  };
  const State& s = *state_;
  place().call(
      operands, stream,
      [&] {
        const ops::CollectiveOperands given(operands, s.type, exchange_operands);
        const View &in = given.at("in"), &out = given.at("out");
        const bool gather = s.kind == ExchangeKind::all_gather, scatter = s.kind == ExchangeKind::reduce_scatter;
        const std::int64_t from = ops::elements_of(in), to = ops::elements_of(out);
        const std::int64_t count = gather ? from : scatter ? to : from / s.ranks;
        const std::int64_t wanted_in = gather ? count : count * s.ranks, wanted_out = scatter ? count : count * s.ranks;
        IMBREX_EXPECTS(from == wanted_in && to == wanted_out,
                       "operand in has {} elements and operand out {}; {} takes {} and {}", from, to, name_of(s.kind),
                       gather ? "a block" : "a block for each rank",
                       scatter ? "gives one" : "gives one from each rank");
        ops::expect_count("in", count, s.max_count);
        ops::expect_apart(in, out, in_place(s.kind, static_cast<std::size_t>(count) * size_of(s.type)));
        return Resolved{in.data, out.data, count};
      },
      "elements of a block", [&](const Resolved& r) { return r.count; },
      [&](const Resolved& r) {
        return runtime::Terms("a call of an exchange").add("kind", name_of(s.kind)).add("count", r.count);
      },
      [&](const Resolved& r) { (*s.backend)(r.in, r.out, r.count, stream); });
}

ExchangeReport Exchange::report() { return state_->backend->report(); }

void Exchange::synchronize() {
  state_->backend->finish();
  place().calls.expect_none_refused();
}

}  // namespace imbrex
