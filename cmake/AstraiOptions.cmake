# Cache variables of the build, and the compiler settings that every target shares.
# ASTRAI_WITH_CUDA, ASTRAI_CUDA_ARCHS and ASTRAI_HEAD_DIMS take their defaults from the environment variables of the
# same names, so that `ASTRAI_WITH_CUDA=OFF pip install .` works.

function(astrai_option_from_environment name default help)
  if(DEFINED ENV{${name}})
    set(default "$ENV{${name}}")
  endif()
  string(REPLACE "," ";" default "${default}")
  set(${name} "${default}" CACHE STRING "${help}")
endfunction()

astrai_option_from_environment(ASTRAI_WITH_CUDA AUTO "Compile cuda/: AUTO (when a working nvcc is found), ON or OFF")
astrai_option_from_environment(ASTRAI_CUDA_ARCHS "" "GPU architectures, such as 80;90a; empty: the GPU that is there, else 80;90a")
astrai_option_from_environment(ASTRAI_HEAD_DIMS "32;64;96;128;256" "Head sizes that kernels are compiled for")
if(NOT PROJECT_IS_TOP_LEVEL)  # inside another project (add_subdirectory, FetchContent) only the libraries are built
  set(ASTRAI_BUILD_PYTHON OFF CACHE BOOL "Build the Python extension astrai._C")
  set(ASTRAI_INSTALL OFF CACHE BOOL "Add the rules of cmake --install")
endif()
option(ASTRAI_BUILD_PYTHON "Build the Python extension astrai._C; inside another project OFF" ON)
option(ASTRAI_BUILD_TESTS "Build the C++ tests" OFF)
option(ASTRAI_INSTALL "Add the rules of cmake --install; inside another project OFF" ON)
option(ASTRAI_INPLACE "Write _C into python/astrai (development)" OFF)
set(ASTRAI_SANITIZE "" CACHE STRING "Sanitizers for all C++ code, such as address,undefined")

if(NOT ASTRAI_WITH_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "astrai: ASTRAI_WITH_CUDA is '${ASTRAI_WITH_CUDA}'; accepted: AUTO, ON, OFF")
endif()

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(PROJECT_IS_TOP_LEVEL)  # else they are the outer project's to choose
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
  endif()
endif()
if(ASTRAI_SANITIZE)
  add_compile_options(-fsanitize=${ASTRAI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ASTRAI_SANITIZE})
endif()

function(astrai_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-sign-conversion>)
endfunction()

# In a wheel everything lies inside the package folder, which makes that folder a CMAKE_PREFIX_PATH.
set(ASTRAI_INSTALL_PREFIX "")
if(SKBUILD)
  set(ASTRAI_INSTALL_PREFIX "astrai/")
endif()
