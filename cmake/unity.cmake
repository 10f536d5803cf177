# braid_unity(<target> <files at once>)
#
# Compiles several files of a target as one: their headers are read, and their templates made, once. Anonymous
# namespaces become one as well, so names in them must differ within a folder. scripts/check_alone compiles each file by
# itself, which shows what leans on another file's includes.
#
# CMake's own UNITY_BUILD names files by their full paths, so that ccache never knows in one copy of the tree what it
# compiled in another. Files with flags of their own (SKIP_UNITY_BUILD_INCLUSION) and generated ones stay apart.
function(braid_unity target files_at_once)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(binary_folder ${target} BINARY_DIR)
  set(apart "")
  set(together "")
  foreach(source ${sources})
    get_source_file_property(stays ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(stays OR NOT source MATCHES "[.]cc$")
      list(APPEND apart ${source})
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    list(APPEND together ${source})
  endforeach()

  set(batch 0)
  while(together)
    list(SUBLIST together 0 ${files_at_once} now)
    list(REMOVE_ITEM together ${now})
    list(TRANSFORM now REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN now "" text)
    set(file ${binary_folder}/${target}_unity/${batch}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)  # leaves a file of the same text as it is
    list(APPEND apart ${file})
    math(EXPR batch "${batch} + 1")
  endwhile()
  set_target_properties(${target} PROPERTIES SOURCES "${apart}")
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc takes every included file for a header, where an anonymous type as a field would be a fault.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()
