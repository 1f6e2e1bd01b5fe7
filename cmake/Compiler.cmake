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
if(IMBREX_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
find_program(IMBREX_CCACHE ccache)
if(IMBREX_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${IMBREX_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${IMBREX_CCACHE})
endif()
