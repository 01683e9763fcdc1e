# Compiler settings shared by every target, and recon_library(), which declares a layer.

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # bin/ can be moved as a whole.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Equal bits on every SIMD target and after every replay: no contraction of a*b+c.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(RECON_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RECON_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${RECON_SANITIZE})
endif()
if(RECON_FAULT_POINTS)
  add_compile_definitions(RECON_FAULT_POINTS=1)
endif()

# Warnings for our own code; generated code is compiled without them.
add_library(recon_warnings INTERFACE)
set(recon_warning_flags -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(RECON_WARNINGS_AS_ERRORS)
  list(APPEND recon_warning_flags -Werror)
endif()
# GCC sees uninitialized values in its own library where sanitizers change the code.
if(RECON_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND recon_warning_flags -Wno-error=maybe-uninitialized)
endif()
# ThreadSanitizer cannot see atomic_thread_fence; Abseil and gRPC headers use it.
if(RECON_SANITIZE MATCHES "thread")
  list(APPEND recon_warning_flags -Wno-error=tsan)
endif()
target_compile_options(recon_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${recon_warning_flags}>")
target_include_directories(recon_warnings INTERFACE ${CMAKE_SOURCE_DIR})

# recon_library(NAME SOURCES a.cc ... DEPS x ...): a static library that is one layer of the design.
function(recon_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE recon_warnings)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
endfunction()

# recon_program(NAME SOURCES a.cc ... DEPS x ...): a binary in build/<preset>/bin.
function(recon_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} recon_warnings)
endfunction()
