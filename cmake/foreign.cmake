# What braid is built from and does not bring along. What is missing is said once, with Debian's package of each part.

set(braid_missing "" CACHE INTERNAL "")
set(braid_missing_packages "" CACHE INTERNAL "")
function(braid_require found what package)
  if(NOT found)
    set(braid_missing ${braid_missing} ${what} CACHE INTERNAL "")
    set(braid_missing_packages ${braid_missing_packages} ${package} CACHE INTERNAL "")
  endif()
endfunction()

find_package(Threads REQUIRED)
find_package(fmt QUIET)
find_package(spdlog QUIET)
find_package(nlohmann_json QUIET)
find_package(OpenSSL QUIET COMPONENTS Crypto)
braid_require("${fmt_FOUND}" fmt libfmt-dev)
braid_require("${spdlog_FOUND}" spdlog libspdlog-dev)
braid_require("${nlohmann_json_FOUND}" nlohmann-json nlohmann-json3-dev)
braid_require("${OPENSSL_FOUND}" OpenSSL libssl-dev)
if(BRAID_BUILD_TESTS)
  find_package(GTest QUIET)
  braid_require("${GTest_FOUND}" GoogleTest "libgtest-dev;libgmock-dev")
endif()
if(BRAID_BUILD_PYTHON)
  find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module)
  braid_require("${Python_FOUND}" "Python 3.11 or newer with its headers" python3-dev)
endif()
if(braid_missing)
  list(JOIN braid_missing ", " what)
  list(JOIN braid_missing_packages " " packages)
  message(FATAL_ERROR "braid cannot be built: there is no ${what}. On Debian: apt-get install ${packages}")
endif()

# libfabric itself is opened at run time; its headers say how to call it. Without them there is no RDMA by it, and all
# else works.
find_path(BRAID_LIBFABRIC_INCLUDE rdma/fi_endpoint.h DOC "libfabric's headers (Debian: libfabric-dev)")
mark_as_advanced(BRAID_LIBFABRIC_INCLUDE)
if(BRAID_LIBFABRIC_INCLUDE)
  message(STATUS "RDMA by libfabric: on (headers in ${BRAID_LIBFABRIC_INCLUDE})")
else()
  message(STATUS "RDMA by libfabric: off (no rdma/fi_endpoint.h; on Debian: apt-get install libfabric-dev)")
endif()

# The same for libibverbs.
find_path(BRAID_VERBS_INCLUDE infiniband/verbs.h DOC "libibverbs' headers (Debian: libibverbs-dev)")
mark_as_advanced(BRAID_VERBS_INCLUDE)
if(BRAID_VERBS_INCLUDE)
  message(STATUS "RDMA by libibverbs: on (headers in ${BRAID_VERBS_INCLUDE})")
else()
  message(STATUS "RDMA by libibverbs: off (no infiniband/verbs.h; on Debian: apt-get install libibverbs-dev)")
endif()

# braid_fmt: fmt without a shared library that users would need at run time. Its headers hold all of its code
# (FMT_HEADER_ONLY), but compiling that into every file costs two seconds a file: one file holds it for all, because gcc
# can be told to keep every inline function. Sanitizers' builds stay here, and link what is installed.
get_target_property(fmt_kind fmt::fmt TYPE)
add_library(braid_fmt INTERFACE)
if(BRAID_SANITIZE OR fmt_kind STREQUAL "STATIC_LIBRARY")
  target_link_libraries(braid_fmt INTERFACE fmt::fmt)
elseif(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_link_libraries(braid_fmt INTERFACE fmt::fmt-header-only)
else()
  set(fmt_headers $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
  add_library(braid_fmt_code STATIC cmake/fmt_code.cc)
  target_include_directories(braid_fmt_code SYSTEM PRIVATE ${fmt_headers})
  target_compile_options(braid_fmt_code PRIVATE -Os -fkeep-inline-functions)
  target_include_directories(braid_fmt SYSTEM INTERFACE ${fmt_headers})
  target_link_libraries(braid_fmt INTERFACE braid_fmt_code)
endif()

if(fmt_VERSION VERSION_GREATER_EQUAL 12)  # whose fmt/core.h has fmt::format only for those who ask
  target_compile_definitions(braid_fmt INTERFACE FMT_DEPRECATED_HEAVY_CORE)
endif()

# braid_spdlog: its headers, which one file includes.
add_library(braid_spdlog INTERFACE)
target_include_directories(braid_spdlog SYSTEM INTERFACE $<TARGET_PROPERTY:spdlog::spdlog,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(braid_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
