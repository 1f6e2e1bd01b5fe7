// Teams, and contexts of teams.
#include "names.hpp"

#if IMBREX_TEST_SHMEM_15
namespace names {
namespace {

void check_predefined() {
  const char* const name = "predefined teams";
  for (const shmem_team_t team : {SHMEM_TEAM_WORLD, SHMEM_TEAM_SHARED}) {
    NAMES_EXPECT(shmem_team_my_pe(team) == me() && shmem_team_n_pes(team) == size());
    NAMES_EXPECT(shmem_team_translate_pe(team, next(), SHMEM_TEAM_WORLD) == next());
    NAMES_EXPECT(shmem_team_sync(team) == 0);
  }
  NAMES_EXPECT(shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1 && shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1);
  NAMES_EXPECT(shmem_team_translate_pe(SHMEM_TEAM_WORLD, 0, SHMEM_TEAM_INVALID) == -1);
  NAMES_EXPECT(shmem_team_translate_pe(SHMEM_TEAM_WORLD, size(), SHMEM_TEAM_WORLD) == -1);
  shmem_team_destroy(SHMEM_TEAM_INVALID);
  shmem_team_t made = SHMEM_TEAM_WORLD;
  NAMES_EXPECT(shmem_team_split_strided(SHMEM_TEAM_INVALID, 0, 1, 1, nullptr, 0, &made) != 0);
  NAMES_EXPECT(made == SHMEM_TEAM_INVALID);
  cases += 4;
}

void check_strided() {
  const char* const name = "shmem_team_split_strided";
  const int members = (size() + 1) / 2;
  const shmem_team_config_t config = {3};
  shmem_team_t even = SHMEM_TEAM_WORLD;
  NAMES_EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, members, &config, SHMEM_TEAM_NUM_CONTEXTS, &even) == 0);
  NAMES_EXPECT((even != SHMEM_TEAM_INVALID) == (me() % 2 == 0));
  Shared<int> box(1);
  if (even != SHMEM_TEAM_INVALID) {
    NAMES_EXPECT(shmem_team_my_pe(even) == me() / 2 && shmem_team_n_pes(even) == members);
    shmem_team_config_t told = {0};
    NAMES_EXPECT(shmem_team_get_config(even, SHMEM_TEAM_NUM_CONTEXTS, &told) == 0 && told.num_contexts == 3);
    NAMES_EXPECT(shmem_team_translate_pe(even, members - 1, SHMEM_TEAM_WORLD) == 2 * (members - 1));
    NAMES_EXPECT(shmem_team_translate_pe(SHMEM_TEAM_WORLD, 1 % size(), even) == (size() == 1 ? 0 : -1));
    NAMES_EXPECT(shmem_team_ptr(even, box.get(), members - 1) == shmem_ptr(box.get(), 2 * (members - 1)));
    NAMES_EXPECT(shmem_team_ptr(SHMEM_TEAM_INVALID, box.get(), 0) == nullptr);
    // PEs of its contexts are the team's.
    shmem_ctx_t ctx = SHMEM_CTX_INVALID;
    shmem_team_t of = SHMEM_TEAM_INVALID;
    NAMES_EXPECT(shmem_team_create_ctx(even, SHMEM_CTX_SERIALIZED, &ctx) == 0);
    NAMES_EXPECT(shmem_ctx_get_team(ctx, &of) == 0 && of == even);
    const int to = (shmem_team_my_pe(even) + 1) % members;
    shmem_ctx_int_p(ctx, box.get(), shmem_team_my_pe(even) + 10, to);
    shmem_ctx_quiet(ctx);
    shmem_team_sync(even);
    NAMES_EXPECT(box[0] == (shmem_team_my_pe(even) + members - 1) % members + 10);
    NAMES_EXPECT(shmem_ctx_int_atomic_fetch_add(ctx, box.get(), 1, shmem_team_my_pe(even)) == box[0] - 1);
    const int pes[] = {to};
    shmem_ctx_pe_quiet(ctx, pes, 1);
    shmem_ctx_fence(ctx);
    const shmem_ctx_session_config_t session = {100};
    shmem_ctx_session_start(ctx, SHMEM_CTX_SESSION_BATCH, &session, SHMEM_CTX_SESSION_TOTAL_OPS);
    shmem_ctx_session_stop(ctx);
    shmem_ctx_destroy(ctx);
    // A team of the team, the other way round.
    shmem_team_t back = SHMEM_TEAM_INVALID;
    NAMES_EXPECT(shmem_team_split_strided(even, members - 1, -1, members, nullptr, 0, &back) == 0);
    NAMES_EXPECT(shmem_team_my_pe(back) == members - 1 - shmem_team_my_pe(even));
    for (int i = 0; i < 100; ++i) NAMES_EXPECT(shmem_team_sync(i % 2 == 0 ? back : even) == 0);
    NAMES_EXPECT(shmem_team_create_ctx(back, 0, &ctx) == 0);  // goes with its team
    shmem_team_destroy(back);
    shmem_team_destroy(even);
  }
  shmem_ctx_t ctx = SHMEM_CTX_DEFAULT;
  NAMES_EXPECT(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
  shmem_ctx_destroy(SHMEM_CTX_INVALID);
  shmem_team_t of = SHMEM_TEAM_INVALID;
  NAMES_EXPECT(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &of) == 0 && of == SHMEM_TEAM_WORLD);
  NAMES_EXPECT(shmem_ctx_get_team(SHMEM_CTX_INVALID, &of) != 0 && of == SHMEM_TEAM_INVALID);
  cases += 12;
}

void check_2d() {
  const char* const name = "shmem_team_split_2d";
  for (int columns = 1; columns <= size() + 1; ++columns) {
    const int width = columns < size() ? columns : size();
    shmem_team_t x = SHMEM_TEAM_INVALID, y = SHMEM_TEAM_INVALID;
    NAMES_EXPECT(shmem_team_split_2d(SHMEM_TEAM_WORLD, columns, nullptr, 0, &x, nullptr, 0, &y) == 0);
    NAMES_EXPECT(shmem_team_my_pe(x) == me() % width && shmem_team_my_pe(y) == me() / width);
    NAMES_EXPECT(shmem_team_translate_pe(x, 0, SHMEM_TEAM_WORLD) == me() / width * width);
    NAMES_EXPECT(shmem_team_translate_pe(y, 0, SHMEM_TEAM_WORLD) == me() % width);
    const int row = size() - me() / width * width;
    NAMES_EXPECT(shmem_team_n_pes(x) == (row < width ? row : width));
    NAMES_EXPECT(shmem_team_n_pes(y) == (size() - me() % width + width - 1) / width);
    shmem_team_sync(x);
    shmem_team_sync(y);
    shmem_team_destroy(x);
    shmem_team_destroy(y);
    ++cases;
  }
}

/// There are 64 at once, on every PE; those that are gone make room.
void check_many() {
  const char* const name = "many teams";
  shmem_team_t teams[70];
  for (int turn = 0; turn < 2; ++turn) {
    int made = 0;
    while (made < 70 && shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, size(), nullptr, 0, &teams[made]) == 0) ++made;
    NAMES_EXPECT(made == 63 && teams[made] == SHMEM_TEAM_INVALID);
    for (int i = 0; i < made; ++i) shmem_team_destroy(teams[i]);
    ++cases;
  }
}

}  // namespace

void check_teams() {
  check_predefined();
  check_strided();
  check_2d();
  check_many();
  shmem_sync_all();
}

}  // namespace names
#endif
