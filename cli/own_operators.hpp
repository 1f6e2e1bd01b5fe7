// Operators with options of their own, in place of M, N and K or with them. Commands ask the list, and know none of
// them by name. docs/dev/architecture.md says how to add one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command.hpp"

namespace imbrex::cli {

struct RunOptions;

/// What `bench` knows of an operator with options of its own.
struct BenchOptions {
  int ranks = 4, rounds = 9, runs = 0;  ///< runs: 0: by how long they take
  Type type = Type::bf16;
  std::optional<Strategy> strategy;
  bool threads = false;
};

class OwnOperator {
 public:
  virtual ~OwnOperator() = default;

  virtual std::string_view name() const = 0;
  /// That its own options, and no others, are in.
  virtual std::string group() const { return std::string(name()); }
  /// Whether it has a use for an option of the commands, besides its own.
  virtual bool shares(std::string_view option) const = 0;
  /// Whether it has a use for an element type that the others do not know.
  virtual bool has_type(std::string_view type) const { return static_cast<void>(type), false; }
  /// Lines of `imbrex run --help`.
  virtual std::string_view examples() const = 0;

  /// Options of what takes OP; called once.
  virtual void add_to(CLI::App& command) { static_cast<void>(command); }
  /// Adds the options of `run`; called after add_to.
  virtual void add_run_to(CLI::App& command) = 0;

  /// Throws Error(invalid_input) where it has no plan, which `run` alone does without.
  virtual void expect_plan() const {}
  /// The problem of the options. Throws Error(invalid_input).
  virtual Problem problem(const PlanOptions& plan) const = 0;
  /// As to_json_value and describe of command.hpp; the operator is the problem's.
  virtual Json json(const Problem& problem) const = 0;
  virtual std::string title(const Problem& problem) const = 0;

  virtual int run(const Program& program, const PlanOptions& plan, const RunOptions& run) const = 0;

  /// Whether `bench` takes it, by these two: its options, called in place of both above, and what it does.
  virtual bool is_timed() const { return false; }
  virtual void add_bench_to(CLI::App& command) { static_cast<void>(command); }
  virtual int bench(const Program& program, const BenchOptions& options) const;
};

/// One that is a program such as users write, or a collective alone: it can be run, and has no plan.
class RunAlone : public OwnOperator {
 public:
  void expect_plan() const override;
  Problem problem(const PlanOptions&) const override { return {}; }
  Json json(const Problem&) const override { return {{"operator", name()}}; }
  std::string title(const Problem&) const override { return std::string(name()); }
};

// Each makes one.
std::shared_ptr<OwnOperator> make_all_reduce();
std::shared_ptr<OwnOperator> make_embedding_all_to_all();
std::shared_ptr<OwnOperator> make_jacobi();
std::shared_ptr<OwnOperator> make_sparse_triangular_solve();

/// All of them.
std::vector<std::shared_ptr<OwnOperator>> own_operators();

/// Names of all operators that have a plan and, if `run_alone`, of what can be run without one, once each.
std::vector<std::string> operator_names(bool run_alone);

/// The one of that name; null if it has none.
std::shared_ptr<OwnOperator> own_operator(std::string_view name);

}  // namespace imbrex::cli
