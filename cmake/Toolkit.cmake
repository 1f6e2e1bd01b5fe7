# Finds the CUDA toolkit. CMake 3.25, Debian 12's, marks a library as outdated that CUDA 13 no longer has, and fails there; it
# does not for projects that ask for an earlier CMake.
set(IMBREX_MINIMUM_CMAKE ${CMAKE_MINIMUM_REQUIRED_VERSION})
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${IMBREX_MINIMUM_CMAKE})
