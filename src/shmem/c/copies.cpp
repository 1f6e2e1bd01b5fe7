// Puts, gets and puts with signals.
#include "shmem/c/process.hpp"

namespace imbrex::shmem::c {
namespace {

void put(const char* name, shmem_ctx_t ctx, void* dest, const void* source, std::size_t count, std::size_t size,
         int pe) {
  call(name, [&](Process& p) {
    const std::uint32_t to = p.pe(ctx, pe);
    p.expect_held("dest", dest, count, size);
    if (count != 0) expect_given("source", source);
    p.write(dest, source, count * size, to);
  });
}

void get(const char* name, shmem_ctx_t ctx, void* dest, const void* source, std::size_t count, std::size_t size,
         int pe) {
  call(name, [&](Process& p) {
    const std::uint32_t from = p.pe(ctx, pe);
    p.expect_held("source", source, count, size);
    if (count != 0) expect_given("dest", dest);
    p.read(dest, source, count * size, from);
  });
}

template <typename T>
void put_one(const char* name, shmem_ctx_t ctx, T* dest, T value, int pe) {
  call(name, [&](Process& p) {
    const std::uint32_t to = p.pe(ctx, pe);
    p.expect_words("dest", dest, 1, sizeof(T));
    if constexpr (Scalar<T>) {
      if (p.heap().device() == Device::cpu) return p.context().p(dest, value, to);
    }
    p.write(dest, &value, sizeof value, to);
  });
}

template <typename T>
T get_one(const char* name, shmem_ctx_t ctx, const T* source, int pe) {
  return call(name, [&](Process& p) {
    const std::uint32_t from = p.pe(ctx, pe);
    p.expect_words("source", source, 1, sizeof(T));
    if constexpr (Scalar<T>) {
      if (p.heap().device() == Device::cpu) return p.context().g(source, from);
    }
    T value{};
    p.read(&value, source, sizeof value, from);
    return value;
  });
}

/// What strided copies move: blocks of so many elements, each so many elements behind the one before it.
struct Blocks {
  std::ptrdiff_t dst, sst;
  std::size_t each, count, size;

  void expect_held(Process& p, const char* argument, const void* address, const char* name,
                   std::ptrdiff_t stride) const {
    IMBREX_EXPECTS(stride >= 1 && static_cast<std::size_t>(stride) >= each,
                   "{} = {}: what lies so far apart, {} elements each, must not overlap", name, stride, each);
    p.expect_span_held(argument, address, span_of(count, each, static_cast<std::size_t>(stride)), size);
  }

  /// The other side lies anywhere, and its blocks may overlap.
  void expect_addresses(Process& p, const char* argument, const void* address, const char* name,
                        std::ptrdiff_t stride) const {
    IMBREX_EXPECTS(stride >= 1, "{} = {}: a stride must be 1 or more", name, stride);
    p.expect_addresses(argument, address, span_of(count, each, static_cast<std::size_t>(stride)), size);
  }
};

const std::byte* at(const void* first, std::ptrdiff_t stride, std::size_t block, std::size_t size) {
  return static_cast<const std::byte*>(first) + static_cast<std::size_t>(stride) * block * size;
}

std::byte* at(void* first, std::ptrdiff_t stride, std::size_t block, std::size_t size) {
  return static_cast<std::byte*>(first) + static_cast<std::size_t>(stride) * block * size;
}

void put_blocks(const char* name, shmem_ctx_t ctx, void* dest, const void* source, const Blocks& blocks, int pe) {
  call(name, [&](Process& p) {
    const std::uint32_t to = p.pe(ctx, pe);
    if (blocks.count == 0 || blocks.each == 0) return;
    blocks.expect_addresses(p, "source", source, "sst", blocks.sst);
    blocks.expect_held(p, "dest", dest, "dst", blocks.dst);
    for (std::size_t i = 0; i < blocks.count; ++i)
      p.write(at(dest, blocks.dst, i, blocks.size), at(source, blocks.sst, i, blocks.size), blocks.each * blocks.size,
              to);
  });
}

void get_blocks(const char* name, shmem_ctx_t ctx, void* dest, const void* source, const Blocks& blocks, int pe) {
  call(name, [&](Process& p) {
    const std::uint32_t from = p.pe(ctx, pe);
    if (blocks.count == 0 || blocks.each == 0) return;
    blocks.expect_addresses(p, "dest", dest, "dst", blocks.dst);
    blocks.expect_held(p, "source", source, "sst", blocks.sst);
    for (std::size_t i = 0; i < blocks.count; ++i)
      p.read(at(dest, blocks.dst, i, blocks.size), at(source, blocks.sst, i, blocks.size), blocks.each * blocks.size,
             from);
  });
}

SignalOperation operation_of(int sig_op) {
  IMBREX_EXPECTS(sig_op == SHMEM_SIGNAL_SET || sig_op == SHMEM_SIGNAL_ADD,
                 "sig_op = {}: it must be SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD", sig_op);
  return sig_op == SHMEM_SIGNAL_SET ? SignalOperation::set : SignalOperation::add;
}

void put_signal(const char* name, shmem_ctx_t ctx, void* dest, const void* source, std::size_t count, std::size_t size,
                std::uint64_t* sig_addr, std::uint64_t signal, int sig_op, int pe) {
  call(name, [&](Process& p) {
    const std::uint32_t to = p.pe(ctx, pe);
    const SignalOperation operation = operation_of(sig_op);
    p.expect_on_host();
    p.expect_held("dest", dest, count, size);
    p.expect_words("sig_addr", sig_addr, 1, sizeof *sig_addr);
    if (count != 0) expect_given("source", source);
    if (count == 0)
      return operation == SignalOperation::set ? p.context().signal_set(sig_addr, signal, to)
                                               : p.context().signal_add(sig_addr, signal, to);
    p.context().put_signal(static_cast<std::byte*>(dest), static_cast<const std::byte*>(source), count * size, sig_addr,
                           signal, operation, to);
  });
}

}  // namespace
}  // namespace imbrex::shmem::c

using namespace imbrex::shmem::c;

// SIZE: of an element.
#define COPIES(PUT, GET, TYPE, SIZE)                                                            \
  IMBREX_SHMEM_DEFINE_BOTH(void, PUT, (TYPE * dest, const TYPE* source, size_t nelems, int pe), \
                           put(__func__, ctx, dest, source, nelems, SIZE, pe);)                 \
  IMBREX_SHMEM_DEFINE_BOTH(void, GET, (TYPE * dest, const TYPE* source, size_t nelems, int pe), \
                           get(__func__, ctx, dest, source, nelems, SIZE, pe);)
#define NBI_COPIES(PUT, GET, TYPE, SIZE) COPIES(PUT, GET, TYPE, SIZE) COPIES(PUT##_nbi, GET##_nbi, TYPE, SIZE)

#define STRIDED(NAME, BLOCK_NAME, TYPE, SIZE, MOVE)                                                                \
  IMBREX_SHMEM_DEFINE_BOTH(void, NAME,                                                                             \
                           (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe), \
                           MOVE(__func__, ctx, dest, source, {dst, sst, 1, nelems, SIZE}, pe);)                    \
  IMBREX_SHMEM_DEFINE_BOTH(                                                                                        \
      void, BLOCK_NAME,                                                                                            \
      (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe),       \
      MOVE(__func__, ctx, dest, source, {dst, sst, bsize, nblocks, SIZE}, pe);)

#define PUT_SIGNAL(NAME, TYPE, SIZE)                                                                             \
  IMBREX_SHMEM_DEFINE_BOTH(                                                                                      \
      void, NAME,                                                                                                \
      (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr, uint64_t signal, int sig_op, int pe), \
      put_signal(__func__, ctx, dest, source, nelems, SIZE, sig_addr, signal, sig_op, pe);)
#define NBI_PUT_SIGNAL(NAME, TYPE, SIZE) PUT_SIGNAL(NAME, TYPE, SIZE) PUT_SIGNAL(NAME##_nbi, TYPE, SIZE)

#define ALL_OF_TYPE(TYPE, NAME, A)                                            \
  NBI_COPIES(NAME##_put, NAME##_get, TYPE, sizeof(TYPE))                      \
  STRIDED(NAME##_iput, NAME##_ibput, TYPE, sizeof(TYPE), put_blocks)          \
  STRIDED(NAME##_iget, NAME##_ibget, TYPE, sizeof(TYPE), get_blocks)          \
  NBI_PUT_SIGNAL(NAME##_put_signal, TYPE, sizeof(TYPE))                       \
  IMBREX_SHMEM_DEFINE_BOTH(void, NAME##_p, (TYPE * dest, TYPE value, int pe), \
                           put_one(__func__, ctx, dest, value, pe);)          \
  IMBREX_SHMEM_DEFINE_BOTH(TYPE, NAME##_g, (const TYPE* source, int pe), return get_one(__func__, ctx, source, pe);)
#define ALL_OF_SIZE(BITS, A)                                   \
  NBI_COPIES(put##BITS, get##BITS, void, BITS / 8)             \
  STRIDED(iput##BITS, ibput##BITS, void, BITS / 8, put_blocks) \
  STRIDED(iget##BITS, ibget##BITS, void, BITS / 8, get_blocks) \
  NBI_PUT_SIGNAL(put##BITS##_signal, void, BITS / 8)

IMBREX_SHMEM_TYPES(ALL_OF_TYPE, )
IMBREX_SHMEM_SIZES(ALL_OF_SIZE, )
NBI_COPIES(putmem, getmem, void, 1)
NBI_PUT_SIGNAL(putmem_signal, void, 1)

IMBREX_SHMEM_DEFINE_BOTH(void, signal_set, (uint64_t * sig_addr, uint64_t signal, int pe),
                         put_signal(__func__, ctx, nullptr, nullptr, 0, 1, sig_addr, signal, SHMEM_SIGNAL_SET, pe);)
IMBREX_SHMEM_DEFINE_BOTH(void, signal_add, (uint64_t * sig_addr, uint64_t signal, int pe),
                         put_signal(__func__, ctx, nullptr, nullptr, 0, 1, sig_addr, signal, SHMEM_SIGNAL_ADD, pe);)
