#include "program/operands.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "imbrex/npy.hpp"
#include "plan/problem.hpp"

namespace imbrex::program {

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

// The operand files that the problem has.
struct Files {
  struct OfProduct {
    std::unique_ptr<NpyFile> b, bias;
  };
  std::unique_ptr<NpyFile> a, a_scale, b_scale;
  std::array<OfProduct, max_products> products;
};

class FileOperands final : public OperandSource {
 public:
  FileOperands(const Problem& problem, Files files) : OperandSource(problem), files_(std::move(files)) {}

 private:
  const NpyFile& file(Matrix matrix) const {
    if (matrix == Matrix::a_scale) return *files_.a_scale;
    if (matrix == Matrix::b_scale) return *files_.b_scale;
    for (int product = 0; product < max_products; ++product) {
      const auto& [b, bias] = files_.products[static_cast<std::size_t>(product)];
      if (matrix == matrix_b(product)) return *b;
      if (matrix == matrix_bias(product)) return *bias;
    }
    return *files_.a;
  }

  void read(Matrix matrix, std::int64_t row, std::int64_t col, Extent extent,
            std::vector<float>& values) const override {
    file(matrix).read(row, col, extent.rows, extent.cols, values);
  }

  Files files_;
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

OperandSource::Place OperandSource::place_of(std::string_view name, int rank) const {
  const std::vector<OperandInfo> infos = operands_of(problem_);
  const auto info = std::find_if(infos.begin(), infos.end(), [&](const OperandInfo& i) { return i.name == name; });
  const auto [row, col] = problem::place_in_file(problem_, rank, *info);
  return {*info, row, col};
}

std::vector<float> OperandSource::operand_values(Matrix matrix, std::string_view name, int rank) const {
  const auto [info, row, col] = place_of(name, rank);
  std::vector<float> values(static_cast<std::size_t>(info.rows * info.cols));
  read(matrix, row, col, {info.rows, info.cols}, values);
  return values;
}

std::vector<float> OperandSource::rows_of_a(int rank, const std::vector<std::int64_t>& rows) const {
  const auto [info, row, col] = place_of("a", rank);
  std::vector<float> values, line(static_cast<std::size_t>(info.cols));
  values.reserve(rows.size() * line.size());
  for (const std::int64_t each : rows) {
    read(Matrix::a, row + each, col, {1, info.cols}, line);
    values.insert(values.end(), line.begin(), line.end());
  }
  return rounded(problem_.type, values);
}

void OperandSource::read_columns_of_b(int rank, int product, std::int64_t first, std::int64_t count,
                                      std::vector<float>& values) const {
  const auto [info, row, col] = place_of(plan::name_of_b(product), rank);
  values.resize(static_cast<std::size_t>(info.rows * count));
  read(matrix_b(product), row, col + first, {info.rows, count}, values);
  // In place, by pieces: a copy of all of them would cost the system's pages anew each time.
  std::array<std::byte, 4096 * sizeof(float)> piece;
  constexpr std::size_t most = piece.size() / sizeof(float);
  for (std::size_t at = 0; at < values.size(); at += most) {
    const auto n = static_cast<std::int64_t>(std::min(most, values.size() - at));
    base::from_float(problem_.type, &values[at], piece.data(), n);
    base::to_float(problem_.type, piece.data(), &values[at], n);
  }
}

std::vector<float> OperandSource::part_values(bool a, int rank, int product) const {
  return operand_values(a ? Matrix::a : matrix_b(product), a ? "a" : plan::name_of_b(product), rank);
}

std::vector<float> OperandSource::part_as_float(bool a, int rank, int product) const {
  return rounded(problem_.type, part_values(a, rank, product));
}

std::vector<float> OperandSource::bias_as_float(int rank, int product) const {
  if (!problem_.bias) return {};
  return rounded(output_type(problem_.type), operand_values(matrix_bias(product), plan::name_of_bias(product), rank));
}

std::vector<float> OperandSource::scales(bool a, int rank) const {
  const RankShapes shapes = shapes_of(problem_);
  const Extent extent = a ? shapes.a_scale : shapes.b_scale;
  const std::int64_t count = extent.rows * extent.cols;
  std::vector<float> values(static_cast<std::size_t>(count));
  if (count > 0) read(a ? Matrix::a_scale : Matrix::b_scale, rank, 0, {1, count}, values);
  return values;
}

std::vector<std::byte> OperandSource::part(bool a, int rank, int product) const {
  std::vector<float> values = part_values(a, rank, product);
  if (!a && plan::layout_of_b(problem_) == Layout::column_major) {
    const Extent extent{shapes_of(problem_).b.rows, plan::cols_of(problem_, product)};
    std::vector<float> by_columns(values.size());
    for (std::int64_t i = 0; i < extent.rows; ++i)
      for (std::int64_t j = 0; j < extent.cols; ++j)
        by_columns[static_cast<std::size_t>(j * extent.rows + i)] =
            values[static_cast<std::size_t>(i * extent.cols + j)];
    values.swap(by_columns);
  }
  return base::elements_of(problem_.type, values);
}

std::vector<std::byte> OperandSource::bias(int rank, int product) const {
  return base::elements_of(output_type(problem_.type), bias_as_float(rank, product));
}

namespace {

// Null where the problem has no bias.
std::unique_ptr<NpyFile> open_bias(const Problem& problem, const std::string& path, int product) {
  if (!problem.bias) return nullptr;
  auto bias = std::make_unique<NpyFile>(path);
  const std::int64_t rows = problem::descriptor_of(problem.op).stacked ? problem.ranks : 1,
                     cols = plan::n_of(problem, product);
  const NpyHeader& h = bias->header();
  IMBREX_EXPECTS(h.rows == rows && h.cols == cols, "{} is {} x {}: the {} must be {} x {}", bias->path(), h.rows,
                 h.cols, plan::name_of_bias(product), rows, cols);
  return bias;
}

// Opens the further B, and fills in their N.
void open_further(const RunRequest& request, Problem& problem, Files& files) {
  const Problem wanted = problem;
  for (int product = 1; product < max_products; ++product) {
    const auto at = static_cast<std::size_t>(product) - 1;
    const auto& [path, bias_path] = request.further[at];
    IMBREX_EXPECTS(path.empty() ? wanted.more_n[at] == 0 && bias_path.empty() : problem.bias == !bias_path.empty(),
                   "{} and {} come from files where A and B do and the problem has them, and only there",
                   plan::name_of_b(product), plan::name_of_bias(product));
    if (path.empty()) continue;
    auto b = std::make_unique<NpyFile>(path);
    const NpyHeader& h = b->header();
    IMBREX_EXPECTS(h.dimensions == 2 && h.rows == problem.k && h.cols > 0,
                   "{} is {} x {}: {} must be a matrix with as many rows as A has columns, {}", path, h.rows, h.cols,
                   plan::name_of_b(product), problem.k);
    IMBREX_EXPECTS(h.type != Type::e4m3 || problem.type == Type::e4m3,
                   "{} holds uint8, the bits of e4m3: the type must be e4m3, not {}", path, name_of(problem.type));
    IMBREX_EXPECTS(wanted.more_n[at] == 0 || wanted.more_n[at] == h.cols, "{} has {} columns, not {} as asked", path,
                   h.cols, wanted.more_n[at]);
    problem.more_n[at] = h.cols;
    files.products[static_cast<std::size_t>(product)].b = std::move(b);
  }
}

}  // namespace

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
    for (const auto& [b, bias] : request.further)
      IMBREX_EXPECTS(b.empty() && bias.empty(), "{} is given, and A and B do not come from files",
                     b.empty() ? bias : b);
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
  const bool stacked = problem::descriptor_of(problem.op).stacked;
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
  Files files;
  open_further(request, problem, files);
  validate(problem);
  files.products.front() = {std::move(b), open_bias(problem, request.bias_path, 0)};
  for (int product = 1; product < plan::count_products(problem); ++product)
    files.products[static_cast<std::size_t>(product)].bias =
        open_bias(problem, request.further[static_cast<std::size_t>(product) - 1].bias, product);
  const RankShapes shapes = shapes_of(problem);
  files.a = std::move(a);
  files.a_scale = open_scales(problem, "A", request.a_scale_path, shapes.a_scale);
  files.b_scale = open_scales(problem, "B", request.b_scale_path, shapes.b_scale);
  return std::make_unique<FileOperands>(problem, std::move(files));
}

}  // namespace imbrex::program
