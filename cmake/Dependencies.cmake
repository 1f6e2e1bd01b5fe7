# Every dependency is found on the machine, never downloaded. scripts/install-dependencies installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

# A BLAS with the CBLAS interface: static where there is one, so that a binary runs on machines without it.
find_library(IMBREX_OPENBLAS NAMES libopenblas.a openblas PATH_SUFFIXES openblas-pthread REQUIRED)
find_path(IMBREX_CBLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-pthread x86_64-linux-gnu/openblas-pthread openblas REQUIRED)
add_library(imbrex_blas INTERFACE)
target_include_directories(imbrex_blas SYSTEM INTERFACE ${IMBREX_CBLAS_INCLUDE})
target_link_libraries(imbrex_blas INTERFACE ${IMBREX_OPENBLAS} Threads::Threads m)

# What ranks of several hosts say to each other is sealed by it: static where there is one, as the BLAS.
find_library(IMBREX_SODIUM NAMES libsodium.a sodium REQUIRED)
find_path(IMBREX_SODIUM_INCLUDE NAMES sodium.h REQUIRED)
add_library(imbrex_sodium INTERFACE)
target_include_directories(imbrex_sodium SYSTEM INTERFACE ${IMBREX_SODIUM_INCLUDE})
target_link_libraries(imbrex_sodium INTERFACE ${IMBREX_SODIUM})

# fmt's shared library makes every source file compile six times faster than its header-only form; a portable build
# takes the latter, so that its binaries run where the former is not installed.
if(IMBREX_PORTABLE)
  set(IMBREX_FMT $<BUILD_INTERFACE:fmt::fmt-header-only>)
else()
  set(IMBREX_FMT fmt::fmt)
endif()

# Rings over several hosts. The library itself is found at run time: a binary starts where it is not installed.
find_path(IMBREX_FABRIC_INCLUDE NAMES rdma/fi_atomic.h DOC "Folder that holds rdma/fabric.h (libfabric 1.14 or later)")
set(IMBREX_HAVE_FABRIC OFF)
if(IMBREX_FABRIC_INCLUDE)
  set(IMBREX_HAVE_FABRIC ON)
else()
  message(NOTICE "Imbrex: no headers of libfabric (IMBREX_FABRIC_INCLUDE names its folder): rings reach PEs of one host only")
endif()

set(IMBREX_PRIVATE_DEPENDENCIES ${IMBREX_FMT} $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>
    $<BUILD_INTERFACE:imbrex_blas> $<BUILD_INTERFACE:imbrex_sodium> Threads::Threads)
