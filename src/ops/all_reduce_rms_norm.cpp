#include "base/check.hpp"
#include "collectives/rms_norm.hpp"
#include "ops/collective_place.hpp"

namespace imbrex {
namespace {

constexpr std::string_view rms_norm_operands[] = {"in", "residual", "weight", "residual_out", "out"};

}  // namespace

struct AllReduceRmsNorm::State {
  std::unique_ptr<collectives::RmsNormBackend> backend;
  std::int64_t max_rows, hidden;
  Type type, weight_type;
};

AllReduceRmsNorm::AllReduceRmsNorm(World& world, std::int64_t max_rows, std::int64_t hidden, Type type,
                                   const AllReduceRmsNormOptions& options, Device device)
    : CollectiveObject(std::make_unique<Place>(world, device)) {
  const auto make = place().device == Device::cuda ? collectives::make_cuda_all_reduce_rms_norm
                                                   : collectives::make_cpu_all_reduce_rms_norm;
  state_ = std::make_unique<State>(
      State{make(world, max_rows, hidden, type, options), max_rows, hidden, type, options.weight_type.value_or(type)});
  place().made();
  place().enroll([this](std::int64_t rows) {
    const State& s = *state_;
    const std::size_t row = static_cast<std::size_t>(s.hidden) * size_of(s.type);
    const auto in = place().scratch(row * static_cast<std::size_t>(rows)),
               weight = place().scratch(static_cast<std::size_t>(s.hidden) * size_of(s.weight_type)),
               sum = place().scratch(row * static_cast<std::size_t>(rows)),
               out = place().scratch(row * static_cast<std::size_t>(rows));
    (*s.backend)(
        {.in = in.get(), .residual = nullptr, .weight = weight.get(), .residual_out = sum.get(), .out = out.get()},
        rows, nullptr);
    s.backend->finish();
  });
}

AllReduceRmsNorm::~AllReduceRmsNorm() = default;

void AllReduceRmsNorm::run(const Operands& operands, CudaStream stream) {
  struct Resolved {
    collectives::RmsNormOperands operands;
    std::int64_t rows;
  };
  const State& s = *state_;
  place().call(
      operands, stream,
      [&] {
        const ops::CollectiveOperands given(operands, s.type, rms_norm_operands, s.weight_type);
        const std::int64_t all = ops::elements_of(given.at("in"));
        IMBREX_EXPECTS(all % s.hidden == 0, "operand in has {} elements; it must have rows of {}", all, s.hidden);
        const auto matrix = [&](std::string_view name) {
          const std::int64_t count = ops::elements_of(given.at(name));
          IMBREX_EXPECTS(count == all, "operand {} has {} elements, operand in {}; they must be equal", name, count,
                         all);
          return given.at(name).data;
        };
        const View& weight = given.at("weight");
        IMBREX_EXPECTS(ops::elements_of(weight) == s.hidden, "operand weight has {} elements; it must have {}",
                       ops::elements_of(weight), s.hidden);
        const Resolved resolved{{.in = matrix("in"),
                                 .residual = given.find("residual") == nullptr ? nullptr : matrix("residual"),
                                 .weight = weight.data,
                                 .residual_out = matrix("residual_out"),
                                 .out = matrix("out"),
                                 .weight_type = s.weight_type},
                                all / s.hidden};
        collectives::expect_operands(resolved.operands, resolved.rows, s.max_rows, s.hidden, s.type);
        return resolved;
      },
      "rows", [&](const Resolved& r) { return r.rows; },
      [&](const Resolved& r) {
        return runtime::Terms("a call of an all-reduce with RMSNorm")
            .add("rows", r.rows)
            .add("residual", r.operands.residual != nullptr);
      },
      [&](const Resolved& r) { (*s.backend)(r.operands, r.rows, stream); });
}

AllReduceAlgorithm AllReduceRmsNorm::algorithm_of(std::int64_t rows) const {
  return state_->backend->algorithm_of(rows);
}

void AllReduceRmsNorm::synchronize() {
  state_->backend->finish();
  place().calls.expect_none_refused();
}

}  // namespace imbrex
