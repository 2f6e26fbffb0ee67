# Every public header compiles alone, twice in one file, as plain C++17 without a warning: one generated file and one object
# for each, so that a header that leans on another's includes does not build.
file(GLOB astrai_headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/cpp/include
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/include/astrai/*.h)
set(astrai_header_checks "")
foreach(header IN LISTS astrai_headers)
  get_filename_component(name ${header} NAME_WE)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/header_check/${name}.cpp)
  file(CONFIGURE OUTPUT ${file} CONTENT "#include <${header}>\n#include <${header}>\n" @ONLY)
  list(APPEND astrai_header_checks ${file})
endforeach()
add_library(astrai_header_check OBJECT ${astrai_header_checks})
target_include_directories(astrai_header_check PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cpp/include)
target_compile_options(astrai_header_check PRIVATE -Wall -Wextra -Wpedantic -Werror)
