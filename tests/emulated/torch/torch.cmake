# torch's half of the emulated GPU: a library in the place of libc10_cuda, libtorch_cuda and CUDA's runtime.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(made ${PROJECT_BINARY_DIR}/emulated/include)
# What a torch without CUDA leaves out of its own headers for CUDA.
file(CONFIGURE OUTPUT ${made}/c10/cuda/impl/cuda_cmake_macros.h CONTENT "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
# For the files that use CUDA alone: with the same flags as in other builds a compiler cache has the rest.
set_property(GLOBAL PROPERTY POM_CUDA_OPTIONS -isystem${POM_CUDA_HEADERS} -isystem${made})

add_library(pom_emulated_torch SHARED ${here}/device.cpp ${here}/fallback.cpp ${here}/graph.cpp ${here}/memory.cpp ${here}/products.cpp ${here}/python.cpp
                                      $<TARGET_OBJECTS:pom_emulated_machine>)
target_include_directories(pom_emulated_torch PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(pom_emulated_torch PRIVATE -Wall -Wextra -Wno-unused-parameter -isystem${POM_CUDA_HEADERS} -isystem${made})
target_link_libraries(pom_emulated_torch PRIVATE pom_torch)
set_target_properties(pom_emulated_torch PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
