#include "conformance/cases.hpp"

#include <fmt/format.h>

#include "imbrex/error.hpp"

namespace imbrex::test {
namespace {

constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

// So many rows, columns and depth of each rank, as the operator counts them.
Problem problem_of(Operator op, int ranks, Type type, std::int64_t m, std::int64_t n, std::int64_t k) {
  Problem p{op, m, n, k, ranks, type};
  p.m *= ranks;
  if (op == Operator::all_gather_gemm) p.n *= ranks;
  if (op == Operator::gemm_reduce_scatter || op == Operator::gemm_all_reduce) p.k *= ranks;
  return p;
}

class List {
 public:
  explicit List(int ranks) : ranks_(ranks) {}

  // A problem of sizes that suit every kernel.
  Problem usual(Operator op, Type type) const { return problem_of(op, ranks_, type, 48, 64, 96); }

  RandomOperator& add(std::string name, const Problem& problem, bool odd = false) {
    RandomOperator what{.problem = problem, .options = {}, .rows = {problem.m}};
    what.exact = problem.type == Type::fp32;
    cases_.push_back({std::move(name), std::move(what), odd});
    return cases_.back().what;
  }

  void add_types(Operator op) {
    for (const Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
      add(fmt::format("{}_{}", name_of(op), name_of(type)), usual(op, type));
    for (const Scales scales : {Scales::tensor, Scales::row}) {
      Problem p = usual(op, Type::e4m3);
      p.scales = scales;
      add(fmt::format("{}_e4m3_scales_of_{}", name_of(op), name_of(scales)), p);
    }
  }

  void add_layouts(Operator op) {
    const auto name = [&](const char* what) { return fmt::format("{}_{}", name_of(op), what); };
    Problem p = usual(op, Type::bf16);
    p.bias = true;
    add(name("bias"), p);
    p.b_layout = Layout::column_major;
    add(name("bias_and_b_by_columns"), p);
    p.bias = false;
    add(name("b_by_columns"), p);
    p = usual(op, Type::bf16);
    for (const OperandInfo& info : operands_of(p)) {
      if (info.name == "a") p.lda = info.length() + 16;
      if (info.name == "b") p.ldb = info.length() + 32;
      if (info.name == "out") p.ldo = info.length() + 48;
    }
    add(name("rows_apart"), p);
    add(name("three_dimensions"), usual(op, Type::bf16)).parts = 3;
  }

  void add_sizes(Operator op) {
    const auto name = [&](const char* what) { return fmt::format("{}_{}", name_of(op), what); };
    add(name("one_row_a_rank"), problem_of(op, ranks_, Type::bf16, 1, 64, 96));
    add(name("many_tiles"), problem_of(op, ranks_, Type::bf16, 150, 320, 160));
    add(name("odd_sizes"), problem_of(op, ranks_, Type::bf16, 17, 33, 19), true);
    add(name("odd_sizes_fp32"), problem_of(op, ranks_, Type::fp32, 13, 7, 29), true);
    RandomOperator& any = add(name("any_m"), usual(op, Type::bf16));
    any.any_m = true;
    any.rows = {any.problem.ranks, 20 * any.problem.ranks, any.problem.m, 7 * any.problem.ranks};
  }

  // Several B behind one gather, and the gathered A.
  void add_lists() {
    for (const bool bias : {false, true})
      for (const std::size_t further : {std::size_t{0}, std::size_t{1}, std::size_t{2}})
        for (const bool gathered : {false, true}) {
          if (further == 0 && !gathered) continue;
          Problem p = usual(Operator::all_gather_gemm, Type::bf16);
          p.bias = bias, p.gathered_a = gathered;
          for (std::size_t i = 0; i < further; ++i) p.more_n[i] = (i == 0 ? 32 : 80) * ranks_;
          add(fmt::format("several_b_{}{}{}", further + 1, bias ? "_bias" : "", gathered ? "_gathered" : ""), p);
        }
  }

  void add_codecs() {
    for (const Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce}) {
      const CodecPair codec = parse_codec_pair("int8");
      add(fmt::format("{}_in_codes", name_of(op)), usual(op, Type::bf16)).options.codec = codec;
    }
  }

  std::vector<ConformanceCase> take() { return std::move(cases_); }

 private:
  int ranks_;
  std::vector<ConformanceCase> cases_;
};

}  // namespace

std::vector<ConformanceCase> conformance_cases(int ranks) {
  List list(ranks);
  for (const Operator op : operators) list.add_types(op), list.add_layouts(op), list.add_sizes(op);
  list.add_lists();
  list.add_codecs();
  return list.take();
}

void judge_calls(World& all, World& world, const RandomOperator& what, Device device,
                 const std::function<Plan(GemmOperator&, const Problem&)>& plan_of,
                 const std::function<void(GemmOperator&, std::vector<Operand>, ProblemMemory&)>& call) {
  const auto op = make_operator(world, what.problem.op, what.shape(), what.options);
  if (op->device() != device) throw Error(ErrorCode::unsound, fmt::format("it runs on {}", name_of(op->device())));
  for (const std::int64_t m : what.rows) {
    Problem problem = what.problem;
    problem.m = m;
    const auto values = what.values(problem, all, world);
    ProblemMemory memory(problem, *values, world.rank());
    call(*op, what.operands(memory), memory);
    if (const std::string wrong = memory.judge(plan_of(*op, problem), what.exact, device); !wrong.empty())
      throw Error(ErrorCode::unsound, fmt::format("M = {}: {}", m, wrong));
  }
}

}  // namespace imbrex::test
