# Read before project(): builds with sanitizers take clang 19, where it is there with its runtime libraries, because it
# compiles them in half of gcc's time, those with the thread sanitizer in a third. Another compiler is named by CXX or
# -D CMAKE_CXX_COMPILER.
if(NOT BRAID_SANITIZE OR CMAKE_CXX_COMPILER OR DEFINED ENV{CXX})
  return()
endif()
find_program(BRAID_CLANGXX clang++-19)
find_program(BRAID_CLANG clang-19)
mark_as_advanced(BRAID_CLANGXX BRAID_CLANG)
if(NOT BRAID_CLANGXX OR NOT BRAID_CLANG)
  return()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E echo "int main() {}"
                COMMAND ${BRAID_CLANGXX} -fsanitize=${BRAID_SANITIZE} -x c++ - -o /dev/null
                RESULT_VARIABLE braid_clang_fails ERROR_QUIET)
if(NOT braid_clang_fails)
  set(CMAKE_CXX_COMPILER ${BRAID_CLANGXX})
  set(CMAKE_C_COMPILER ${BRAID_CLANG})  # what is in C links the same runtime libraries
endif()
