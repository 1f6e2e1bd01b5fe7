// Makes a plan and has it proved sound; probes the machine, so that the BLAS is linked as well.
#include <cstdio>

#include <imbrex/imbrex.hpp>
#include <imbrex/shmem.hpp>

#if IMBREX_VERSION_MAJOR < 0
#error "the version header was not included"
#endif

namespace {

// A user names the fields that matter; with -Wextra, a field without an initialiser of its own would be warned of.
[[maybe_unused]] const imbrex::WorldOptions world_options{.wait_limit = 5};
[[maybe_unused]] const imbrex::GemmShape shape{.m = 4, .n = 4, .k = 4};
[[maybe_unused]] const imbrex::OperatorOptions options{.device = imbrex::Device::cpu};
[[maybe_unused]] const imbrex::CpuOptions cpu_options{.workers = 2};
[[maybe_unused]] const imbrex::CudaOptions cuda_options{.kernel = "reference"};
[[maybe_unused]] const imbrex::Knobs knobs{.chunks = 2};
[[maybe_unused]] const imbrex::AllReduceOptions all_reduce_options{.ctas = 8};
[[maybe_unused]] const imbrex::AllReduceRmsNormOptions norm_options{.eps = 1e-5f};
[[maybe_unused]] const imbrex::ExchangeOptions exchange_options{.ctas = 8};
[[maybe_unused]] const imbrex::EmbeddingShape embedding{.batch = 8};
[[maybe_unused]] const imbrex::PlacementLimits limits{.memory = 1};
[[maybe_unused]] const imbrex::shmem::HeapOptions heap_options{.ranks_per_gpu = 2};

}  // namespace

int main() {
  const imbrex::Problem problem{imbrex::Operator::gemm_reduce_scatter, 512, 512, 512, 4, imbrex::Type::bf16};
  const imbrex::Plan plan = imbrex::make_plan(problem, imbrex::Strategy::fused, {});
  if (const auto finding = imbrex::check(plan)) {
    std::printf("unsound: %s\n", finding->message.c_str());
    return 1;
  }
  std::printf("sound: %zu tasks, on %s\n", imbrex::count_tasks(plan), imbrex::probe_machine().about.c_str());
  return 0;
}
