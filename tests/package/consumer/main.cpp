// Makes a plan and has it proved sound; probes the machine, so that the BLAS is linked as well.
#include <cstdio>

#include <imbrex/imbrex.hpp>

#if IMBREX_VERSION_MAJOR < 0
#error "the version header was not included"
#endif

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
