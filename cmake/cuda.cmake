# CUDA kernels: compiled by nvcc into fatbins that are embedded in the host library and loaded through the driver at
# run time. Host code never needs nvcc, CUDA's headers or its runtime.
#
#   braid_cuda_fatbin(<target> <name>.cu...)   paths relative to src/
#
# adds `std::span<const std::byte> braid::kernels::<name>_fatbin()` to the target; without nvcc it returns nothing.

set(BRAID_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (when nvcc is found), ON, OFF")
set_property(CACHE BRAID_CUDA PROPERTY STRINGS AUTO ON OFF)

set(BRAID_CUDA_ARCHITECTURES "80;90a;100a" CACHE STRING "Architectures that kernels are compiled for")
set(braid_oldest_nvcc 12.8)  # the first that knows sm_100a

# Sets `result` to why there can be no kernels; empty when there can.
function(braid_find_nvcc result)
  if(BRAID_CUDA STREQUAL "OFF")
    set(${result} "BRAID_CUDA is OFF" PARENT_SCOPE)
    return()
  endif()
  if(BRAID_CUDA STREQUAL "AUTO" AND BRAID_SANITIZE)
    set(${result} "sanitizers see host code only" PARENT_SCOPE)
    return()
  endif()
  if(BRAID_NVCC AND NOT EXISTS "${BRAID_NVCC}")
    unset(BRAID_NVCC CACHE)  # e.g. the .venv that held it was removed
  endif()
  file(GLOB in_venv ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/bin)
  find_program(BRAID_NVCC nvcc PATHS /usr/local/cuda/bin ${in_venv} DOC "nvcc of CUDA ${braid_oldest_nvcc} or newer")
  if(NOT BRAID_NVCC)
    set(${result} "no nvcc" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${BRAID_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" ignored "${text}")
  if(NOT CMAKE_MATCH_1 OR CMAKE_MATCH_1 VERSION_LESS braid_oldest_nvcc)
    set(${result} "${BRAID_NVCC} is release '${CMAKE_MATCH_1}', not ${braid_oldest_nvcc} or newer" PARENT_SCOPE)
    return()
  endif()
  set(${result} "" PARENT_SCOPE)
endfunction()

braid_find_nvcc(braid_no_cuda)
if(NOT braid_no_cuda)
  message(STATUS "CUDA kernels: on (${BRAID_NVCC})")
elseif(BRAID_CUDA STREQUAL "ON")
  message(FATAL_ERROR "CUDA kernels: BRAID_CUDA is ON, but: ${braid_no_cuda}")
else()
  message(STATUS "CUDA kernels: off (${braid_no_cuda})")
endif()

# Compiles src/<path> to <build>/kernels/<path without .cu>.fatbin, where scripts/check_sass looks for it.
function(braid_compile_fatbin path fatbin)
  set(flags -fatbin -std=c++20 -O3 -Werror all-warnings --expt-relaxed-constexpr -Xfatbin=-compress-all -I${CMAKE_SOURCE_DIR}/src)
  foreach(architecture ${BRAID_CUDA_ARCHITECTURES})
    list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags -ccbin ${CMAKE_CXX_COMPILER})
  endif()
  # ccache takes for linking what has no -c. An environment's nvcc is as old as the environment, so it goes by what is
  # in the file; and the target, which it cannot tell from a flag, is named alike in every copy of the tree.
  set(cached "")
  if(BRAID_CCACHE)
    set(cached ${CMAKE_COMMAND} -E env CCACHE_COMPILERCHECK=content ${BRAID_CCACHE})
    list(APPEND flags -c)
  endif()
  cmake_path(RELATIVE_PATH fatbin BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} OUTPUT_VARIABLE target)
  get_filename_component(folder ${fatbin} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND ${cached} ${BRAID_NVCC} ${flags} -MD -MT ${target} -MF ${fatbin}.d -o ${fatbin} ${CMAKE_SOURCE_DIR}/src/${path}
    DEPENDS ${CMAKE_SOURCE_DIR}/src/${path} ${BRAID_NVCC}
    DEPFILE ${fatbin}.d
    COMMENT "Compiling kernels of ${path}"
    VERBATIM)
endfunction()

function(braid_embed_fatbin name path fatbin embedded)
  set(script ${CMAKE_SOURCE_DIR}/cmake/embed_fatbin.cmake)
  add_custom_command(
    OUTPUT ${embedded}
    COMMAND ${CMAKE_COMMAND} -D name=${name} -D path=${path} -D fatbin=${fatbin} -D embedded=${embedded} -P ${script}
    DEPENDS ${fatbin} ${script} ${CMAKE_SOURCE_DIR}/cmake/fatbin.cc.in
    COMMENT "Embedding kernels of ${path}"
    VERBATIM)
endfunction()

function(braid_cuda_fatbin target)
  foreach(path ${ARGN})
    get_filename_component(name ${path} NAME_WE)
    string(REGEX REPLACE "[.]cu$" "" stem ${CMAKE_BINARY_DIR}/kernels/${path})
    set(fatbin ${stem}.fatbin)
    set(embedded ${stem}_fatbin.cc)
    if(braid_no_cuda)
      configure_file(${CMAKE_SOURCE_DIR}/cmake/no_fatbin.cc.in ${embedded} @ONLY)
    else()
      braid_compile_fatbin(${path} ${fatbin})
      braid_embed_fatbin(${name} ${path} ${fatbin} ${embedded})
    endif()
    target_sources(${target} PRIVATE ${embedded})
  endforeach()
endfunction()
