/* What a rank expects, which it says where it does not hold. */
#pragma once

#include <imbrex/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int own_rank = -1;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "rank %d, line %d: %s does not hold; the last error is: %s\n", own_rank, line, what,
          imbrex_error_message());
  exit(1);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define EXPECT_OK(call) expect((call) == IMBREX_OK, #call, __LINE__)
#define EXPECT_REFUSED(call, words)                                                                             \
  expect((call) == IMBREX_INVALID_INPUT && strstr(imbrex_error_message(), words) != NULL, #call " says " words, \
         __LINE__)
