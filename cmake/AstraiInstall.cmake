# The C++ package: headers, static libraries and astraiConfig.cmake with the components core and cuda. In a wheel they
# lie inside the Python package (see ASTRAI_INSTALL_PREFIX), beside _C.
include(CMakePackageConfigHelpers)

set(astrai_lib_dir ${ASTRAI_INSTALL_PREFIX}lib)
set(astrai_config_dir ${astrai_lib_dir}/cmake/astrai)

install(DIRECTORY cpp/include/astrai DESTINATION ${ASTRAI_INSTALL_PREFIX}include FILES_MATCHING PATTERN "*.h")
install(TARGETS astrai_core EXPORT astraiCoreTargets ARCHIVE DESTINATION ${astrai_lib_dir})
install(EXPORT astraiCoreTargets NAMESPACE astrai:: DESTINATION ${astrai_config_dir})
if(ASTRAI_HAS_CUDA)
  install(TARGETS astrai_cuda EXPORT astraiCudaTargets ARCHIVE DESTINATION ${astrai_lib_dir})
  install(EXPORT astraiCudaTargets NAMESPACE astrai:: DESTINATION ${astrai_config_dir})
endif()
if(SKBUILD AND ASTRAI_BUILD_PYTHON)
  install(TARGETS _C DESTINATION astrai)
endif()

configure_package_config_file(cmake/astraiConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/astraiConfig.cmake
  INSTALL_DESTINATION ${astrai_config_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/astraiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/astraiConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/astraiConfigVersion.cmake
  DESTINATION ${astrai_config_dir})
