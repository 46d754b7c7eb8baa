# `cmake --install`: libpom.so, the program, the headers of the rooms, and what find_package(pom) needs to give pom::pom.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Torch stays where it is: the library finds it by its full path, installed as in the build. CMake by itself leaves out
# a folder inside the source tree, which .venv is.
set_target_properties(pom PROPERTIES INSTALL_RPATH ${TORCH_INSTALL_PREFIX}/lib INSTALL_RPATH_USE_LINK_PATH ON
                                     BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS pom EXPORT pomTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                      INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET pom_cli) # finds the libraries beside itself (in the build folder: with itself), wherever all are moved together
  set_target_properties(pom_cli PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(pom_program PROPERTIES INSTALL_RPATH "$ORIGIN;${TORCH_INSTALL_PREFIX}/lib")
  install(TARGETS pom_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL) # where it was built
  install(TARGETS pom_program LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/pom DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "ops/cpu" EXCLUDE)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/pom)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" POM_TORCH_VERSION "${Torch_VERSION}")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/pomConfig.cmake.in ${PROJECT_BINARY_DIR}/pomConfig.cmake
                              INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pomConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT pomTargets NAMESPACE pom:: DESTINATION ${config_folder})
install(FILES ${PROJECT_BINARY_DIR}/pomConfig.cmake ${PROJECT_BINARY_DIR}/pomConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/PomFindTorch.cmake DESTINATION ${config_folder})
