// What Python's side calls by ctypes, beside the operators that torch calls.
#pragma once

#include "imbrex/c.h"

#define IMBREX_TORCH_EXPORT __attribute__((visibility("default")))

extern "C" {

/// Connects the group of that name by imbrex_torch_connect; else writes why not, at most `bytes` with the final zero.
using imbrex_torch_connect_function = imbrex_status(const char* name, char* message, size_t bytes);
IMBREX_TORCH_EXPORT void imbrex_torch_set_connect(imbrex_torch_connect_function* connect);

/// The world stays its maker's, who ends it behind imbrex_torch_disconnect. Both are called by all ranks alike.
/// `gpu_heap_limit`: of imbrex_operator_options, for all operators of the group.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_connect(const char* name, imbrex_world* world, int32_t cpu_workers,
                                                       uint64_t gpu_heap_limit);
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_disconnect(const char* name);

/// As imbrex_world_trim and imbrex_world_restore, between calls of the group.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_trim(const char* name);
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_restore(const char* name);

/// Fails for what failed in the group's calls so far.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_check(const char* name);

/// This rank refuses its next call of the group, which is connected first where it is not yet.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_refuse(const char* name, const char* reason);

/// As imbrex_world_ask, of the group's next call.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_ask(const char* name, const char* field, const char* value);

/// Collective: of the group's last all-reduce that was made with a report.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_report(const char* name, imbrex_report* report);

/// The code of the calling thread's last error; its text is torch's, or imbrex_torch_last_message's.
IMBREX_TORCH_EXPORT imbrex_status imbrex_torch_last_code(void);
IMBREX_TORCH_EXPORT const char* imbrex_torch_last_message(void);

/// What is counted at `index`, calls of an operator of that name or, last, "made": operators; null after that.
IMBREX_TORCH_EXPORT const char* imbrex_torch_counted(int32_t index);

/// How often; -1 for other numbers.
IMBREX_TORCH_EXPORT int64_t imbrex_torch_count(int32_t index);

/// The schema at `index`, or null after the last.
IMBREX_TORCH_EXPORT const char* imbrex_torch_schema(int32_t index);
}
