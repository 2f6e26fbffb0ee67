# pybind11, from CMAKE_PREFIX_PATH (a build environment sets it) or from the Python that runs.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
    OUTPUT_VARIABLE astrai_pybind11_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND CMAKE_PREFIX_PATH "${astrai_pybind11_dir}")
endif()
find_package(pybind11 2.13 CONFIG REQUIRED)
