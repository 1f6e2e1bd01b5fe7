#include "imbrex/types.hpp"

#include "base/check.hpp"
#include "base/text.hpp"
#include "imbrex/integers.hpp"

namespace imbrex {

std::string_view name_of(Type type) {
  switch (type) {
    case Type::bf16: return "bf16";
    case Type::fp16: return "fp16";
    case Type::fp32: return "fp32";
    case Type::e4m3: return "e4m3";
  }
  return type == type_int8 ? "int8" : type == type_int32 ? "int32" : type == type_int64 ? "int64" : "?";
}

Type parse_type(std::string_view name) {
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    if (name == name_of(type)) return type;
  IMBREX_EXPECTS(false, "'{}' is not an element type; it must be bf16, fp16, fp32 or e4m3", base::printable(name));
  return {};
}

}  // namespace imbrex
