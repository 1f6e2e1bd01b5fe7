# What is installed shows the public names only: those of the classes and functions that include/imbrex/ declares, c.h's
# among them, and of the classes of its device/, whose functions are all inline. The program of the same build finds in
# addition what its own objects ask for, and no more, under a version that says whose it is: no header of it is installed.
# Tests of what is inside link another library of the same objects, `imbrex`, which shows them everything. Without tests
# there is none: what is installed lies in lib/ then, beside the program's bin/.
set(IMBREX_EXPORTS ${CMAKE_CURRENT_BINARY_DIR}/exports.map)
# Appends to `out` a pattern for each function that the headers declare in namespace `space`.
function(imbrex_functions_of out space)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(names)
  foreach(header ${ARGN})
    # A function is declared from the first column on; a type's members have its name in theirs.
    file(STRINGS ${header} lines REGEX "^[A-Za-z_][^(]*[ &*][a-z_][a-z0-9_]*\\(")
    foreach(line ${lines})
      if(NOT line MATCHES "^(inline|constexpr|template|using|static_assert|friend|namespace) ")
        string(REGEX REPLACE "^[^(]*[ &*]([a-z_][a-z0-9_]*)\\(.*" "\\1" name "${line}")
        list(APPEND names ${name})
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES names)
  foreach(name ${names})
    string(APPEND ${out} "    ${space}::${name}[!a-zA-Z0-9_]*;\n")
  endforeach()
  set(${out} "${${out}}" PARENT_SCOPE)
endfunction()
file(GLOB headers ${CMAKE_CURRENT_SOURCE_DIR}/include/imbrex/*.hpp ${CMAKE_CURRENT_SOURCE_DIR}/include/imbrex/advanced/*.hpp)
set(public "    imbrex::[A-Z]*;\n    imbrex::device::[A-Z]*;\n    imbrex::shmem::Heap::*;\n    imbrex::shmem::HeapOptions::*;\n    imbrex::operator*;\n    vtable?for?imbrex::[A-Z]*;\n    typeinfo?for?imbrex::[A-Z]*;\n    typeinfo?name?for?imbrex::[A-Z]*;\n    *thunk?to?imbrex::[A-Z]*;\n")
imbrex_functions_of(public imbrex ${headers})
set(c_functions)
foreach(c_header c.h c/infer.h)
  set(c_header ${CMAKE_CURRENT_SOURCE_DIR}/include/imbrex/${c_header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${c_header})
  file(STRINGS ${c_header} lines REGEX "^[a-z][^(]*[ *]imbrex_[a-z_]+\\(")
  foreach(line ${lines})
    string(REGEX REPLACE "^[^(]*[ *](imbrex_[a-z_]+)\\(.*" "\\1" name "${line}")
    string(APPEND c_functions "    ${name};\n")
  endforeach()
endforeach()
string(APPEND public "    imbrex::shmem::ring::Rings::[!P]*;\n")
set(IMBREX_PUBLIC_EXPORTS ${CMAKE_CURRENT_BINARY_DIR}/public_exports.txt)
file(CONFIGURE OUTPUT ${IMBREX_PUBLIC_EXPORTS} @ONLY CONTENT "@c_functions@    extern \"C++\" {\n@public@  };\n")
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/program_objects.txt CONTENT "$<JOIN:$<TARGET_OBJECTS:imbrex_program>,\n>\n")
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
add_custom_command(OUTPUT ${IMBREX_EXPORTS}
  COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.py ${CMAKE_NM} ${PROJECT_VERSION} ${IMBREX_PUBLIC_EXPORTS}
    ${CMAKE_CURRENT_BINARY_DIR}/program_objects.txt ${IMBREX_EXPORTS}
  DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.py ${IMBREX_PUBLIC_EXPORTS} $<TARGET_OBJECTS:imbrex_program>
  COMMENT "Listing what libimbrex.so shows" VERBATIM)
add_custom_target(imbrex_exports DEPENDS ${IMBREX_EXPORTS})

set(libraries imbrex_installed)
if(IMBREX_TESTS)
  list(PREPEND libraries imbrex)
  set(installed_folder ${CMAKE_BINARY_DIR}/installed)
else()
  set(installed_folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
endif()
foreach(library ${libraries})
  add_library(${library} SHARED)
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:imbrex_objects>)
  if(TARGET imbrex_sm80)
    target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:imbrex_sm80>)
  endif()
  target_include_directories(${library}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${library} PUBLIC cxx_std_20)
  # What comes in from static libraries, a BLAS and CUDA's runtime, is visible to no other library.
  target_link_options(${library} PRIVATE -Wl,-Bsymbolic-functions -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  set_target_properties(${library} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINKER_LANGUAGE CXX)
  # OpenBLAS starts no threads, and maps the memory that it is given (src/base/blas.cpp).
  target_link_options(${library} PRIVATE -Wl,--wrap=openblas_num_threads_env -Wl,--wrap=mmap)
endforeach()
list(GET libraries 0 linked)
add_library(imbrex::imbrex ALIAS ${linked})
target_link_options(imbrex_installed PRIVATE -Wl,--version-script=${IMBREX_EXPORTS})
add_dependencies(imbrex_installed imbrex_exports)
# OpenSHMEM's C names (src/shmem/c), over either: they use its public names only.
set(IMBREX_SHMEM_EXPORTS ${CMAKE_CURRENT_BINARY_DIR}/shmem_exports.map)
file(CONFIGURE OUTPUT ${IMBREX_SHMEM_EXPORTS} @ONLY CONTENT
  "IMBREX_SHMEM_@PROJECT_VERSION@ {\n  global: shmem_*;\n    extern \"C++\" { imbrex::shmem::heap*; };\n  local: *;\n};\n")
foreach(library ${libraries})
  string(REPLACE imbrex imbrex_shmem shmem ${library})
  add_library(${shmem} SHARED)
  target_link_libraries(${shmem} PRIVATE $<BUILD_INTERFACE:imbrex_shmem_objects> ${library})
  target_include_directories(${shmem}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_link_options(${shmem} PRIVATE -Wl,--version-script=${IMBREX_SHMEM_EXPORTS} -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  set_target_properties(${shmem} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINKER_LANGUAGE CXX LINK_DEPENDS ${IMBREX_SHMEM_EXPORTS})
endforeach()
string(REPLACE imbrex imbrex_shmem linked ${linked})
add_library(imbrex::shmem ALIAS ${linked})
set_target_properties(imbrex_shmem_installed PROPERTIES OUTPUT_NAME imbrex_shmem EXPORT_NAME shmem
  LIBRARY_OUTPUT_DIRECTORY ${installed_folder})
set_target_properties(imbrex_installed PROPERTIES OUTPUT_NAME imbrex EXPORT_NAME imbrex LINK_DEPENDS ${IMBREX_EXPORTS}
  LIBRARY_OUTPUT_DIRECTORY ${installed_folder})
