#include "jobs/operands.hpp"

#include <array>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "imbrex/npy.hpp"
#include "plan/problem.hpp"

namespace imbrex::jobs {

float seeded_value(std::uint64_t seed, std::uint64_t matrix, std::int64_t row, std::int64_t col) {
  // SplitMix64's finaliser (Steele, Lea, Flood, 2014), over a mix of the coordinates.
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + matrix * 0xd1b54a32d192ed03u +
                    static_cast<std::uint64_t>(row) * 0x8cb92ba72f3d8dd7u +
                    static_cast<std::uint64_t>(col) * 0xaef17502108ef2d9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(static_cast<std::int64_t>(x >> 40) - (1 << 23)) * 0x1p-23f;
}

void SeededOperands::read(Matrix matrix, std::int64_t row, std::int64_t col, Extent extent,
                          std::vector<float>& values) const {
  const bool scale = matrix == Matrix::a_scale || matrix == Matrix::b_scale;
  for (std::int64_t i = 0; i < extent.rows; ++i)
    for (std::int64_t j = 0; j < extent.cols; ++j)
      values[static_cast<std::size_t>(i * extent.cols + j)] =
          value_of(seeded_value(seed_, static_cast<std::uint64_t>(matrix), row + i, col + j), scale);
}

float SeededOperands::value_of(float uniform, bool scale) const { return scale ? 1.25f + 0.75f * uniform : uniform; }

namespace {

class FileOperands final : public OperandSource {
 public:
  FileOperands(const Problem& problem, std::unique_ptr<NpyFile> a, std::unique_ptr<NpyFile> b,
               std::unique_ptr<NpyFile> bias, std::unique_ptr<NpyFile> a_scale, std::unique_ptr<NpyFile> b_scale)
      : OperandSource(problem),
        files_{std::move(a), std::move(b), std::move(bias), std::move(a_scale), std::move(b_scale)} {}

 private:
  void read(Matrix matrix, std::int64_t row, std::int64_t col, Extent extent,
            std::vector<float>& values) const override {
    files_[static_cast<std::size_t>(matrix)]->read(row, col, extent.rows, extent.cols, values);
  }

  std::array<std::unique_ptr<NpyFile>, 5> files_;  // by matrix
};

// Null where the problem has no scales.
std::unique_ptr<NpyFile> open_scales(const Problem& problem, const char* of, const std::string& path,
                                     const Extent& extent) {
  if (problem.scales == Scales::none) return nullptr;
  auto file = std::make_unique<NpyFile>(path);
  const std::int64_t count = extent.rows * extent.cols;
  const NpyHeader& h = file->header();
  IMBREX_EXPECTS(h.type == Type::fp32 && h.rows == problem.ranks && h.cols == count,
                 "{} is {} x {} {}: the scales of {} ({}) must be {} x {} fp32, a row for each rank", path, h.rows,
                 h.cols, name_of(h.type), of, name_of(problem.scales), problem.ranks, count);
  return file;
}

}  // namespace

namespace {

std::vector<float> rounded(Type type, const std::vector<float>& values) {
  return base::floats_of(type, base::elements_of(type, values));
}

}  // namespace

std::vector<float> OperandSource::part_values(bool a, int rank) const {
  const RankShapes shapes = shapes_of(problem_);
  const Extent extent = a ? shapes.a : shapes.b;
  std::int64_t row = 0, col = 0;
  if (problem_.op == Operator::gemm_all_to_all)
    row = rank * extent.rows;
  else if (problem_.op == Operator::all_gather_gemm)
    (a ? row : col) = rank * (a ? extent.rows : extent.cols);
  else
    (a ? col : row) = rank * (a ? extent.cols : extent.rows);
  const std::int64_t count = extent.rows * extent.cols;
  std::vector<float> values(static_cast<std::size_t>(count));
  read(a ? Matrix::a : Matrix::b, row, col, extent, values);
  return values;
}

std::vector<float> OperandSource::part_as_float(bool a, int rank) const {
  return rounded(problem_.type, part_values(a, rank));
}

std::vector<float> OperandSource::bias_as_float(int rank) const {
  if (!problem_.bias) return {};
  const std::int64_t cols = shapes_of(problem_).out.cols;
  std::vector<float> values(static_cast<std::size_t>(cols));
  read(Matrix::bias, problem_.op == Operator::gemm_all_to_all ? rank : 0,
       problem_.op == Operator::all_gather_gemm ? rank * cols : 0, {1, cols}, values);
  return rounded(output_type(problem_.type), std::move(values));
}

std::vector<float> OperandSource::scales(bool a, int rank) const {
  const RankShapes shapes = shapes_of(problem_);
  const Extent extent = a ? shapes.a_scale : shapes.b_scale;
  const std::int64_t count = extent.rows * extent.cols;
  std::vector<float> values(static_cast<std::size_t>(count));
  if (count > 0) read(a ? Matrix::a_scale : Matrix::b_scale, rank, 0, {1, count}, values);
  return values;
}

std::vector<std::byte> OperandSource::part(bool a, int rank) const {
  std::vector<float> values = part_values(a, rank);
  if (!a && plan::layout_of_b(problem_) == Layout::column_major) {
    const Extent extent = shapes_of(problem_).b;
    std::vector<float> by_columns(values.size());
    for (std::int64_t i = 0; i < extent.rows; ++i)
      for (std::int64_t j = 0; j < extent.cols; ++j)
        by_columns[static_cast<std::size_t>(j * extent.rows + i)] =
            values[static_cast<std::size_t>(i * extent.cols + j)];
    values.swap(by_columns);
  }
  return base::elements_of(problem_.type, values);
}

std::vector<std::byte> OperandSource::bias(int rank) const {
  return base::elements_of(output_type(problem_.type), bias_as_float(rank));
}

std::unique_ptr<OperandSource> open_operands(const RunRequest& request, Problem& problem) {
  IMBREX_EXPECTS(request.a_path.empty() == request.b_path.empty(), "A and B come from files together, or not at all");
  IMBREX_EXPECTS(request.bias_path.empty() || (!request.a_path.empty() && problem.bias),
                 "a bias comes from {} for a problem with a bias whose A and B come from files", request.bias_path);
  const bool scaled = problem.scales != Scales::none, from_files = !request.a_path.empty();
  IMBREX_EXPECTS((scaled && from_files) == !request.a_scale_path.empty() &&
                     (scaled && from_files) == !request.b_scale_path.empty(),
                 "scales {}: scales of A and of B come from files where A and B do and have any, and only there",
                 name_of(problem.scales));
  IMBREX_EXPECTS(request.a_path.empty() || !problem.bias || !request.bias_path.empty(),
                 "A and B come from files, and so must the bias");
  if (request.a_path.empty()) {
    validate(problem);
    return std::make_unique<SeededOperands>(problem, request.seed);
  }
  auto a = std::make_unique<NpyFile>(request.a_path), b = std::make_unique<NpyFile>(request.b_path);
  const NpyHeader &ha = a->header(), &hb = b->header();
  IMBREX_EXPECTS(ha.dimensions == 2 && hb.dimensions == 2, "{} is one-dimensional; A and B must be matrices",
                 ha.dimensions == 2 ? b->path() : a->path());
  for (const NpyFile* file : {a.get(), b.get()})
    IMBREX_EXPECTS(file->header().type != Type::e4m3 || problem.type == Type::e4m3,
                   "{} holds uint8, the bits of e4m3: the type must be e4m3, not {}", file->path(),
                   name_of(problem.type));
  IMBREX_EXPECTS(problem.ranks >= 1 && problem.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", problem.ranks,
                 max_ranks);
  const bool stacked = problem.op == Operator::gemm_all_to_all;
  const std::int64_t parts = stacked ? problem.ranks : 1;
  IMBREX_EXPECTS(ha.rows % parts == 0 && hb.rows % parts == 0,
                 "{}: {} rows do not divide by {} ranks, whose blocks are stacked",
                 ha.rows % parts != 0 ? a->path() : b->path(), ha.rows % parts != 0 ? ha.rows : hb.rows, parts);
  const Problem wanted = problem;
  problem.m = ha.rows / parts;
  problem.k = ha.cols;
  problem.n = hb.cols;
  IMBREX_EXPECTS(hb.rows / parts == problem.k,
                 "{} is {} x {} and {} is {} x {}: the columns of A must be the rows of B{}", a->path(), ha.rows,
                 ha.cols, b->path(), hb.rows, hb.cols, stacked ? " of one rank" : "");
  IMBREX_EXPECTS((wanted.m == 0 || wanted.m == problem.m) && (wanted.n == 0 || wanted.n == problem.n) &&
                     (wanted.k == 0 || wanted.k == problem.k),
                 "the files hold M, N, K = {}, {}, {}, not {}, {}, {} as asked", problem.m, problem.n, problem.k,
                 wanted.m, wanted.n, wanted.k);
  validate(problem);
  std::unique_ptr<NpyFile> bias;
  if (problem.bias) {
    bias = std::make_unique<NpyFile>(request.bias_path);
    const NpyHeader& h = bias->header();
    IMBREX_EXPECTS(h.rows == parts && h.cols == problem.n, "{} is {} x {}: the bias must be {} x {}", bias->path(),
                   h.rows, h.cols, parts, problem.n);
  }
  const RankShapes shapes = shapes_of(problem);
  auto a_scale = open_scales(problem, "A", request.a_scale_path, shapes.a_scale);
  auto b_scale = open_scales(problem, "B", request.b_scale_path, shapes.b_scale);
  return std::make_unique<FileOperands>(problem, std::move(a), std::move(b), std::move(bias), std::move(a_scale),
                                        std::move(b_scale));
}

}  // namespace imbrex::jobs
