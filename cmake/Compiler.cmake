# Warnings and sanitizers, for this project's own targets only.
add_library(imbrex_warnings INTERFACE)
target_compile_options(imbrex_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${IMBREX_WERROR}>>:-Werror>)
if(IMBREX_SANITIZE)
  foreach(flag -fsanitize=${IMBREX_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
  add_link_options(-fsanitize=${IMBREX_SANITIZE})
endif()
# Across files, GCC sees what no file shows: two types, or functions, of one name.
# Objects hold no machine code: nothing of them is installed, and to make it twice takes three times as long.
set(IMBREX_LTO_COMPILE_FLAGS -flto=auto -fno-fat-lto-objects)
set(IMBREX_LTO_LINK_FLAGS -flto=auto -Werror=odr -Werror=lto-type-mismatch)
if(IMBREX_LTO)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(FATAL_ERROR "IMBREX_LTO=ON needs GCC: the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  foreach(flag ${IMBREX_LTO_COMPILE_FLAGS})  # nvcc's objects stay as they are
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
  add_link_options(${IMBREX_LTO_LINK_FLAGS})
endif()
if(IMBREX_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
find_program(IMBREX_CCACHE ccache)
if(IMBREX_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${IMBREX_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${IMBREX_CCACHE})
endif()
# A compiler cache would not know what is in a precompiled header.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
