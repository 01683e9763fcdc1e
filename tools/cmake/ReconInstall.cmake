# cmake --install build/release --prefix P: programs, what they load, systemd units and the pages.
# The module for GPUs is a component of its own: it is there where it was built.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME recon)
install(TARGETS recon-server recon-worker reconctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS recon_messages LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET recon_cuda)  # The worker looks for it beside itself.
  install(TARGETS recon_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cuda OPTIONAL)
endif()
install(FILES README.md LICENSE CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Pages beside the code, and what they show, so that their links lead somewhere.
foreach(folder common deploy server tools worker)
  file(GLOB_RECURSE pages RELATIVE ${CMAKE_SOURCE_DIR} ${folder}/*.md ${folder}/*.svg ${folder}/*.png ${folder}/*.csv)
  foreach(page ${pages})
    get_filename_component(page_folder ${page} DIRECTORY)
    install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${page_folder})
  endforeach()
endforeach()
install(FILES deploy/systemd/recon.sysusers DESTINATION lib/sysusers.d RENAME recon.conf)
# Units name the programs by their paths, which the prefix decides. (An absolute one: it may be given from a folder.)
install(CODE "set(recon_units_from \"${CMAKE_SOURCE_DIR}/deploy/systemd\")" COMPONENT recon)
install(CODE [[
  get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
  foreach(unit recon-server.service recon-worker@.service)
    file(READ "${recon_units_from}/${unit}" text)
    string(REPLACE "/usr/local/" "${prefix}/" text "${text}")
    file(WRITE "$ENV{DESTDIR}${prefix}/lib/systemd/system/${unit}" "${text}")
  endforeach()
]] COMPONENT recon)

# cpack --config build/release/CPackConfig.cmake: Debian packages, `recon` and, where the module was built, `recon-worker-cuda`.
# What they depend on is what their programs are linked with (dpkg-shlibdeps).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The recon developers <recon@localhost>")
set(CPACK_SET_DESTDIR ON)  # Units name the programs where they will be, not where they are packed.
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/tools/cmake/ReconPackages.cmake)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL recon)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RECON_PACKAGE_NAME recon)
set(CPACK_COMPONENT_RECON_DESCRIPTION "Parameter server for distributed training that outlives its machines
recon-server holds a model, applies the gradients that workers push, hands out
the training data and publishes snapshots. Every process can be killed at any
moment, and training goes on within seconds.")
set(CPACK_DEBIAN_RECON_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/deploy/debian/postinst)
set(CPACK_DEBIAN_RECON_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_RECON_PACKAGE_SUGGESTS "recon-worker-cuda, libucx0")
if(TARGET recon_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  set(CPACK_RECON_CUDA_MODULE ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/librecon_cuda.so)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME recon-worker-cuda)
  set(CPACK_COMPONENT_CUDA_DESCRIPTION "recon's worker on NVIDIA's GPUs
The module that recon-worker loads when it is to use a GPU. It needs NVIDIA's
driver and the cuBLAS ${CUDAToolkit_VERSION_MAJOR} of the CUDA toolkit that it was built with.")
  # Driver and toolkit may come from NVIDIA's own installers, of which dpkg knows nothing.
  set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "recon (= ${PROJECT_VERSION}), libc6 (>= 2.36), libstdc++6 (>= 12)")
  set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS "libcuda1")
endif()
include(CPack)
