#include "c/error.hpp"

#include <new>
#include <string>

namespace imbrex::c {
namespace {

thread_local std::string kept;
thread_local const char* message = "";

imbrex_status keep(imbrex_status status, const char* text) noexcept {
  try {
    kept = text;
    message = kept.c_str();
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  }
  return status;
}

}  // namespace

static_assert(static_cast<int>(ErrorCode::unsound) == IMBREX_UNSOUND);
static_assert(static_cast<int>(ErrorCode::invalid_input) == IMBREX_INVALID_INPUT);
static_assert(static_cast<int>(ErrorCode::runtime_failure) == IMBREX_RUNTIME_FAILURE);

imbrex_status keep_error() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(static_cast<imbrex_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return keep(IMBREX_RUNTIME_FAILURE, "out of memory");
  } catch (const std::exception& error) {
    return keep(IMBREX_RUNTIME_FAILURE, error.what());
  } catch (...) {
    return keep(IMBREX_RUNTIME_FAILURE, "an exception that is no std::exception");
  }
}

}  // namespace imbrex::c

const char* imbrex_error_message(void) noexcept { return imbrex::c::message; }

const char* imbrex_version(void) noexcept {
#define IMBREX_TEXT_OF(number) #number
#define IMBREX_VERSION_OF(major, minor, patch) IMBREX_TEXT_OF(major) "." IMBREX_TEXT_OF(minor) "." IMBREX_TEXT_OF(patch)
  return IMBREX_VERSION_OF(IMBREX_VERSION_MAJOR, IMBREX_VERSION_MINOR, IMBREX_VERSION_PATCH);
}
