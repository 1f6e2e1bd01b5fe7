#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "plan/task_stream.hpp"

namespace imbrex {
namespace {

[[noreturn]] void refuse_stream() {
  throw Error(ErrorCode::invalid_input, "only the CUDA executor's plans run on a stream of CUDA");
}

}  // namespace

double Execution::time(const Addresses& operands, int runs) {
  double seconds = 0;
  for (int i = 0; i < runs; ++i) seconds += run(operands).seconds;
  return seconds / runs;
}

void Execution::enqueue(const Addresses&, CudaStream) { refuse_stream(); }

void Execution::expect_stream(CudaStream) { refuse_stream(); }

void Execution::check() {}

CodecReport Execution::codec_report() { return {}; }

std::int64_t Execution::take_misfits(Misfits) { return 0; }

void Execution::synchronize(CudaStream) { refuse_stream(); }

std::unique_ptr<Execution> Executor::prepare(const Plan& plan) { return prepare(std::make_shared<const Plan>(plan)); }

std::unique_ptr<Execution> Executor::prepare(std::shared_ptr<const Plan> plan) {
  return prepare_tasks([&] { return plan::stored_tasks(plan); });
}

std::shared_ptr<void> Executor::allocate_output(std::size_t) { return nullptr; }

}  // namespace imbrex
