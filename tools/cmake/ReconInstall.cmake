# cmake --install build/release --prefix P: programs, what they load, systemd units and the README.
# The module for GPUs is a component of its own: it is there where it was built.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME recon)
install(TARGETS recon-server recon-worker reconctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS recon_messages LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET recon_cuda)  # The worker looks for it beside itself.
  install(TARGETS recon_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cuda OPTIONAL)
endif()
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
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
