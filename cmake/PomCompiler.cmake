# Compiler settings shared by every room, and the functions that rooms and tests are declared with.

# With the base directory a clone of the same sources somewhere else finds what this one has compiled.
find_program(CCACHE ccache)
set(POM_CCACHE ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE})
if(DEFINED ENV{CCACHE_BASEDIR})
  set(POM_CCACHE ${CMAKE_COMMAND} -E env ${CCACHE})
endif()
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${POM_CCACHE})
endif()
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${POM_CCACHE})
endif()

add_library(pom_settings INTERFACE)
target_include_directories(pom_settings INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_compile_options(pom_settings INTERFACE -Wall -Wextra -Wno-unused-parameter)
if(POM_WERROR)
  target_compile_options(pom_settings INTERFACE -Werror)
endif()
if(POM_SANITIZE)
  add_compile_options(-fsanitize=${POM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${POM_SANITIZE})
endif()

# pom_unity(TARGET): several of its sources go through the compiler as one, because most of the time is for torch's
# headers. Sources with options of their own stay alone. CMake's own way names sources by absolute paths, which no
# other clone has: that would keep ccache from finding them.
option(POM_UNITY "Compile several sources as one: quicker from scratch, slower after an edit" ON)
function(pom_unity target)
  if(POM_UNITY)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL pom_join_sources [[${target}]])") # all sources are known then
    # GCC takes such a source for a header, whose classes may have no members of unnamed namespaces.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(pom_join_sources target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(apart ${target} POM_APART)
  set(alone "")
  set(together "")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} OUTPUT_VARIABLE path)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR ${path} inside)
    set(own ${apart})
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FLAGS INCLUDE_DIRECTORIES HEADER_FILE_ONLY GENERATED
            SKIP_UNITY_BUILD_INCLUSION)
      get_source_file_property(value ${path} ${property})
      if(value)
        set(own ON)
      endif()
    endforeach()
    if(own OR NOT inside OR NOT path MATCHES "[.]cpp$")
      list(APPEND alone ${source})
    elseif(NOT EXISTS ${path})
      message(FATAL_ERROR "${target}: there is no source ${path}")
    else()
      file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
      list(APPEND together ${name})
    endif()
  endforeach()
  list(LENGTH together count)
  set(at 0)
  while(at LESS count)
    list(SUBLIST together ${at} 8 some)
    list(TRANSFORM some REPLACE "(.+)" "#include \"\\1\"")
    list(JOIN some "\n" text)
    set(joined ${CMAKE_CURRENT_BINARY_DIR}/joined/${target}_${at}.cpp)
    file(CONFIGURE OUTPUT ${joined} CONTENT "${text}\n" @ONLY)
    list(APPEND alone ${joined})
    math(EXPR at "${at} + 8")
  endwhile()
  set_property(TARGET ${target} PROPERTY SOURCES ${alone})
endfunction()

# pom_room(NAME SOURCES a.cpp ... LINK target ...): one room of the house, an object library that the shared
# library pom is assembled from. LINK names the rooms (and packages) it may use.
function(pom_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;LINK" ${ARGN})
  add_library(pom_${name} OBJECT ${ROOM_SOURCES})
  target_link_libraries(pom_${name} PUBLIC pom_settings ${ROOM_LINK})
  pom_unity(pom_${name})
  set_property(GLOBAL APPEND PROPERTY POM_ROOMS pom_${name})
endfunction()

# pom_precompiled(TARGET): a program of the tests takes the headers that test_headers (tests/CMakeLists.txt) has compiled,
# which works with equal flags only.
function(pom_precompiled target)
  if(NOT target STREQUAL test_headers)
    target_precompile_headers(${target} REUSE_FROM test_headers)
  endif()
  if(CCACHE AND CMAKE_CXX_COMPILER_LAUNCHER STREQUAL POM_CCACHE) # ccache's manual asks for both
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    list(INSERT POM_CCACHE 3 CCACHE_SLOPPINESS=pch_defines,time_macros)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${POM_CCACHE}")
  endif()
endfunction()

# pom_test(room/file.cpp [LINK target ...] [ISA name ...]): one GoogleTest program, registered with ctest under its
# path, and once more for each instruction set named (one that this machine would not choose by itself).
function(pom_test source)
  cmake_parse_arguments(TEST "" "" "LINK;ISA" ${ARGN})
  string(REGEX REPLACE "\\.cpp$" "" name ${source})
  string(REPLACE "/" "_" target test_${name})
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE pom_settings ${TEST_LINK} GTest::gtest_main)
  if(NOT "pom_base" IN_LIST TEST_LINK) # which knows no torch
    pom_precompiled(${target})
  endif()
  add_test(NAME ${name} COMMAND ${target})
  # Threads that wait asleep, because tests run beside other work; sums in one order, as pom has them.
  set(environment ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 OMP_WAIT_POLICY=PASSIVE MKL_CBWR=AUTO,STRICT)
  if(POM_SANITIZE MATCHES address) # a prebuilt torch marks no containers and keeps what it has to the end
    set(options detect_container_overflow=0)
    if("pom" IN_LIST TEST_LINK)
      string(APPEND options :detect_leaks=0)
    endif()
    list(APPEND environment ASAN_OPTIONS=${options})
  endif()
  # Runs of one program at the same time would choose the same name for their reports.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}" RESOURCE_LOCK ${target})
  foreach(isa ${TEST_ISA})
    add_test(NAME ${name}@${isa} COMMAND ${target})
    set_tests_properties(${name}@${isa} PROPERTIES ENVIRONMENT "${environment};POM_CPU_ISA=${isa}" RESOURCE_LOCK ${target})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY POM_TESTS ${source})
endfunction()

# pom_exports(TARGET MAP): a shared library that shows the names of cmake/MAP alone, linked by the C++ compiler also
# where CUDA objects are among its parts: nvcc's host compiler may be another one, with a standard library of its own.
function(pom_exports target map)
  set(script ${PROJECT_SOURCE_DIR}/cmake/${map})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${script})
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(${target} PRIVATE LINKER:--version-script=${script})
  endif()
endfunction()
