# What `make install` puts in place (component "c"; the wheel takes component "python"): libbraid.so and its header, for
# pkg-config and for CMake's find_package(braid), and NCCL's stand-in. Nothing of it names the folder it was installed
# to: all of it may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(braid_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/braid)

install(TARGETS braid EXPORT braid_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c NAMELINK_COMPONENT c)
install(FILES include/braid/braid.h include/braid/engine.h include/braid/moe.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/braid COMPONENT c)
if(TARGET braid_nccl)
  # One beside the other, by which the first finds the second.
  install(TARGETS braid_nccl braid_nccl_core LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/braid COMPONENT c)
endif()

install(EXPORT braid_targets FILE braid-targets.cmake NAMESPACE braid:: DESTINATION ${braid_package_folder} COMPONENT c)
configure_package_config_file(cmake/package/braid-config.cmake.in package/braid-config.cmake
                              INSTALL_DESTINATION ${braid_package_folder} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/braid-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/braid-config.cmake ${CMAKE_BINARY_DIR}/package/braid-config-version.cmake
        DESTINATION ${braid_package_folder} COMPONENT c)

set(braid_pkgconfig_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH braid_prefix_from_pkgconfig /prefix/${braid_pkgconfig_folder} /prefix)
string(REGEX REPLACE "/$" "" braid_prefix_from_pkgconfig ${braid_prefix_from_pkgconfig})
configure_file(cmake/package/braid.pc.in package/braid.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/braid.pc DESTINATION ${braid_pkgconfig_folder} COMPONENT c)
