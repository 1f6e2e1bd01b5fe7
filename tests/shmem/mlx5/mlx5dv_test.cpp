// Work requests are, bit for bit, what rdma-core's structs and setters make. Built where its header is found.
#include <gtest/gtest.h>

#include <random>

#include "apps/nic/queue.hpp"
#include "support/random_plan.hpp"

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>

namespace imbrex::shmem::mlx5 {
namespace {

static_assert(opcode_of(Verb::write) == MLX5_OPCODE_RDMA_WRITE && opcode_of(Verb::read) == MLX5_OPCODE_RDMA_READ);
static_assert(opcode_of(Verb::fetch_add) == MLX5_OPCODE_ATOMIC_FA);
static_assert(opcode_of(Verb::compare_swap) == MLX5_OPCODE_ATOMIC_CS);
static_assert(completes_bit == MLX5_WQE_CTRL_CQ_UPDATE && inline_bit == static_cast<std::uint32_t>(MLX5_INLINE_SEG));
static_assert(sizeof(Request) == MLX5_SEND_WQE_BB && sizeof(Completion) == sizeof(mlx5_cqe64));
static_assert(offsetof(mlx5_cqe64, wqe_counter) == 60 && offsetof(mlx5_cqe64, op_own) == 63);
static_assert(offsetof(mlx5_err_cqe, vendor_err_synd) == 54 && offsetof(mlx5_err_cqe, syndrome) == 55);
static_assert(sent_well == MLX5_CQE_REQ && sent_badly == MLX5_CQE_REQ_ERR && never_written == MLX5_CQE_INVALID);

// The same request by rdma-core.
template <Verb verb>
Request theirs(std::uint32_t index, const Fixed& fixed, const Moving& moving) {
  Request request{};
  auto* at = reinterpret_cast<std::byte*>(&request);
  mlx5dv_set_ctrl_seg(reinterpret_cast<mlx5_wqe_ctrl_seg*>(at), static_cast<std::uint16_t>(index),
                      static_cast<std::uint8_t>(opcode_of(verb)), 0, fixed.queue,
                      fixed.completes ? MLX5_WQE_CTRL_CQ_UPDATE : 0, static_cast<std::uint8_t>(segments_of(verb)), 0,
                      0);
  auto* remote = reinterpret_cast<mlx5_wqe_raddr_seg*>(at + 16);
  remote->raddr = htobe64(moving.remote);
  remote->rkey = htobe32(fixed.remote_key);
  auto* data = reinterpret_cast<mlx5_wqe_data_seg*>(at + 32);
  if constexpr (verb == Verb::write_inline) {
    reinterpret_cast<mlx5_wqe_inl_data_seg*>(at + 32)->byte_count =
        htobe32(static_cast<std::uint32_t>(MLX5_INLINE_SEG) | moving.bytes);
    std::memcpy(at + 36, &moving.operand, 8);
  } else if constexpr (segments_of(verb) == 4) {
    auto* atomic = reinterpret_cast<mlx5_wqe_atomic_seg*>(at + 32);
    atomic->swap_add = htobe64(moving.operand);
    atomic->compare = htobe64(moving.compare);
    data = reinterpret_cast<mlx5_wqe_data_seg*>(at + 48);
  }
  if constexpr (verb != Verb::write_inline) mlx5dv_set_data_seg(data, moving.bytes, fixed.local_key, moving.local);
  return request;
}

template <Verb verb>
void expect_equal(std::mt19937_64& random) {
  Request ring[16];
  const auto key = [&] { return static_cast<std::uint32_t>(random()); };
  const Fixed fixed{key() & 0xffffffu, key(), key(), random() % 2 == 0};
  const std::uint64_t results = random();
  for (std::uint32_t slot = 0; slot < 16; ++slot) prepare(ring[slot], verb, fixed, results + 8 * slot);
  // Slots are filled again and again, so that nothing of a lap stays for the next.
  for (int i = 0; i < 10; ++i) {
    const std::uint32_t index = key();
    const std::uint32_t slot = index % 16;
    Moving moving{random(), random(), key() & 0x7fffffffu, random(), random()};
    if (verb == Verb::write_inline) moving.bytes = static_cast<std::uint32_t>(1 + random() % 8);
    if (segments_of(verb) == 4) moving.bytes = 8, moving.local = results + 8 * slot;
    if (verb == Verb::fetch_add) moving.compare = 0;
    Request whole{};
    const Request expected = theirs<verb>(index, fixed, moving);
    const std::uint32_t first = build<verb>(whole, index, fixed, moving);
    ASSERT_EQ(std::memcmp(&whole, &expected, sizeof whole), 0) << "build, verb " << static_cast<int>(verb);
    ASSERT_EQ(fill<verb>(ring[slot], index, moving), first);
    ASSERT_EQ(std::memcmp(&ring[slot], &expected, sizeof whole), 0) << "fill, verb " << static_cast<int>(verb);
    // What goes into the doorbell are the request's first 8 bytes.
    std::uint32_t head[2];
    std::memcpy(head, &expected, sizeof head);
    ASSERT_EQ(head[0], first);
    ASSERT_EQ(head[1], second_word(verb, be32(fixed.queue << 8)));
  }
}

TEST(Mlx5Requests, AreRdmaCores) {
  std::mt19937_64 random(test::seed_from_environment());
  for (int i = 0; i < 200; ++i) {  // 10 requests of each verb: 10,000 in all
    expect_equal<Verb::write>(random);
    expect_equal<Verb::write_inline>(random);
    expect_equal<Verb::read>(random);
    expect_equal<Verb::fetch_add>(random);
    expect_equal<Verb::compare_swap>(random);
    if (HasFatalFailure()) return;
  }
}

TEST(Mlx5Requests, CompletionsAreReadAsRdmaCoreWritesThem) {
  std::mt19937_64 random(test::seed_from_environment());
  for (int i = 0; i < 10000; ++i) {
    Completion completion{};
    auto* cqe = reinterpret_cast<mlx5_cqe64*>(&completion);
    const auto done = static_cast<std::uint32_t>(1 + random() % 0xfffffff0u);
    const bool failed = random() % 4 == 0;
    cqe->wqe_counter = htobe16(static_cast<std::uint16_t>(done - 1));
    cqe->op_own = static_cast<std::uint8_t>((failed ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ) << 4 | (random() % 2));
    Queue queue{};
    queue.completion = &completion;
    queue.posted = done + static_cast<std::uint32_t>(random() % most_slots);
    const Progress progress = look(queue);
    ASSERT_EQ(progress.completed, done);
    ASSERT_EQ(progress.failed, failed);
  }
}

}  // namespace
}  // namespace imbrex::shmem::mlx5

#else

TEST(Mlx5Requests, AreRdmaCores) {
  GTEST_SKIP() << "infiniband/mlx5dv.h is not here: nothing was compared. scripts/install-dependencies installs it "
                  "(libibverbs-dev)";
}

#endif
