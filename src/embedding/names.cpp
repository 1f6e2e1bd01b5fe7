// Names of what include/imbrex/tables.hpp enumerates.
#include <array>

#include "base/named.hpp"
#include "imbrex/tables.hpp"

namespace imbrex {
namespace {

template <typename T, std::size_t N>
using Names = std::array<base::Named<T>, N>;

constexpr Names<TableRows, 4> all_rows{
    {{TableRows::fp32, "fp32"}, {TableRows::fp16, "fp16"}, {TableRows::bf16, "bf16"}, {TableRows::int8, "int8"}}};
constexpr Names<Pooling, 2> poolings{{{Pooling::sum, "sum"}, {Pooling::mean, "mean"}}};
constexpr Names<IndexType, 2> index_types{{{IndexType::int32, "int32"}, {IndexType::int64, "int64"}}};
constexpr Names<Misfits, 2> all_misfits{{{Misfits::refused, "refused"}, {Misfits::ignored, "ignored"}}};
constexpr Names<Optimizer, 2> optimizers{{{Optimizer::sgd, "sgd"}, {Optimizer::row_wise_adagrad, "row_wise_adagrad"}}};

}  // namespace

std::string_view name_of(TableRows rows) { return base::find_name(all_rows, rows); }
std::string_view name_of(Pooling pooling) { return base::find_name(poolings, pooling); }
std::string_view name_of(IndexType type) { return base::find_name(index_types, type); }
std::string_view name_of(Misfits misfits) { return base::find_name(all_misfits, misfits); }
std::string_view name_of(Optimizer optimizer) { return base::find_name(optimizers, optimizer); }

TableRows parse_table_rows(std::string_view name) { return base::find_value(all_rows, name, "a type of rows"); }
Pooling parse_pooling(std::string_view name) { return base::find_value(poolings, name, "a kind of pooling"); }
IndexType parse_index_type(std::string_view name) { return base::find_value(index_types, name, "a type of indices"); }
Misfits parse_misfits(std::string_view name) {
  return base::find_value(all_misfits, name, "what is done with misfits");
}
Optimizer parse_optimizer(std::string_view name) { return base::find_value(optimizers, name, "an optimizer"); }

}  // namespace imbrex
