# The C++ package: headers, static libraries, astraiConfig.cmake with the components core and cuda, and pkg-config files. All
# of it finds itself from where it lies, so a prefix can be moved. In a wheel it lies inside the Python package (see
# ASTRAI_INSTALL_PREFIX), beside _C.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(SKBUILD)  # one layout on every system: python -m astrai.env --cmake-prefix and its users know it
  set(astrai_lib_dir ${ASTRAI_INSTALL_PREFIX}lib)
else()
  set(astrai_lib_dir ${CMAKE_INSTALL_LIBDIR})
endif()
set(astrai_config_dir ${astrai_lib_dir}/cmake/astrai)
set(astrai_pkgconfig_dir ${astrai_lib_dir}/pkgconfig)

function(astrai_install_pkgconfig name)
  if(IS_ABSOLUTE ${astrai_pkgconfig_dir})
    message(FATAL_ERROR "astrai: CMAKE_INSTALL_LIBDIR is ${CMAKE_INSTALL_LIBDIR}; a folder below the prefix is needed")
  endif()
  file(RELATIVE_PATH ASTRAI_PC_PREFIX /${astrai_pkgconfig_dir} /${ASTRAI_INSTALL_PREFIX})
  file(RELATIVE_PATH ASTRAI_PC_LIB_DIR /${ASTRAI_INSTALL_PREFIX} /${astrai_lib_dir})
  configure_file(cmake/${name}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${astrai_pkgconfig_dir})
endfunction()

install(DIRECTORY cpp/include/astrai DESTINATION ${ASTRAI_INSTALL_PREFIX}include FILES_MATCHING PATTERN "*.h")
install(TARGETS astrai_core EXPORT astraiCoreTargets ARCHIVE DESTINATION ${astrai_lib_dir})
install(EXPORT astraiCoreTargets NAMESPACE astrai:: DESTINATION ${astrai_config_dir})
astrai_install_pkgconfig(astrai)
if(ASTRAI_HAS_CUDA)
  install(TARGETS astrai_cuda EXPORT astraiCudaTargets ARCHIVE DESTINATION ${astrai_lib_dir})
  install(EXPORT astraiCudaTargets NAMESPACE astrai:: DESTINATION ${astrai_config_dir})
  astrai_install_pkgconfig(astrai-cuda)
endif()
if(SKBUILD AND ASTRAI_BUILD_PYTHON)
  install(TARGETS _C DESTINATION astrai)
endif()

configure_package_config_file(cmake/astraiConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/astraiConfig.cmake
  INSTALL_DESTINATION ${astrai_config_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/astraiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/astraiConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/astraiConfigVersion.cmake
  DESTINATION ${astrai_config_dir})
