#include "base/check.hpp"
#include "collectives/backend.hpp"
#include "ops/collective_place.hpp"

namespace imbrex {
namespace {

constexpr std::string_view all_reduce_operands[] = {"in", "out"};

}  // namespace

struct AllReduce::State {
  std::unique_ptr<collectives::AllReduceBackend> backend;
  std::int64_t max_count;
  Type type;
};

AllReduce::AllReduce(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options, Device device)
    : CollectiveObject(std::make_unique<Place>(world, device)) {
  const auto make =
      place().device == Device::cuda ? collectives::make_cuda_all_reduce : collectives::make_cpu_all_reduce;
  state_ = std::make_unique<State>(State{make(world, max_count, type, options), max_count, type});
  place().made();
  place().enroll([this](std::int64_t count) {
    const auto memory = place().scratch(static_cast<std::size_t>(count) * size_of(state_->type));
    (*state_->backend)(memory.get(), memory.get(), count, nullptr);
    state_->backend->finish();
  });
}

AllReduce::~AllReduce() = default;

void AllReduce::run(const Operands& operands, CudaStream stream) {
  struct Resolved {
    const void* in;
    void* out;
    std::int64_t count;
  };
  place().call(
      operands, stream,
      [&] {
        const ops::CollectiveOperands given(operands, state_->type, all_reduce_operands);
        const View &in = given.at("in"), &out = given.at("out");
        const std::int64_t count = ops::elements_of(in);
        IMBREX_EXPECTS(count == ops::elements_of(out), "operand out has {} elements, operand in {}; they must be equal",
                       ops::elements_of(out), count);
        ops::expect_count("in", count, state_->max_count);
        ops::expect_apart(in, out, {.same = true, .rule = "the same memory"});
        return Resolved{in.data, out.data, count};
      },
      "elements", [&](const Resolved& r) { return r.count; },
      [&](const Resolved& r) { return runtime::Terms("a call of an all-reduce").add("count", r.count); },
      [&](const Resolved& r) { (*state_->backend)(r.in, r.out, r.count, stream); });
}

AllReduceReport AllReduce::report() { return state_->backend->report(); }

void AllReduce::synchronize() {
  state_->backend->finish();
  place().calls.expect_none_refused();
}

}  // namespace imbrex
