# The CUDA kernels for a GPU that is emulated on the CPU (machine.h): each .cu goes through the preprocessor and
# translate.py, and what comes out is C++. Needs CUDA's headers, but neither nvcc nor a GPU.
set(POM_EMULATED_FOLDER ${CMAKE_CURRENT_LIST_DIR})
find_path(POM_CUDA_HEADERS cuda_runtime_api.h PATHS ${CUDAToolkit_ROOT}/include $ENV{CUDA_HOME}/include
                                                     /usr/local/cuda/include REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# Translated copies of .cu files: pom_emulated_sources(VARIABLE a.cu ...)
function(pom_emulated_sources variable)
  set(made "")
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
    set(output ${PROJECT_BINARY_DIR}/emulated/${name}.cpp)
    cmake_path(GET output PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${POM_EMULATED_FOLDER}/translate.sh ${CMAKE_CXX_COMPILER} ${Python3_EXECUTABLE} ${name} ${output} ${output}.d
              -I. -isystem ${POM_CUDA_HEADERS}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      DEPENDS ${path} ${POM_EMULATED_FOLDER}/translate.sh ${POM_EMULATED_FOLDER}/translate.py ${POM_EMULATED_FOLDER}/cuda.h
      DEPFILE ${output}.d
      COMMENT "Translating ${name}"
      VERBATIM)
    list(APPEND made ${output})
  endforeach()
  # Warnings were given where the files are compiled as what they are.
  set_source_files_properties(${made} PROPERTIES COMPILE_OPTIONS "-fpreprocessed;-w;-Wno-psabi;-O1;-march=native" SKIP_UNITY_BUILD_INCLUSION ON)
  set(${variable} ${made} PARENT_SCOPE)
endfunction()

# An object library of emulated kernels.
function(pom_emulated_objects name)
  pom_emulated_sources(sources ${ARGN})
  add_library(${name} OBJECT ${sources})
  target_link_libraries(${name} PUBLIC pom_emulated_machine)
endfunction()

add_library(pom_emulated_machine OBJECT ${POM_EMULATED_FOLDER}/machine.cpp ${POM_EMULATED_FOLDER}/runtime.cpp)
target_include_directories(pom_emulated_machine PUBLIC ${PROJECT_SOURCE_DIR})
target_include_directories(pom_emulated_machine SYSTEM PUBLIC ${POM_CUDA_HEADERS})
# The products of an emulated tensor core are most of the time.
target_compile_options(pom_emulated_machine PRIVATE -Wall -Wextra -O2 -march=native)
