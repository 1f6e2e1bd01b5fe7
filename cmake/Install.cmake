# `cmake --install`: the library, its headers, the program, the machine files, and a package for find_package(imbrex).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(IMBREX_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/imbrex)

# A folder in which parts alone were built, as scripts/demo does, lacks some of what is installed: it is built now.
install(CODE "
  foreach(made $<TARGET_FILE:imbrex_installed> $<TARGET_FILE:imbrex_shmem_installed> $<TARGET_FILE:imbrex_cli>)
    if(NOT EXISTS \"\${made}\")
      message(STATUS \"Not built yet: \${made}\")
      execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --target imbrex_package
        COMMAND_ERROR_IS_FATAL ANY)
    endif()
  endforeach()")
install(TARGETS imbrex_installed imbrex_shmem_installed EXPORT imbrex_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# What the library needs may lie in the same folder, as in the Python package.
set_target_properties(imbrex_installed imbrex_shmem_installed PROPERTIES INSTALL_RPATH "$ORIGIN")
# The program finds the library beside itself, wherever both are moved.
file(RELATIVE_PATH lib_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(imbrex_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
install(TARGETS imbrex_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# All that must be built before an installation. The Python package installs, and builds no more than this; it links the
# library by this name.
add_custom_target(imbrex_package
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/package
  COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE:imbrex_installed> ${CMAKE_BINARY_DIR}/package/libimbrex.so
  DEPENDS imbrex_installed imbrex_shmem_installed imbrex_cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/imbrex DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh" PATTERN "*.h")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/machines DESTINATION ${CMAKE_INSTALL_DATADIR}/imbrex FILES_MATCHING PATTERN "*.json")
# `imbrex bench all`, and the scripts that it starts.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench DESTINATION ${CMAKE_INSTALL_DATADIR}/imbrex FILES_MATCHING PATTERN "*.py" PATTERN "measure"
  PATTERN "results" EXCLUDE PATTERN "data" EXCLUDE PATTERN "perplexity" EXCLUDE PATTERN "versions" EXCLUDE)
# Which tiles there are, for its fit.
install(FILES ${PROJECT_SOURCE_DIR}/src/execute/cuda/products/variants.def
  DESTINATION ${CMAKE_INSTALL_DATADIR}/imbrex/src/execute/cuda/products)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD_PARTY_LICENSES.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/imbrex)

# For builds without CMake.
set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH IMBREX_PREFIX_FROM_PC ${CMAKE_INSTALL_PREFIX}/${pc_folder} ${CMAKE_INSTALL_PREFIX})
foreach(library imbrex imbrex_shmem)
  set(IMBREX_PC_NAME Imbrex)
  set(IMBREX_PC_ABOUT "GEMMs that overlap with the collectives that depend on them, C++20 and C")
  set(IMBREX_PC_REQUIRES)
  set(IMBREX_PC_LIBRARY ${library})
  if(library STREQUAL "imbrex_shmem")
    set(IMBREX_PC_NAME "Imbrex' OpenSHMEM")
    set(IMBREX_PC_ABOUT "OpenSHMEM's names in C")
    set(IMBREX_PC_REQUIRES "imbrex = ${PROJECT_VERSION}")
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/imbrex.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${library}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${library}.pc DESTINATION ${pc_folder})
endforeach()
install(EXPORT imbrex_targets NAMESPACE imbrex:: DESTINATION ${IMBREX_PACKAGE_DIR} FILE imbrexTargets.cmake)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/imbrexConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/imbrexConfig.cmake
  INSTALL_DESTINATION ${IMBREX_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_DATADIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/imbrexConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/imbrexConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/imbrexConfigVersion.cmake
  DESTINATION ${IMBREX_PACKAGE_DIR})
