# Read by cpack itself: what was not built is not packed.
if(NOT EXISTS "${CPACK_RECON_CUDA_MODULE}")
  list(REMOVE_ITEM CPACK_COMPONENTS_ALL cuda)
endif()
