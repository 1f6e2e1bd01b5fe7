# Warnings and sanitizers, for this project's own targets only.
add_library(imbrex_warnings INTERFACE)
target_compile_options(imbrex_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual>
  # GCC 13 warns of each reference that a function returns which was given a temporary.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${IMBREX_WERROR}>>:-Werror>)
if(IMBREX_SANITIZE)
  foreach(flag -fsanitize=${IMBREX_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
  add_link_options(-fsanitize=${IMBREX_SANITIZE})
endif()
# Reading headers is most of what a file takes: files of one folder are compiled together, each as if the others stood
# before it. Files with flags of their own are compiled alone. IMBREX_UNITY=OFF suits who changes a file at a time.
function(imbrex_compile_by_folder target)
  if(NOT IMBREX_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  get_target_property(home ${target} SOURCE_DIR)
  foreach(source ${sources})
    get_filename_component(source ${source} ABSOLUTE BASE_DIR ${home})
    get_filename_component(folder ${source} DIRECTORY)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${folder}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A class of one file may hold one of the same file's unnamed namespace.
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
endfunction()
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
